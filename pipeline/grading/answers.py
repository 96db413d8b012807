"""Whether an answer equals a reference, as far as their texts tell without algebra: two texts enter, right, wrong or undecided leaves.

Equal means equal after light normalisation (spaces, `$`, thousands commas, `\\text{}`, percent signs), equal as rational
numbers, or the same letter of a multiple choice. Where that decides nothing, `grader` asks a worker process for full
mathematical equivalence. No expression is evaluated here, nothing here raises, and time is linear in the length of the texts.
"""

import re
from fractions import Fraction

from pipeline.grading.plugins import grader_names

Kind = str
"""How a problem's answers are graded: one of `KINDS`, or the name of an announced grader (`grading.plugins`)."""
BROKEN = "cannot load: "
"""What a worker's reply begins with that has no such grader."""
KINDS = ("math", "numeric", "letter")
"""By mathematical equivalence, as the one number in them, or by the letter chosen."""
Canonical = Fraction | str
LONGEST = 10_000
"""Answers of more characters are compared as they stand, without normalisation."""

_BRACE = re.compile(r"\\boxed\s*\{|\\\\(?!boxed)|\\[{}]|[{}]")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:(?:,|\{,\})(?:\\!)?\d{3})+(?:\.\d+)?", re.ASCII)
_WRAPPED = re.compile(r"\\(?:text|mbox|mathrm|textbf|mathbf)\s*\{([^{}]*)\}")
# A space between two digits stays: it keeps 1 1/2 apart from 11/2.
_NOISE = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\[!,;: ]|\^\{?\\circ\}?|\\?[%$]|(?<!\d)\s+|\s+(?!\d)")
_SHORT_FRAC = re.compile(r"\\frac(\d)(\d)", re.ASCII)
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)"
_RATIO = re.compile(rf"({_NUMBER})(?:/({_NUMBER}))?", re.ASCII)
_FRAC = re.compile(rf"([+-]?)\\frac\{{({_NUMBER})\}}\{{({_NUMBER})\}}", re.ASCII)
_MIXED = re.compile(r"([+-]?)(\d+)(?: (\d+)/(\d+)|\\frac\{(\d+)\}\{(\d+)\})", re.ASCII)
_MOST_DIGITS = 200
_PERCENT = re.compile(r"(?:%|percent)[\s.$]*\Z", re.ASCII)
_LONGEST_NUMERIC = 500
_FIGURE = re.compile(rf"\\frac\{{{_NUMBER}\}}\{{{_NUMBER}\}}|[+-]?\d+ \d+/\d+|{_NUMBER}(?:/{_NUMBER})?", re.ASCII)
_POWER = re.compile(r"(?<=[A-Za-z}])\s?\^\s?\{?[23]\}?", re.ASCII)
_COMMAS = re.compile(r"(?<=\d)(?:,|\{,\})(?:\\!)?(?=\d{3}(?!\d))", re.ASCII)
_LETTERS = re.compile(
    r"(?i:(?:the )?(?:correct )?(?:final )?(?:answer|option|choice)(?: is)? ?:? ?)?"
    r"\(?([A-Z](?:(?: ?(?:,|and|&) ?| )?[A-Z])*|[a-z])\)?(?:[.:)]|[.:)] .*)?",
    re.ASCII,
)


def extract_answer(text: str) -> str | None:
    """The content of the last `\\boxed{...}` that is balanced and not blank, of nested ones the inner; None without one."""
    answer, answer_start = None, -1
    opened: list[tuple[int, bool]] = []
    for brace in _BRACE.finditer(text, max(text.find("\\boxed"), 0)) if "\\boxed" in text else ():
        mark = brace.group()
        if mark[-1] == "{" and mark != "\\{":
            opened.append((brace.end(), mark != "{"))
        elif mark == "}" and opened:
            start, boxed = opened.pop()
            if boxed and start > answer_start and (content := text[start : brace.start()].strip()):
                answer, answer_start = content, start
    return answer


def has_boxed(text: str) -> bool:
    """Whether `extract_answer` finds an answer in `text`; where no `\\boxed` stands in it this costs one substring search."""
    return extract_answer(text) is not None


def same_answer(a: str, b: str) -> bool:
    """Whether two answers are equal after light normalisation or as rational numbers; percent, degree and dollar signs are ignored."""
    return a.strip() == b.strip() or canonical(a) == canonical(b)


def canonical(text: str) -> Canonical:
    """What answers have in common that are the same by `same_answer`, and no others: the number that they are, or their text."""
    plain = text.strip()
    if len(plain) > LONGEST:
        return plain
    normal = _normal(plain)
    number = _rational(normal)
    if number is not None:
        return number
    return normal or f"\0{plain}"


def as_kind(name: str | None) -> Kind:
    """The kind of grading called `name`; `math` where `name` is None or no kind is called so."""
    return name if name is not None and is_kind(name) else "math"


def is_kind(name: str) -> bool:
    """Whether answers can be graded in this way here: it is a kind of ours, or an installed package announces it."""
    return name in KINDS or name in grader_names()


def quick_grade(kind: Kind, answer: str, reference: str) -> bool | None:
    """Whether `answer` is right; None where only a worker process can decide: mathematical equivalence, and announced graders."""
    if kind not in KINDS:
        return None
    if kind == "letter":
        letters = choice(reference)
        return same_answer(answer, reference) if letters is None else choice(answer) == letters
    if same_answer(answer, reference):
        return True
    if max(len(answer), len(reference)) > LONGEST:
        return False
    if kind == "numeric" and (figures := _figures(answer, reference)):
        return _as_percentages(*figures, answer, reference)
    letters, options = choice(answer), choice(reference)
    if letters and options and len(options) == 1:
        return letters == options
    left, right = _rational(_normal(answer)), _rational(_normal(reference))
    if left is None or right is None:
        return None
    return _as_percentages(left, right, answer, reference)


def choice(text: str) -> str | None:
    """The letters that `text` chooses in a multiple choice, sorted and without repeats; None where `text` is no such choice.

    `B`, `(B)`, `B.`, `\\text{B}`, `**B**`, `option B`, `(B) 12` and, alone, `b` are B; `B, D` and `BD` are BD.
    """
    text = _WRAPPED.sub(r"\1", text[:_LONGEST_NUMERIC].replace("\\left", "").replace("\\right", ""))
    found = _LETTERS.fullmatch(" ".join(text.split()).strip("$*. "))
    return None if found is None else "".join(sorted(set(re.sub("[^A-Z]", "", found[1].replace("and", "").upper()))))


def _figures(answer: str, reference: str) -> tuple[Fraction, Fraction] | None:
    """The numbers of both texts; None unless each of the two holds exactly one."""
    left, right = _figure(answer), _figure(reference)
    return None if left is None or right is None else (left, right)


def _figure(text: str) -> Fraction | None:
    text = _WRAPPED.sub(r" \1", text[:_LONGEST_NUMERIC].rpartition("=")[2].replace("\u2212", "-").replace("\\dfrac", "\\frac"))
    text = _POWER.sub("", _COMMAS.sub("", _SHORT_FRAC.sub(r"\\frac{\1}{\2}", text.replace("$", " ").replace("\\,", ""))))
    found = _FIGURE.findall(text)
    return _rational(found[0]) if len(found) == 1 else None


def _as_percentages(answer: Fraction, reference: Fraction, said: str, expected: str) -> bool:
    """Whether two numbers are equal; where one text alone is a percentage, whether it stands for the other number (50% is 0.5).

    `said` and `expected` are the texts of answer and reference.
    """
    if answer == reference:
        return True
    percent, expected_percent = is_percentage(said), is_percentage(expected)
    if percent == expected_percent:
        return False
    return answer == reference * 100 if percent else answer * 100 == reference


def is_percentage(text: str) -> bool:
    """Whether `text` ends in a percent sign or in the word percent."""
    return _PERCENT.search(text[-20:]) is not None


def _normal(text: str) -> str:
    text = " ".join(text.split()).strip("$").strip().removesuffix(".")
    text = text.replace("\u2212", "-").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    if _GROUPED.fullmatch(text.replace("\\$", "")):
        text = re.sub(r"[^0-9.+-]", "", text)
    text = _NOISE.sub("", _WRAPPED.sub(r"\1", text))
    return _SHORT_FRAC.sub(r"\\frac{\1}{\2}", text).removesuffix(".")


def _rational(text: str) -> Fraction | None:
    if len(text) > _MOST_DIGITS:
        return None
    ratio = _RATIO.fullmatch(text)
    sign, over, under = ("", ratio[1], ratio[2] or "1") if ratio else ("", "", "0")
    if frac := _FRAC.fullmatch(text):
        sign, over, under = frac[1], frac[2], frac[3]
    if mixed := _MIXED.fullmatch(text):
        sign, over, under = mixed[1], mixed[3] or mixed[5], mixed[4] or mixed[6]
        over = str(int(mixed[2]) * int(under) + int(over))
    if not over or not Fraction(under):
        return None
    value = Fraction(over) / Fraction(under)
    return -value if sign == "-" else value
