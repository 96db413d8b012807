"""What each kind of stage asks, as token ids: chat template, thought so far, question.

A prompt only ever grows at its end. The generation context is the template over the problem plus the committed
thought; a verification appends a turn to exactly these ids, so that the engine's prefix cache holds all but the new
turn. Turns are cut once from the template around sentinels; an earlier turn is never rendered again (templates such
as R1's drop a thought that stands before `</think>` when they render it).

What users, data and models wrote is text in every prompt: only the template's parts, and the marks of a thought that are written here,
become control tokens (`Tokenizer.encode_parts`).
"""

import string
from array import array
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from pipeline.engine import Tokenizer
from pipeline.errors import GraphError, RequestRefused
from pipeline.reasoning.template import ASKED, SAID, parts_of, stripped_margins

DELIMITER = "\n\n"
"""The text that ends a step (SpecReason's implementation cuts at blank lines; SpecCoT does not say where)."""
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
LABELS = string.digits + string.ascii_uppercase
"""Labels of the options of a choice, in order: `0` is none of them, then one for each candidate."""

INSTRUCTION = "\nPlease reason step by step, and put your final answer within \\boxed{}."
CHOOSE_INTRO = "Candidates for the next step of your reasoning:\n\n"
CHOOSE_THOUGHT_INTRO = "Candidates for your whole reasoning:\n\n"
INTROS = {"step": CHOOSE_INTRO, "thought": CHOOSE_THOUGHT_INTRO}
"""What stands before the candidates, by what they are."""
CHOOSE_QUESTION = "Which candidate is right and leads on best? Answer with its number, or with 0 if none of them is right."
CHOOSE_ONE_QUESTION = "Which candidate is right and leads on best? Answer with its number."
CHOOSE_PREFILL = "Best candidate: "
SCORE_QUESTION = "Rate the last step of your reasoning from 0 (wrong) to 9 (right and useful). Answer with the digit."
SCORE_PREFILL = "Score: "
WORDINGS = (INSTRUCTION, CHOOSE_INTRO, CHOOSE_QUESTION, CHOOSE_PREFILL, SCORE_QUESTION, SCORE_PREFILL)
"""The texts that the bundled models were trained on and the bundled tokenizer has whole; the other texts they have never seen."""


Array: TypeAlias = "array[int]"


class OptionPrompt(NamedTuple):
    """A prompt whose next token is one of `option_ids`."""

    ids: Sequence[int]
    option_ids: tuple[int, ...]


class PromptBuilder:
    """Builds the prompts of one engine with its tokenizer and its chat template."""

    def __init__(self, tokenizer: Tokenizer, instruction: str = INSTRUCTION, where: str = "its chat template") -> None:
        """`instruction` follows every problem as it stands. Raises `GraphError` at `where` for a template that cannot ask a problem."""
        self.tokenizer, self.instruction, self._where = tokenizer, instruction, where
        special = tokenizer.special_ids
        self.thinks = THINK_OPEN in special and THINK_CLOSE in special
        self.think_close_id: int | None = special[THINK_CLOSE] if self.thinks else None
        self.delimiter_ids = tokenizer.encode(DELIMITER)
        self.close_thought_ids = tokenizer.encode(f"{THINK_CLOSE}{DELIMITER}" if self.thinks else DELIMITER)
        self._before, self._after = self._around()
        self._margins = stripped_margins(self._around)
        self._turn: tuple[Array, str] | GraphError = self._cut_turn()
        self._step_ends: dict[tuple[int, ...], bool] = {}
        self._intro_ids = {unit: array("I", tokenizer.encode(intro)) for unit, intro in INTROS.items()}
        self._label_ids = [array("I", tokenizer.encode(f"[{label}] ")) for label in LABELS]
        self._questions: dict[tuple[str, str, tuple[str, ...]], tuple[Array, tuple[int, ...]]] = {}

    def generation(self, problem: str) -> list[int]:
        """The token ids of the prompt that asks `problem`, up to where the thought begins."""
        content = (problem + self.instruction).lstrip(self._margins.left).rstrip(self._margins.right)
        return self.tokenizer.encode_parts([self._before, content, self._after])

    def choose(
        self, context: Sequence[int], candidates: Sequence[Sequence[int]], *, unit: str = "step", reject: bool = True
    ) -> OptionPrompt:
        """`context`, then one turn that shows the `candidates` and asks for the best one's number (SpecCoT 3.4, SCoT 3.4).

        `unit` says what the candidates are, `step` or `thought`; with `reject` option 0 is offered, which means none of them.
        """
        shown = self._intro_ids[unit][:]
        for label, candidate in zip(self._label_ids[1:], candidates, strict=False):
            shown += label
            shown.extend(candidate)
            if not self._ends_step(tuple(candidate[-2:])):
                shown.extend(self.delimiter_ids)
        question = CHOOSE_QUESTION if reject else CHOOSE_ONE_QUESTION
        return self.ask(context, [shown, question], CHOOSE_PREFILL, LABELS[not reject : len(candidates) + 1])

    def score(self, context: Sequence[int], candidate: Sequence[int]) -> OptionPrompt:
        """`context` as if the `candidate` were committed, then one turn that asks for its utility, 0 to 9 (SpecReason 4.1).

        If the candidate is accepted, its keys and values are already in the engine's cache.
        """
        shown = array("I", context)
        shown.extend(candidate)
        return self.ask(shown, SCORE_QUESTION, SCORE_PREFILL, string.digits)

    def ask(self, context: Sequence[int], turn: str | Sequence[str | Sequence[int]], prefill: str, options: Sequence[str]) -> OptionPrompt:
        """`context`, then a turn of the user, then a reply that begins with `prefill` and goes on with one of the `options`.

        A verifier's own question is asked with this. `turn` is a text, or texts and token ids in the order in which they are
        said, the last one a text: texts are encoded one by one and stay text, ids among them stand in the prompt as they are. The
        prompt repeats `context` to the last token, which an engine's prefix cache holds. Raises `RequestRefused` where the
        engine's tokenizer has no single token for one of the `options` at that place; `can_name` tells before.
        """
        *parts, question = [turn] if isinstance(turn, str) else turn
        tail, option_ids = self._question(str(question), prefill, tuple(options))
        if len(option_ids) < len(options):
            raise RequestRefused(f"the engine's tokenizer has no single token for {options[len(option_ids)]!r} after {prefill!r}")
        ids = array("I", context)
        ids += self._cut()[0]
        for part in parts:
            ids.extend(self.tokenizer.encode_parts(["", part]) if isinstance(part, str) else part)
        ids += tail
        return OptionPrompt(ids, option_ids)

    def can_name(self, question: str, prefill: str, options: Sequence[str]) -> bool:
        """Whether the tokenizer has a single token for each of the `options`, where a turn ends with `question` and the reply begins
        with `prefill`."""
        return len(self._question(question, prefill, tuple(options))[1]) == len(options)

    def _around(self, margin: str = "") -> list[str]:
        """What the template puts before and behind a user's text, between which it leaves of `margin` on either side what it leaves."""
        text = self.tokenizer.render([{"role": "user", "content": f"{margin}{SAID}{margin}"}])
        if self.thinks and not text.rstrip().endswith(THINK_OPEN):
            text += f"{THINK_OPEN}\n"
        return parts_of(text, SAID, where=self._where)

    def _ends_step(self, tail: tuple[int, ...]) -> bool:
        """Does a candidate with these last two ids end in the delimiter?"""
        known = self._step_ends.get(tail)
        if known is None:
            known = self._step_ends[tail] = self.tokenizer.decode(tail).endswith(DELIMITER)
        return known

    def _cut(self) -> tuple[Array, str]:
        """Ids between an assistant's turn and the user's next one, and the text from the end of that to the reply. Raises `GraphError`."""
        if isinstance(self._turn, GraphError):
            raise self._turn
        return self._turn

    def _cut_turn(self) -> tuple[Array, str] | GraphError:
        """See `_cut`; the error of a template without such turns, which only an engine that judges needs."""
        text = self.tokenizer.render(
            [
                {"role": "user", "content": "q1w2first"},
                {"role": "assistant", "content": SAID},
                {"role": "user", "content": ASKED},
            ]
        )
        try:
            _, before, reply = parts_of(text, SAID, ASKED, where=self._where)
        except GraphError as error:
            return error
        if self.thinks:
            if reply.rstrip().endswith(THINK_OPEN):
                reply = reply.rstrip().removesuffix(THINK_OPEN)
            reply += f"{THINK_OPEN}{DELIMITER}{THINK_CLOSE}{DELIMITER}"
        return array("I", self.tokenizer.encode(before)), reply

    def _question(self, question: str, prefill: str, labels: tuple[str, ...]) -> tuple[Array, tuple[int, ...]]:
        """Ids from the question to just before the one token that names an option, and those tokens.

        Labels whose token would change the ids before it are left out from the first such on.
        """
        key = (question, prefill, labels)
        known = self._questions.get(key)
        if known is None:
            known = self._questions[key] = self._cut_question(*key)
        return known

    def _cut_question(self, question: str, prefill: str, labels: tuple[str, ...]) -> tuple[Array, tuple[int, ...]]:
        reply = self._cut()[1] + prefill
        whole = [self.tokenizer.encode_parts(["", question, reply + label]) for label in labels]
        tail = whole[0][:-1]
        usable: list[int] = []
        for ids in whole:
            if ids[:-1] != tail or ids[-1] in usable:
                break
            usable.append(ids[-1])
        return array("I", tail), tuple(usable)

    @property
    def most_candidates(self) -> int:
        """How many candidates one choice can show: each needs a label of one token."""
        return len(self._question(CHOOSE_QUESTION, CHOOSE_PREFILL, tuple(LABELS))[1]) - 1

    @property
    def can_score(self) -> bool:
        """Whether the tokenizer has a single token for each digit, which `score` needs."""
        return self.can_name(SCORE_QUESTION, SCORE_PREFILL, string.digits)
