"""SCoT's published training data as they are: one record of a file enters, a typed row leaves, or a `Flaw` that says what is wrong with it.

Both files are text in which the chat template of DeepSeek-R1 is written out. What they say is taken out of it, so that it can be said with
the chat template of the model that is trained; how it is laid out is known from the wording in `graphs/prompts/scot.yaml`.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from msgspec import Struct

from pipeline.bundled import find_file
from pipeline.data.rows import Flaw
from pipeline.graph.loader import load_prompts
from pipeline.graph.prompts import THINK_CLOSE, THINK_OPEN, ChoosePrompt, filled, pieces

BEGIN, END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"  # noqa: RUF001 - as published
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"  # noqa: RUF001 - as published
"""Control tokens of R1's chat template, as text."""
WORDING = "scot"
"""The prompts file with the wording of the published choices."""


class Thought(Struct, frozen=True):
    """A problem, and what the target thought about it: a row of the data for the draft (SCoT 3.3)."""

    problem: str
    thought: str
    """All that follows `<think>` and its line break, `</think>` included where the thought was closed."""

    @property
    def closed(self) -> bool:
        """Whether the thought came to its end; of the published ones six were cut."""
        return self.thought.endswith(THINK_CLOSE)


class Choice(Struct, frozen=True):
    """A problem, drafted thoughts, and which of these are right: a row of the data for the target (SCoT 3.4)."""

    problem: str
    thoughts: tuple[str, ...]
    right: tuple[int, ...]
    """Indices of the right thoughts, from 0; empty: all are wrong."""


def parse_thought(record: Mapping[str, Any]) -> Thought:
    """The row `{"pred": TEXT}`; raises `Flaw`. The doubled token at its beginning is the template's and the tokenizer's, one each."""
    text = record["pred"]
    if not isinstance(text, str):
        raise Flaw(f"`pred` is {type(text).__name__}, expected text")
    while text.startswith(BEGIN):
        text = text.removeprefix(BEGIN)
    problem, asked, reply = text.removeprefix(USER).partition(ASSISTANT)
    _, thinks, thought = reply.partition(THINK_OPEN)
    if not (text.startswith(USER) and asked and thinks and problem.strip()):
        raise Flaw(f"`pred` is not {USER}PROBLEM{ASSISTANT}{THINK_OPEN}THOUGHT, as in the published file")
    thought = thought.removeprefix("\n").removesuffix(END)
    if not thought.removesuffix(THINK_CLOSE).strip():
        raise Flaw(f"`pred` has no thought after {THINK_OPEN}")
    return Thought(problem, thought)


def parse_choice(record: Mapping[str, Any]) -> Choice:
    """The row `{"input": TEXT, "label": [NUMBER, ...]}`; raises `Flaw`. Numbers count from 1, and the last one says that all are wrong."""
    text, asked = record["input"], wording()
    if not isinstance(text, str):
        raise Flaw(f"`input` is {type(text).__name__}, expected text")
    intro, _, between, *_ = pieces(asked.turn)
    text, end = text.removeprefix(BEGIN).removeprefix(USER), f"{ASSISTANT}{asked.prefill}"
    if not (text.startswith(intro) and text.endswith(end) and between in text):
        raise Flaw(f"`input` is not a choice in the published wording: it begins {text[:40]!r} and ends {text[-40:]!r}")
    problem, _, rest = text.removeprefix(intro).removesuffix(end).partition(between)
    thoughts = _thoughts(rest, asked)
    return Choice(problem, thoughts, _right(record["label"], len(thoughts)))


@cache
def wording() -> ChoosePrompt:
    """How the published choices are asked."""
    return load_prompts(find_file(WORDING, "prompts file")).choose_thought


def _thoughts(rest: str, asked: ChoosePrompt) -> tuple[str, ...]:
    """The thoughts in the part of a question that lists them, the option that rejects all included. Raises `Flaw`."""
    found: list[str] = []
    while rest != filled(asked.none, {"label": str(len(found) + 1)}):
        before, after = _around(asked, len(found) + 1)
        following, _ = _around(asked, len(found) + 2)
        end = rest.find(after + following, len(before))
        if not rest.startswith(before) or end < 0:
            raise Flaw(f"`input` lists {len(found)} thoughts and then neither {before!r} nor the option that rejects all")
        found.append(rest[len(before) : end])
        rest = rest[end + len(after) :]
    if not found:
        raise Flaw("`input` lists no thoughts")
    return tuple(found)


def _around(asked: ChoosePrompt, number: int) -> tuple[str, str]:
    """The text before and after the thought with this number."""
    before, _, after = asked.candidate.partition("{{candidate}}")
    return filled(before, {"label": str(number)}), after


def _right(label: object, count: int) -> tuple[int, ...]:
    """The indices that a list of numbers means; raises `Flaw` where it is none, or says two things that cannot both be."""
    if not isinstance(label, list) or not label:
        raise Flaw(f"`label` is {label!r}; expected a list of the numbers of all right options, at least one")
    numbers: Sequence[Any] = label
    if wrong := [each for each in numbers if isinstance(each, bool) or not isinstance(each, int) or not 1 <= each <= count + 1]:
        raise Flaw(f"`label` has {wrong[0]!r}; expected numbers from 1 to {count + 1}, of which {count + 1} says that all are wrong")
    if len(set(numbers)) < len(numbers):
        raise Flaw(f"`label` is {numbers}, which has a number twice")
    if count + 1 in numbers and len(numbers) > 1:
        raise Flaw(f"`label` is {numbers}, and {count + 1} says that all of them are wrong")
    return tuple(number - 1 for number in numbers if number <= count)
