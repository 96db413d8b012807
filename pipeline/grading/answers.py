"""Whether an answer equals a reference, as far as their texts tell without algebra: two texts enter, a `Grade` or None leaves.

Equal means the same text in one notation (`notation`), the same exact number, or the same letters of a multiple choice. Where
that decides nothing, `grader` asks a worker process for mathematical equivalence. No expression is evaluated here, nothing here raises,
and time is linear in the length of the texts.
"""

import re
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct

from pipeline.grading.marks import parts_of
from pipeline.grading.notation import clean, compact, visible
from pipeline.grading.stated import Form, choice, declared, only_option, segments
from pipeline.graph.plugins import GRADER_KINDS, grader_names

Kind = str
"""How a problem's answers are graded: one of `GRADER_KINDS`, or the name of a grader of others (`graph.plugins`)."""
Canonical = Fraction | str
LONGEST = 2000
"""Answers of more characters are compared as they are."""

MAX_DIGITS = 400
"""Texts of more characters are not read as numbers."""
MAX_EXPONENT = 1000
"""The greatest power of ten, either way."""

_DECIMALS = r"(?:\d+\.?\d*|\.\d+)"
_GROUPED = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,3}(?: \d{3})+(?:\.\d+)?|\d{1,3}(?:'\d{3})+(?:\.\d+)?|\d{1,3}(?:_\d{3})+(?:\.\d+)?"
_SEPARATORS = re.compile("[ ,'_]")
_TIMES = r"\s*(?:\\times|\\cdot|\*|x)\s*"
_TEN = r"10\s*\^\s*(?:\{\s*([+-]?\d+)\s*\}|([+-]?\d+))"
_SIGNED = rf"[+-]?\s?(?:{_GROUPED}|{_DECIMALS})"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)(?:(?P<decimal>{_DECIMALS})(?:[eE](?P<exponent>[+-]?\d+)|{_TIMES}{_TEN})?"
    rf"|{_TEN}|(?P<grouped>{_GROUPED})"
    rf"|(?P<whole>\d+) (?P<over>\d+)/(?P<under>\d+)|(?P<whole_>\d+)\\frac\{{(?P<over_>\d+)\}}\{{(?P<under_>\d+)\}}"
    rf"|(?P<start>\d*\.\d*)\\overline\{{(?P<again>\d+)\}})",
    re.ASCII,
)
_OF_BASE = re.compile(r"[+-]?0(?:x[0-9a-f]+|b[01]+|o[0-7]+)", re.IGNORECASE)
_DECIMAL = re.compile(r"[+-]?\d*\.\d+(?:[eE][+-]?\d+)?", re.ASCII)
DOUBLE = 15
"""Decimals of this many significant digits hold a number in double precision; of all their digits no more than these are sure."""
_RATIO = re.compile(rf"([+-]?)\\frac\{{({_SIGNED})\}}\{{({_SIGNED})\}}|({_SIGNED})/({_SIGNED})", re.ASCII)
_MAX_NUMERIC = 500
_PERCENT = re.compile(r"(?:%|percent)[\s.$*_]*\Z", re.ASCII)
_FIGURE = re.compile(
    r"[+-]?(?:\\frac\{[+-]?[\d.]+\}\{[\d.]+\}|\d+ \d+/\d+"
    r"|(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+(?![\d,]*,\d{3}(?!\d)))(?:\.\d+)?(?:[eE][+-]?\d+|/\d+(?:\.\d+)?)?|\d+(?:\.\d+)?|\.\d+)",
    re.ASCII,
)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_UNLIKE = re.compile(r"\b(?:not|no|never|neither|than|least|most|between|except|unless|if|or)\b|n't\b", re.IGNORECASE)
_BOUND = re.compile(r"\s*\w?\s*(?:[<>]|\\[gln]eq?(?![a-z]))")
_POWER = re.compile(r"(?<=[A-Za-z}])\s?\^\s?\{?[23]\}?", re.ASCII)


class Grade(Struct, frozen=True):
    """Whether an answer is right, and why it could not be said if it could not."""

    correct: bool | None
    """None where there was nothing to compare, or the grader itself failed."""
    rule: str | None = None
    """What decided it: `equal numbers`, `different letters`; None where the answers were not compared to the end."""
    why: str | None = None
    """What kept them from that (a time limit, a lost grader); None where nothing did."""


def taken(kind: Kind, answer: str) -> str:
    """The part of an answer or of a reference that is compared: what it marks as its answer, or else all of it."""
    if kind not in GRADER_KINDS:
        return answer
    answer = visible(answer)
    form: Form | None = {"numeric": "number", "letter": "letter"}.get(kind)  # type: ignore[assignment]
    found = declared(answer, form)
    if found is None and kind == "math" and len(formulas := segments(answer)) == 1 and _is_sentence(clean(answer)):
        found = formulas[0]
    if found is None and kind == "letter" and choice(answer) is None:
        found = only_option(answer[:_MAX_NUMERIC])
    return found or parts_of(answer).answer


def same_answer(a: str, b: str) -> bool:
    """True if two answers are equal in one notation or as rational numbers; percent, degree and dollar signs are ignored."""
    return a.strip() == b.strip() or canonical(a) == canonical(b)


def canonical(text: str) -> Canonical:
    """What answers have in common that are the same by `same_answer`, and no others: the number that they are, or their text."""
    plain = text.strip()
    if len(plain) > LONGEST:
        return plain
    found = _read(plain)
    return found.value if found.value is not None else found.compact or f"\0{plain}"


def as_kind(name: str | None) -> Kind:
    """The kind of grading called `name`; `math` where `name` is None or no kind is called so."""
    return name if name is not None and is_kind(name) else "math"


def is_kind(name: str) -> bool:
    """True if answers can be graded in this way here: the kind is built in, or an installed package registers it."""
    return name in GRADER_KINDS or name in grader_names()


def form_of(kind: Kind, reference: str) -> Form:
    """What a text that answers a problem with this reference is searched for."""
    reference = taken(kind, reference)
    if kind == "letter" and choice(reference) is not None:
        return "letter"
    return "number" if kind == "numeric" or _read(reference).value is not None else "expression"


def quick_grade(kind: Kind, answer: str, reference: str) -> bool | None:
    """True if `answer` is right; None where only a worker process can decide: mathematical equivalence, and announced graders."""
    found = ruling(kind, taken(kind, answer), taken(kind, reference))
    return None if found is None else found.correct


def ruling(kind: Kind, answer: str, reference: str) -> Grade | None:
    """What the texts of an answer and of its reference decide, both as they were `taken`; None where only a worker process can."""
    if kind not in GRADER_KINDS:
        return None
    if answer.strip() == reference.strip():
        return Grade(True, "the same text")
    letters, options = choice(answer), choice(reference)
    if options and (kind == "letter" or (letters and len(options) == 1)):
        return _told("letters", letters == options)
    if max(len(answer), len(reference)) > LONGEST:
        return Grade(False, why=f"longer than {LONGEST:,} characters")
    mine, theirs = _read(answer), _read(reference)
    values = mine.value, theirs.value
    if None in values and (kind == "numeric" or (values[1] is not None and _is_sentence(mine.cleaned))):
        values = _figure(answer), _figure(reference)
    if values[0] is not None and values[1] is not None:
        if 0 < abs(values[0] - values[1]) < precision(theirs.compact):
            return _told("numbers, as far as the reference is rounded", True)
        return _numbers(values[0], values[1], is_percentage(answer), is_percentage(reference))
    if mine.compact == theirs.compact != "":
        return Grade(True, "the same text in one notation")
    return Grade(False, "different texts") if kind == "letter" else None


def is_percentage(text: str) -> bool:
    """True if `text` ends in a percent sign or in the word percent."""
    return _PERCENT.search(visible(text[-20:])) is not None


def number(text: str) -> Fraction | None:
    """The exact number that a whole `text`, as `notation` leaves it, is: an integer, a decimal, grouped digits, a fraction, a mixed number,
    a repeating decimal or a power of ten (`1e-3`, `6.02\\times10^{23}`); None for anything else, and for one that is too long or large."""
    if len(text) > MAX_DIGITS or not any(char.isdigit() for char in text):
        return None
    if _OF_BASE.fullmatch(text):
        return Fraction(int(text, 0))
    if (found := _NUMBER.fullmatch(text)) and (value := _unsigned(found)) is not None:
        return -value if found["sign"] == "-" else value
    if ratio := _RATIO.fullmatch(text):
        over, under = (Fraction(_SEPARATORS.sub("", each)) for each in (ratio[2] or ratio[4], ratio[3] or ratio[5]))
        return None if not under else -over / under if ratio[1] == "-" else over / under
    return None


def precision(text: str) -> Fraction:
    """How far from the decimal `text` a number may be that rounds to it in double precision; 0 for 0 and for anything but a decimal."""
    if _DECIMAL.fullmatch(text) is None or len(text) > MAX_DIGITS:
        return Fraction(0)
    digits = Decimal(text)
    figures = len(digits.as_tuple().digits)
    last = digits.adjusted() + 1 - (DOUBLE if figures <= DOUBLE + 2 else figures)
    return Fraction(10) ** last / 2 if digits and abs(last) < 2 * MAX_EXPONENT else Fraction(0)


def _unsigned(found: re.Match[str]) -> Fraction | None:
    if found["grouped"]:
        return Fraction(_SEPARATORS.sub("", found["grouped"]))
    if whole := found["whole"] or found["whole_"]:
        over, under = found["over"] or found["over_"], int(found["under"] or found["under_"])
        return int(whole) + Fraction(int(over), under) if int(over) < under and over[0] != "0" else None
    if found["again"]:
        places = len(found["start"].partition(".")[2])
        repeated = Fraction(int(found["again"]), (10 ** len(found["again"]) - 1) * 10**places)
        return Fraction(found["start"] if found["start"] != "." else 0) + repeated
    exponent = int(found["exponent"] or next((each for each in found.group(4, 5, 6, 7) if each), 0))
    if abs(exponent) > MAX_EXPONENT:
        return None
    return Fraction(found["decimal"] or 1) * Fraction(10) ** exponent


class _Text(NamedTuple):
    """A text as it is compared."""

    cleaned: str
    compact: str
    value: Fraction | None
    """The number that it is; in `1, 234` the space says that there are two."""


@lru_cache(2048)
def _read(text: str) -> _Text:
    cleaned = clean(text)
    joined = compact(cleaned)
    return _Text(cleaned, joined, None if ", " in cleaned else number(joined))


def _is_sentence(cleaned: str) -> bool:
    """True if a text is a sentence that says what something is, and not what it is not, nor a bound."""
    return len(_WORD.findall(cleaned)) > 2 and not _UNLIKE.search(cleaned)


def _figure(text: str) -> Fraction | None:
    """The one number in a text, of an equation in its last side; None unless there is exactly one."""
    text = clean(text[:_MAX_NUMERIC].rpartition("=")[2]).replace(r"\unit", " ").replace(r"\dollar", " ").replace("{,}", ",")
    found = _FIGURE.findall(_POWER.sub("", text))
    if _BOUND.match(text):
        return None
    return number(found[0].replace(" ", "") if "/" not in found[0] else found[0]) if len(found) == 1 else None


def _told(what: str, correct: bool) -> Grade:
    return Grade(correct, f"{'equal' if correct else 'different'} {what}")


def _numbers(answer: Fraction, reference: Fraction, percent: bool, expected: bool) -> Grade:
    """Whether two numbers are equal; where one text alone is a percentage, whether it denotes the other number (50% is 0.5)."""
    if answer != reference and percent != expected:
        hundredth = (answer / 100, reference) if percent else (answer, reference / 100)
        return _told("numbers, one of them a percentage", hundredth[0] == hundredth[1])
    return _told("numbers", answer == reference)
