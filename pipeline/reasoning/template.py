"""Cuts what a chat template renders into its own parts and the places of the texts that users, data and models wrote.

Placeholders stand for the texts, so that a template is rendered a few times at the start and never for a problem.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pipeline.errors import GraphError
from pipeline.grading.stated import CLOSE, OPEN
from pipeline.graph.prompts import Marks

WHITE_SPACE = "".join(filter(str.isspace, map(chr, range(0x3001))))
"""All that `str.strip`, which templates use, takes for white space."""


class Margins(NamedTuple):
    """The white space that a template strips from a text, as the characters that `str.lstrip` and `str.rstrip` take."""

    left: str
    right: str


def own_marks(special: Iterable[str], thought: Marks) -> Marks:
    """The reasoning tags of a model with these `special` tokens: its own (`[THINK]`) where it lacks the usual ones and no others are asked
    for than these; else `thought`."""
    special = list(special)
    if thought == Marks() and not {thought.open, thought.close} <= {*special}:
        opens, closes = (next((text for text in special if mark.fullmatch(text)), None) for mark in (OPEN, CLOSE))
        return Marks(open=opens, close=closes) if opens and closes else thought
    return thought


def parts_of(text: str, *placeholders: str, where: str) -> list[str]:
    """The parts of the rendered `text` around the `placeholders`, one more than there are of these.

    Raises `GraphError` at `where` for a template that leaves one of them out, says it twice, or says them in another order.
    """
    parts, rest = [], text
    for placeholder in placeholders:
        if (count := text.count(placeholder)) != 1:
            raise GraphError(where, f"shows a message of the chat {count} times, not once" if count else "omits a message of the chat")
        before, found, rest = rest.partition(placeholder)
        if not found:
            raise GraphError(where, "changes the order of the messages")
        parts.append(before)
    return [*parts, rest]


def stripped_margins(around: Callable[[str], Sequence[str]], place: int = 0) -> Margins:
    """The margins that a template strips from a text, where `around` gives its parts around all texts, of which that at `place` has the
    argument on either side.

    A template is taken to leave the inside of a text alone.
    """
    before, after = around("")[place : place + 2]
    doubled = {character: around(2 * character)[place : place + 2] for character in WHITE_SPACE}
    left = "".join(character for character, (start, _) in doubled.items() if start == before)
    right = "".join(character for character, (_, end) in doubled.items() if end == after)
    return Margins(left, right)
