"""The texts that a graph says to its models, with named places for problems, thoughts and candidates: the block `prompts` of a graph file.

Plain text: `{{problem}}` stands for the problem, braces that are not doubled stand for themselves, nothing is computed. The defaults are
this package's own wording, which the bundled models were trained on; `graphs/prompts/` has those that the papers published.
"""

import re
import string
from collections.abc import Iterator, Mapping, Sequence
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
Label = Annotated[str, Meta(min_length=1)]


class Marks(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The special tokens around a thought, as they are written; a model that has neither is taken to mark no thoughts."""

    open: str = THINK_OPEN
    """Text that begins a thought."""
    close: str = THINK_CLOSE
    """Text that ends a thought."""


class Message(Struct, frozen=True):
    """One message of a chat."""

    role: str
    """`system`, `user` or `assistant`."""
    content: str
    """What is said."""


class Example(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A problem with its answer, said before the problem that is asked (few-shot)."""

    problem: str
    """In the same wording as the problem that is asked."""
    reply: str
    """What the assistant says, as it stands."""


class Question(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a verifier is asked: a turn of the user, and a reply that goes on with one of the labels, one token."""

    form: Literal["appended", "alone"] = "appended"
    """`appended`: behind the thought, whose keys and values are in the engine's cache; `alone`: a chat of its own."""
    turn: str
    """What the user says. Places: `{{problem}}`, and, where it stands alone, `{{thought}}`: all that was committed."""
    prefill: str
    """How the reply begins."""
    reply: Literal["after_thought", "in_thought", "plain"] = "after_thought"
    """Where the reply begins: behind an empty thought, within one, or without one."""
    labels: tuple[Label, ...]
    """Names of the options, in order; each must be a single token of the engine behind `prefill`."""


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
    """Also has the places `{{candidates}}`, and `{{none}}`, where `none` is said if the stage may reject."""
    candidate: str = "[{{label}}] {{candidate}}\n\n"
    """How each candidate is shown. What stands behind it is left out where the candidate ends with that."""
    none: str = NONE
    """What is said of the option that rejects all candidates."""
    none_at: Literal["first", "last"] = "first"
    """Which of the labels that option has: the first of all, or the one behind that of the last candidate."""
    prefill: str = CHOOSE_PREFILL
    labels: tuple[Label, ...] = tuple(LABELS)

    def options(self, candidates: int, reject: bool) -> Options:
        """The options of a choice among so many candidates, one of which rejects them all where the stage may `reject`."""
        first = self.none_at == "first"
        used = self.labels[first and not reject : candidates + (first or reject)]
        none = None if not reject else 0 if first else len(used) - 1
        return Options(used, tuple(label for place, label in enumerate(used) if place != none), none)


class ChooseThoughtPrompt(ChoosePrompt, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same where candidates are whole thoughts (SCoT 3.4), which are shown without the mark that closes them."""

    turn: str = f"{CHOOSE_THOUGHT_INTRO}{{{{candidates}}}}{CHOOSE_ASKED}"


class ScorePrompt(Question, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a `score` stage asks for the utility of the last step, 0 to 9 (SpecReason 4.1)."""

    turn: str = SCORE_QUESTION
    prefill: str = SCORE_PREFILL
    labels: Annotated[tuple[Label, ...], Meta(min_length=10, max_length=10)] = tuple(string.digits)
    """The ten ratings, from 0 on."""


class Prompts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All texts of a graph. A stage may have a block of its own, whose keys go before those of the graph."""

    system: str | None = None
    """The system message; None: what the chat template says without one."""
    problem: str = f"{{{{problem}}}}{INSTRUCTION}"
    """How a problem is asked."""
    options: str = "\n\n{{options}}\n\nOne option is right. The final answer is its letter alone: {{letters}}."
    """What follows a multiple-choice problem whose text does not show its options; empty: nothing. Places: `{{options}}`, a line each, and
    `{{letters}}`: A, B, C or D."""
    option: str = "({{letter}}) {{option}}"
    """The line of an option."""
    examples: tuple[Example, ...] = ()
    """Solved examples that stand before the problem, as turns of the conversation."""
    delimiter: Annotated[str, Meta(min_length=1)] = DELIMITER
    """The text that ends a step."""
    thought: Marks = Marks()
    choose: ChoosePrompt = ChoosePrompt()
    """Of `choose` stages that choose a step."""
    choose_thought: ChooseThoughtPrompt = ChooseThoughtPrompt()
    """Of `choose` stages that choose a whole thought."""
    score: ScorePrompt = ScorePrompt()

    @property
    def opening(self) -> tuple[object, ...]:
        """What decides how the prompts of two stages begin."""
        return self.system, self.problem, self.options, self.option, self.examples, self.thought

    def before(self, history: Sequence[Message] = ()) -> tuple[Message, ...]:
        """The chat before a problem: the message of the system, which the problem's own `history` may begin with, the examples and the rest
        of that history."""
        own = history[:1] if history and history[0].role == "system" else ()
        system = own or ([] if self.system is None else [Message("system", self.system)])
        turns = ((Message("user", self.asked(each.problem)), Message("assistant", each.reply)) for each in self.examples)
        return (*system, *(message for turn in turns for message in turn), *history[len(own) :])

    def asked(self, problem: str, options: Sequence[str] = ()) -> str:
        """What the user says who asks a problem."""
        return filled(self.problem, {"problem": self.with_options(problem, options)})

    def with_options(self, problem: str, options: Sequence[str]) -> str:
        """The text of a problem with its options behind it, where it has any."""
        if not options:
            return problem
        lines = [filled(self.option, {"letter": letter, "option": option}) for letter, option in zip(LETTERS, options, strict=False)]
        others, last = LETTERS[: len(options) - 1], LETTERS[len(options) - 1]
        letters = f"{', '.join(others)} or {last}" if others else last
        return problem + filled(self.options, {"options": "\n".join(lines), "letters": letters})


DEFAULT_PROMPTS = Prompts()


@lru_cache(maxsize=256)
def pieces(text: str) -> tuple[str, ...]:
    """`text` cut at its places: what is said, the name of a place, what is said, and so on."""
    return tuple(_PLACE.split(text))


def filled(text: str, values: Mapping[str, str]) -> str:
    """`text` with a value for each of its places."""
    return _PLACE.sub(lambda found: values[found[1]], text)


def flaws(prompts: Prompts) -> Iterator[tuple[str, str]]:
    """Everything that is wrong with `prompts` beyond their types, each as a path and one clause."""
    yield from _flaws_in("problem", prompts.problem, ["problem"], [])
    yield from _flaws_in("options", prompts.options, ["options"] if prompts.options else [], ["letters"])
    yield from _flaws_in("option", prompts.option, ["letter", "option"], [])
    for field in ("choose", "choose_thought"):
        asked: ChoosePrompt = getattr(prompts, field)
        yield from _flaws_in_question(field, asked, ["candidates"], ["none"])
        yield from _flaws_in(f"{field}.candidate", asked.candidate, ["label", "candidate"], [])
        yield from _flaws_in(f"{field}.none", asked.none, [], ["label"])
    yield from _flaws_in_question("score", prompts.score, [], [])


def _flaws_in_question(field: str, asked: Question, needed: Sequence[str], allowed: Sequence[str]) -> Iterator[tuple[str, str]]:
    alone = asked.form == "alone"
    own = [] if needed else ["thought"]
    needed = [*needed, *(["problem", *own] if alone else [])]
    yield from _flaws_in(f"{field}.turn", asked.turn, needed, [*allowed, "problem", *(["thought"] if alone else [])])
    if (doubled := next((label for label in asked.labels if asked.labels.count(label) > 1), None)) is not None:
        yield f"{field}.labels", f"names {doubled!r} twice"


def _flaws_in(field: str, text: str, needed: Sequence[str], allowed: Sequence[str]) -> Iterator[tuple[str, str]]:
    found, known = pieces(text)[1::2], [*needed, *allowed]
    for name in found:
        if name not in known:
            what = did_you_mean(name, known) if known else "this text has no places"
            yield field, f"has an unknown place {{{{{name}}}}}; {what}"
        elif found.count(name) > 1:
            yield field, f"has the place {{{{{name}}}}} {found.count(name)} times; say it once"
    for name in needed:
        if name not in found:
            yield field, f"has no place for the {name}; write {{{{{name}}}}} where it belongs"
