"""The texts that a graph says to its models, with named places for problems, thoughts and candidates: the block `prompts` of a graph file.

Plain text: `{{problem}}` is replaced by the problem, braces that are not doubled are literal, nothing is computed. The defaults are
this package's own wording, which the bundled models were trained on; `graphs/prompts/` has those that the papers published.
"""

import re
import string
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct

from pipeline.errors import did_you_mean

DELIMITER = "\n\n"
"""The text that ends a step (SpecReason's implementation cuts at blank lines; SpecCoT does not say where)."""
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
LABELS = string.digits + string.ascii_uppercase
"""Labels of the options of a choice, in order."""
LETTERS = string.ascii_uppercase
"""The letters of the options of a multiple-choice problem, in order."""

INSTRUCTION = "\nPlease reason step by step, and put your final answer within \\boxed{}."
CHOOSE_INTRO = "Candidates for the next step of your reasoning:\n\n"
CHOOSE_THOUGHT_INTRO = "Candidates for your whole reasoning:\n\n"
CHOOSE_ASKED = "Which candidate is right and leads on best? Answer with its number{{none}}."
NONE = ", or with {{label}} if none of them is right"
CHOOSE_PREFILL = "Best candidate: "
SCORE_QUESTION = "Rate the last step of your reasoning from 0 (wrong) to 9 (right and useful). Answer with the digit."
SCORE_PREFILL = "Score: "
CHOOSE_QUESTION = CHOOSE_ASKED.replace("{{none}}", NONE.replace("{{label}}", LABELS[0]))
WORDINGS = (INSTRUCTION, CHOOSE_INTRO, CHOOSE_QUESTION, CHOOSE_PREFILL, SCORE_QUESTION, SCORE_PREFILL)
"""The texts that the bundled models were trained on and the bundled tokenizer has whole; the other texts they have never seen."""

_PLACE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
Text = Annotated[str, Meta(min_length=1)]


@lru_cache(maxsize=256)
def pieces(text: str) -> tuple[str, ...]:
    """`text` cut at its places: what is said, the name of a place, what is said, and so on."""
    return tuple(_PLACE.split(text))


def filled(text: str, values: Mapping[str, str]) -> str:
    """`text` with a value for each of its places."""
    return _PLACE.sub(lambda found: values[found[1]], text)


def _check_places(field: str, text: str, needed: Sequence[str], allowed: Sequence[str] = ()) -> None:
    """Raise `ValueError` where a placeholder of a text is unknown or missing."""
    found, known = pieces(text)[1::2], [*needed, *allowed]
    for name in found:
        if name not in known:
            what = did_you_mean(name, known) if known else "this text has no placeholders"
            raise ValueError(f"`{field}` has an unknown placeholder {{{{{name}}}}}; {what}")
    for name in needed:
        if name not in found:
            raise ValueError(f"`{field}` has no placeholder for the {name}; write {{{{{name}}}}} where it belongs")


class Marks(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reasoning tags of the model. A model whose vocabulary has neither is assumed to use none."""

    open: str = THINK_OPEN
    """The opening tag."""
    close: str = THINK_CLOSE
    """The closing tag."""


class Message(Struct, frozen=True):
    """One message of a chat."""

    role: str
    """`system`, `user` or `assistant`."""
    content: str
    """What is said."""


class Question(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a judge is asked: a user turn, and a reply that continues with one of the labels, one token."""

    form: Literal["appended", "alone"] = "appended"
    """`appended`: after the thought, which is still in the engine's cache; `alone`: a separate chat."""
    omit: str = ""
    """With `form: alone`, text of the chat template that is left out right before the turn, such as the tag of the user."""
    turn: str
    """The user turn. Placeholders: `{{problem}}`, and with `form: alone` `{{thought}}`, all that was committed so far."""
    prefill: str
    """The beginning of the reply; the label follows it."""
    reply: Literal["after_thought", "in_thought", "plain"] = "after_thought"
    """Where the reply begins: after an empty thought, inside one, or without one."""
    labels: tuple[Text, ...]
    """Labels of the options, in order; each must be a single token of the engine after `prefill`."""

    def __post_init__(self) -> None:
        alone, choice = self.form == "alone", isinstance(self, ChoosePrompt)
        needed = [*(["candidates"] if choice else []), *(["problem"] if alone else []), *(["thought"] if alone and not choice else [])]
        _check_places("turn", self.turn, needed, ["problem", *(["none"] if choice else []), *(["thought"] if alone else [])])
        if self.omit and not alone:
            raise ValueError("`omit` is about the beginning of a separate chat; set `form: alone`, or drop it")


class Options(NamedTuple):
    """The labels of a choice among some candidates."""

    all: tuple[str, ...]
    labels: tuple[str, ...]
    """Those of the candidates."""
    none: int | None
    """Where among all the label of the option stands that rejects all of them; None: there is none."""


class ChoosePrompt(Question, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a `choose` stage asks for the best candidate (SpecCoT 3.4, SCoT 3.4)."""

    turn: str = f"{CHOOSE_INTRO}{{{{candidates}}}}{CHOOSE_ASKED}"
    """The user turn. Further placeholders: `{{candidates}}`, and `{{none}}` for the text `none` if the stage may reject."""
    candidate: str = "[{{label}}] {{candidate}}\n\n"
    """How each candidate is shown. Text after it is left out if the candidate ends with it."""
    none: str = NONE
    """Text about the option that rejects all candidates."""
    none_at: Literal["first", "last"] = "first"
    """The label of that option: the first of all, or the one after the last candidate's."""
    prefill: str = CHOOSE_PREFILL
    labels: tuple[Text, ...] = tuple(LABELS)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_places("candidate", self.candidate, ["label", "candidate"])
        _check_places("none", self.none, [], ["label"])

    def options(self, candidates: int, reject: bool) -> Options:
        """The options of a choice among that many candidates, one of which rejects them all where the stage may `reject`."""
        first = self.none_at == "first"
        used = self.labels[first and not reject : candidates + (first or reject)]
        none = None if not reject else 0 if first else len(used) - 1
        return Options(used, tuple(label for place, label in enumerate(used) if place != none), none)


class ChooseThoughtPrompt(ChoosePrompt, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same for whole thoughts (SCoT 3.4), which are shown without their closing tag."""

    turn: str = f"{CHOOSE_THOUGHT_INTRO}{{{{candidates}}}}{CHOOSE_ASKED}"


class ScorePrompt(Question, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a `score` stage asks for a rating of the last step, 0 to 9 (SpecReason 4.1)."""

    turn: str = SCORE_QUESTION
    prefill: str = SCORE_PREFILL
    labels: Annotated[tuple[Text, ...], Meta(min_length=10, max_length=10)] = tuple(string.digits)
    """The ten ratings, starting with 0."""


class Prompts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All texts of a graph."""

    system: str | None = None
    """The system message; null: whatever the chat template does without one."""
    problem: str = f"{{{{problem}}}}{INSTRUCTION}"
    """How a problem is asked. Placeholder: `{{problem}}`."""
    options: str = "\n\n{{options}}\n\nOne option is right. The final answer is its letter alone: {{letters}}."
    """Text after a multiple-choice problem that does not list its options; empty: nothing. Placeholders: `{{options}}`, a line each, and
    `{{letters}}`: A, B, C or D."""
    option: str = "({{letter}}) {{option}}"
    """One line of `{{options}}`. Placeholders: `{{letter}}`, `{{option}}`."""
    delimiter: Text | Annotated[tuple[Text, ...], Meta(min_length=1)] = DELIMITER
    """The text that ends a step, or several, each of which does."""
    thought: Marks = Marks()
    """The reasoning tags."""
    trial: str = "\\boxed{"
    """How an answer begins that is asked for before the thought is over, behind the closing reasoning tag (`until.answer_confident`)."""
    choose: ChoosePrompt = ChoosePrompt()
    """The question of `choose` stages about steps."""
    choose_thought: ChooseThoughtPrompt = ChooseThoughtPrompt()
    """The question of `choose` stages about whole thoughts."""
    score: ScorePrompt = ScorePrompt()
    """The question of `score` stages."""

    def __post_init__(self) -> None:
        _check_places("problem", self.problem, ["problem"])
        _check_places("options", self.options, ["options"] if self.options else [], ["letters"])
        _check_places("option", self.option, ["letter", "option"])
        _check_places("trial", self.trial, [])

    @property
    def delimiters(self) -> tuple[str, ...]:
        """The texts that end a step."""
        return (self.delimiter,) if isinstance(self.delimiter, str) else self.delimiter

    def before(self, history: Sequence[Message] = ()) -> tuple[Message, ...]:
        """The chat before a problem: its own `history`, behind the message of the system unless it begins with another one."""
        own = self.system is None or (history and history[0].role == "system")
        return tuple(history) if own else (Message("system", str(self.system)), *history)

    def asked(self, problem: str, options: Sequence[str] = ()) -> str:
        """What the user says who asks a problem."""
        return filled(self.problem, {"problem": self.with_options(problem, options)})

    def with_options(self, problem: str, options: Sequence[str]) -> str:
        """The text of a problem followed by its options, if it has any."""
        if not options:
            return problem
        lines = [filled(self.option, {"letter": letter, "option": option}) for letter, option in zip(LETTERS, options, strict=False)]
        others, last = LETTERS[: len(options) - 1], LETTERS[len(options) - 1]
        letters = f"{', '.join(others)} or {last}" if others else last
        return problem + filled(self.options, {"options": "\n".join(lines), "letters": letters})


DEFAULT_PROMPTS = Prompts()
