"""Multiple choice as data sets write it: the columns of one row enter, its options in order and the letter of its answer leave. Pure.

An answer may be a letter, a label of the data set's own, the text of an option, or a number of which it must be known what it counts.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from pipeline.data.rows import Flaw, as_text, kind_of
from pipeline.graph.prompts import LETTERS

MAX_OPTIONS = len(LETTERS)
FROM_0, FROM_1, SAID = "positions counted from 0", "positions counted from 1", "the text of an option"
"""What numbers as answers may be."""


class ProblemOptions(NamedTuple):
    """The options of a problem."""

    texts: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """What the data set calls them, where it says so; else empty."""


def options_of(name: str, value: Any) -> ProblemOptions:
    """The options in a column: an array of texts or numbers, or of objects with `text` and `label`; an object of arrays `text` and `label`
    (ARC), or of texts by letter (MedQA); such a thing as JSON. None where it is null or empty; raises `Flaw` for anything else."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise Flaw(f"`{name}` is text but not JSON ({error}), expected an array of options") from None
    if value is None or value == "" or value == [] or value == {}:
        return ProblemOptions()
    texts, labels = _parts(name, value)
    if len(texts) > MAX_OPTIONS:
        raise Flaw(f"`{name}` has {len(texts):,} texts, more than the {MAX_OPTIONS} that have a letter")
    said = tuple((as_text(name, each) or "").strip() for each in texts)
    if not all(said):
        raise Flaw(f"option {LETTERS[said.index('')]} of `{name}` is empty")
    named = tuple((as_text(name, each) or "").strip() for each in labels)
    if len(set(named)) < len(named) or (named and len(named) != len(said)):
        raise Flaw(f"`{name}` has {len(said)} texts and the labels {', '.join(named)}, expected one label per text")
    return ProblemOptions(_unlabelled(said), named)


def _parts(name: str, value: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """Texts and labels as they are written."""
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        return value["text"], value.get("label") or ()
    if isinstance(value, dict) and all(isinstance(key, str) and len(key) <= 2 for key in value):
        kept = {key: text for key, text in value.items() if text is not None}  # Arrow gives every row the letters of the longest
        return list(kept.values()), list(kept)
    if isinstance(value, list) and all(isinstance(each, dict) and "text" in each for each in value):
        return [each["text"] for each in value], [each["label"] for each in value if each.get("label") is not None]
    if isinstance(value, list) and all(isinstance(each, str | int | float) for each in value):
        return value, ()
    raise Flaw(f"`{name}` is {kind_of(value)} without options; expected an array of texts, or of objects with `text` and `label`")


def _unlabelled(texts: tuple[str, ...]) -> tuple[str, ...]:
    """The texts without letters that all of them begin with: `A)21` is 21 (AQuA)."""
    found = [re.match(rf"\(?{letter}[).:]\s*(?=\S)", text) for letter, text in zip(LETTERS, texts, strict=False)]
    return tuple(text[match.end() :] for text, match in zip(texts, found, strict=True) if match) if all(found) else texts


def shown_in(problem: str, texts: Sequence[str]) -> bool:
    """Whether a problem's text shows its options already, each after its letter."""
    place = 0
    for letter, text in zip(LETTERS, texts, strict=False):
        found = re.compile(rf"(?<!\w){letter}\W{{1,6}}?\s*{re.escape(text)}").search(problem, place)
        if found is None:
            return False
        place = found.end()
    return bool(texts)


def whole_number(answer: Any, options: ProblemOptions) -> int | None:
    """The answer as a number that may count options; None where it is another one, or a label of the data set's own."""
    text = str(answer).strip() if isinstance(answer, int | float | str) and not isinstance(answer, bool) else ""
    found = re.fullmatch(r"(\d{1,9})(?:\.0)?", text)
    return int(found[1]) if found and found[1] not in options.labels else None


def places(number: int, options: ProblemOptions) -> dict[str, int]:
    """Which option a number is, by each way to count that has one there."""
    said = {FROM_0: number, FROM_1: number - 1}
    by_place = {way: place for way, place in said.items() if 0 <= place < len(options.texts)}
    equal = [place for place, text in enumerate(options.texts) if text in (str(number), f"{number}.0")]
    return by_place | ({SAID: equal[0]} if len(equal) == 1 else {})


def ways_to_count(rows: Iterable[tuple[Any, ProblemOptions]]) -> frozenset[str]:
    """What the numbers of all rows may be; rows that none of them fits do not count."""
    left = frozenset((FROM_0, FROM_1, SAID))
    for answer, options in rows:
        number = whole_number(answer, options) if options.texts else None
        if number is not None and (here := places(number, options)):
            left &= here.keys()
    return left


def letter_of(name: str, answer: Any, options: ProblemOptions, ways: "frozenset[str] | None" = None) -> str | None:
    """The letter of an answer; None where there is none. `ways`: how numbers in this column may count. Raises `Flaw` where it is none of
    the options, or cannot be known which."""
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    text = (as_text(name, answer) or "").strip()
    if not text:
        return None
    number = whole_number(answer, options)
    if number is not None:
        found = {place for way, place in places(number, options).items() if way in (ways or ())}
        doubt = "whether that is a position counted from 0 or from 1, or an option's text, cannot be determined from the other rows"
    else:
        found = set(_named(text, options))
        doubt = "which matches several options"
    if len(found) == 1:
        return LETTERS[found.pop()]
    if found or (number is not None and places(number, options)):
        raise Flaw(f"`{name}` is {text!r}: {doubt}; write the letter")
    last = options.labels[-1] if options.labels else LETTERS[len(options.texts) - 1]
    what = f"which is not one of its {len(options.texts)} options; expected a letter up to {last}, or the text of an option"
    raise Flaw(f"`{name}` is {text[:100]!r}, {what}")


def _named(text: str, options: ProblemOptions) -> list[int]:
    """The places that a text may mean: that of a label of the data set's own, or else of a letter or of options that say the same."""
    if (both := re.fullmatch(r"\(?([A-Z])[).:]\s*(\S.*)", text)) and _is(options, LETTERS.index(both[1]), both[2]):
        return [LETTERS.index(both[1])]
    bare = re.sub(r"^[(\[*$]*(\w{1,2})[)\].:*$]*$", r"\1", text)
    labels = [label.casefold() for label in options.labels]
    if bare.casefold() in labels:
        return [labels.index(bare.casefold())]
    letter = LETTERS.find(bare.upper()) if len(bare) == 1 and not labels else -1
    by_letter = [letter] if 0 <= letter < len(options.texts) else []
    same = [place for place, each in enumerate(options.texts) if each == text]
    return [*by_letter, *(same or [place for place, each in enumerate(options.texts) if each.casefold() == text.casefold()])]


def _is(options: ProblemOptions, place: int, text: str) -> bool:
    return place < len(options.texts) and options.texts[place] == text


def shuffled(options: Iterable[str], question: str, seed: int) -> tuple[str, ...]:
    """The options in an order that depends on seed, question and texts alone, not on the order they come in."""
    return tuple(sorted(options, key=lambda option: hashlib.blake2b("\0".join((str(seed), question, option)).encode()).digest()))
