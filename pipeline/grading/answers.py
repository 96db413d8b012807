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

from pipeline.grading.notation import clean, compact, visible
from pipeline.grading.plugins import GRADER_KINDS, grader_names
from pipeline.grading.stated import NUMBER, Form, choice, declared, only_option, parts_of, segments

Kind = str
"""How a problem's answers are graded: one of `GRADER_KINDS`, or the name of a grader of others (`plugins`)."""
Canonical = Fraction | str
LONGEST = 2000
"""Answers of more characters are compared as they are."""
MAX_DIGITS = 400
"""Texts of more characters are not read as numbers."""
MAX_EXPONENT = 1000
"""The greatest power of ten, either way."""
DOUBLE = 15
"""Decimals of this many significant digits hold a number in double precision; of all their digits no more than these are sure."""
_SENTENCE = 500
"""Most characters that are searched for the one number or option of a sentence."""

_OF_BASE = re.compile(r"0(?:x[0-9a-f]+|b[01]+|o[0-7]+)", re.IGNORECASE)
_POWER_OF_TEN = re.compile(r"(?:^()|\s*(?:\\times|\\cdot|\*|x)\s*)10\s*\^\s*(?:\{\s*([+-]?\d+)\s*\}|([+-]?\d+))$", re.ASCII)
_DECIMAL = re.compile(r"(\d+\.?\d*|\.\d+)(?:[eE]([+-]?\d+))?", re.ASCII)
_GROUPED = re.compile(r"\d{1,3}([ ,'_])\d{3}(?:\1\d{3})*(?:\.\d+)?", re.ASCII)
_MIXED = re.compile(r"(\d+)(?: |(?=\\))((?:\\frac\{)?[1-9]\d*(?:/|\}\{)\d+\}?)", re.ASCII)
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\{(\d+)\}", re.ASCII)
_RATIO = re.compile(r"\\frac\{([^{}]*)\}\{([^{}]*)\}|([^/]*)/([^/]*)")
_PERCENT = re.compile(r"(?:%|percent)[\s.$*_]*\Z", re.ASCII)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_UNLIKE = re.compile(r"\b(?:not|no|never|neither|than|least|most|between|except|unless|if|or)\b|n't\b", re.IGNORECASE)
_BOUND = re.compile(r"\s*\w?\s*(?:[<>]|\\[gln]eq?(?![a-z]))")
_LESS = re.compile(r"(?<=[A-Za-z}])\s?\^\s?\{?[23]\}?|\\unit|\\dollar", re.ASCII)
"""Ignored beside the number in a text: a power of its unit, and marks."""


class Grade(Struct, frozen=True):
    """Whether an answer is right, or why that is unknown."""

    correct: bool | None
    """None where there was nothing to compare, or the grader itself failed."""
    why: str | None = None
    """Why the comparison did not finish (a time limit, a lost grader); None if it did."""


def extract(kind: Kind, answer: str) -> str:
    """The part of an answer or a reference that is compared: the part marked as the answer, else all of it."""
    if kind not in GRADER_KINDS:
        return answer
    parts, answer = parts_of(answer), visible(answer)
    form: Form | None = "number" if kind == "numeric" else "letter" if kind == "letter" else None
    found = declared(parts, form)
    if found is None and kind == "math" and len(formulas := segments(answer)) == 1 and _is_sentence(clean(answer)):
        found = formulas[0]
    if found is None and kind == "letter" and choice(answer) is None:
        found = only_option(answer[:_SENTENCE])
    return found or parts.answer


def same_answer(a: str, b: str) -> bool:
    """True if two answers are equal in one notation or as rational numbers; percent, degree and dollar signs are ignored."""
    return a.strip() == b.strip() or canonical(a) == canonical(b)


def canonical(text: str) -> Canonical:
    """A key that answers share if and only if they are the `same_answer`: their number, or their text."""
    plain = text.strip()
    if len(plain) > LONGEST:
        return plain
    found = _read(plain)
    return found.value if found.value is not None else found.compact or f"\0{plain}"


def as_kind(name: str | None) -> Kind:
    """The kind of grading called `name`; `math` where `name` is None or no kind is called so."""
    return name if name in grader_names() else "math"


def form_of(kind: Kind, reference: str) -> Form:
    """The form of the answer to look for in a text, given the reference."""
    reference = extract(kind, reference)
    if kind == "letter" and choice(reference) is not None:
        return "letter"
    return "number" if kind == "numeric" or _read(reference).value is not None else "expression"


def quick_grade(kind: Kind, answer: str, reference: str) -> Grade | None:
    """The grade of `answer`; None where only a worker process can tell: mathematical equivalence, and announced graders."""
    return compare_texts(kind, extract(kind, answer), extract(kind, reference))


def compare_texts(kind: Kind, answer: str, reference: str) -> Grade | None:
    """The grade of two texts from `extract`, without algebra; None where only a worker process can tell."""
    if kind not in GRADER_KINDS:
        return None
    if answer.strip() == reference.strip():
        return Grade(True)
    letters, options = choice(answer), choice(reference)
    if options and (kind == "letter" or (letters and len(options) == 1)):
        return Grade(letters == options)
    if max(len(answer), len(reference)) > LONGEST:
        return Grade(False, why=f"longer than {LONGEST:,} characters")
    mine, theirs = _read(answer), _read(reference)
    a, b = mine.value, theirs.value
    if (a is None or b is None) and (kind == "numeric" or (b is not None and _is_sentence(mine.cleaned))):
        a, b = _figure(answer), _figure(reference)
    if a is not None and b is not None:
        if a == b or abs(a - b) < precision(theirs.compact):
            return Grade(True)
        percent, expected = is_percentage(answer), is_percentage(reference)
        return Grade(percent != expected and (a / 100 == b if percent else a == b / 100))
    if mine.compact == theirs.compact != "":
        return Grade(True)
    return Grade(False) if kind == "letter" else None


def is_percentage(text: str) -> bool:
    """True if `text` ends in a percent sign or in the word percent."""
    return _PERCENT.search(visible(text[-20:])) is not None


def number(text: str) -> Fraction | None:
    """The exact number that a whole `text`, as `notation` leaves it, is: an integer, a decimal, grouped digits, a fraction, a mixed number,
    a repeating decimal or a power of ten (`1e-3`, `6.02\\times10^{23}`); None for anything else, and for one that is too long or large."""
    if len(text) > MAX_DIGITS or not re.search(r"\d", text):
        return None
    if text[0] in "+-":
        value = number(text[1:]) if text[1] not in "+-" else None
        return -value if value is not None and text[0] == "-" else value
    if _OF_BASE.fullmatch(text):
        return Fraction(int(text, 0))
    if found := _DECIMAL.fullmatch(_POWER_OF_TEN.sub(lambda found: f"{'1' * (found[1] is not None)}e{found[2] or found[3]}", text)):
        exponent = int(found[2] or 0)
        return Fraction(found[1]) * Fraction(10) ** exponent if abs(exponent) <= MAX_EXPONENT else None
    if found := _GROUPED.fullmatch(text):
        return Fraction(text.replace(found[1], ""))
    if found := _REPEATING.fullmatch(text):
        before, again = found[1] + found[2], found[3]
        return (int(before or 0) + Fraction(int(again), 10 ** len(again) - 1)) / Fraction(10) ** len(found[2])
    if (found := _MIXED.fullmatch(text)) and (part := number(found[2])) is not None and part < 1:
        return int(found[1]) + part
    if found := _RATIO.fullmatch(text):
        over, under = (number(side) for side in (found[1] or found[3] or "", found[2] or found[4] or ""))
        return over / under if over is not None and under else None
    return None


def precision(text: str) -> Fraction:
    """How far from the decimal `text` a number may be that rounds to it in double precision; 0 for 0 and for anything but a decimal."""
    if len(text) > MAX_DIGITS or "." not in text or _DECIMAL.fullmatch(text.lstrip("+-")) is None:
        return Fraction(0)
    digits = Decimal(text)
    figures = len(digits.as_tuple().digits)
    last = digits.adjusted() + 1 - (DOUBLE if figures <= DOUBLE + 2 else figures)
    return Fraction(10) ** last / 2 if digits and abs(last) < 2 * MAX_EXPONENT else Fraction(0)


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
    """True if a text is a sentence that states something, neither a negation nor a bound."""
    return len(_WORD.findall(cleaned)) > 2 and not _UNLIKE.search(cleaned)


def _figure(text: str) -> Fraction | None:
    """The one number in a text, of an equation in its last side; None unless there is exactly one."""
    text = clean(text[:_SENTENCE].rpartition("=")[2])
    found = NUMBER.findall(_LESS.sub(" ", text))
    return _read(found[0]).value if len(found) == 1 and not _BOUND.match(text) else None
