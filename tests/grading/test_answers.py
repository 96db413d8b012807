"""Answers are found in their boxes and compared without surprises, whatever the text."""

import re
import time
import unicodedata
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.grading.answers import Kind, as_kind, same_answer
from pipeline.grading.plugins import GRADER_KINDS
from pipeline.grading.stated import boxed, choice, stated
from tests.support.grading_pairs import PAIRS, Pair, at_once

BOXES = {
    r"\boxed{1} and then \boxed{ 2 }": "2",
    r"\boxed{\frac{1}{2}}": r"\frac{1}{2}",
    r"\boxed {7}": "7",
    r"\boxed{1} and \boxed{2": "1",
    r"an open { and \boxed{3}": "3",
    r"a stray } and \boxed{3}": "3",
    r"\boxed{\left\{1\right.}": r"\left\{1\right.",
    r"\\\boxed{3}": "3",
    r"\boxed{a \boxed{b}}": "b",
    r"\boxed{3}, as asked within \boxed{}": "3",
    r"within \boxed{ }": None,
    r"boxed{3}": None,
    r"\boxed3": None,
    r"\boxed{3": None,
}


@pytest.mark.parametrize("text", BOXES)
def test_the_last_closed_box(text: str) -> None:
    assert boxed(text) == BOXES[text]


DIFFERENT = [("1/3", "0.333"), ("1 1/2", "11/2"), ("1 2", "12"), ("1 1/0", "1"), ("1, 234", "1234"), ("(1,234)", "(1234)"), ("1/0", "2/0")]
DIFFERENT += [("x", "X"), ("$", "%"), ("", "$"), ("0.30000000000000004", "0.3"), (r"\leftarrow", "arrow")]


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_not_same(a: str, b: str) -> None:
    assert not same_answer(a, b)


@pytest.mark.parametrize(
    ("kind", "answer", "reference", "grade"),
    [
        ("math", "5", "5.0", True),
        ("math", "5", "6", False),
        ("math", "50%", "0.5", True),
        ("math", "0.5", r"50\%", True),
        ("math", "0.5", "51%", False),
        ("math", r"\sqrt{4}", "2", None),
        ("math", "x=2", "2", None),
        ("math", "(B)", r"\text{B}", True),
        ("math", "(B)", "C", False),
        ("math", "12", "C", None),
        ("math", "x" * 10_001, "2", False),
        ("numeric", "about 12 eggs", "12", True),
        ("numeric", "about 12 eggs", "13", False),
        ("numeric", "12 or 13", "13", None),
        ("numeric", "many", "13", None),
        ("letter", "B. because", "B", True),
        ("letter", "because", "B", False),
        ("letter", r"\sqrt{4}", "2", False),
        ("letter", "2.0", "2", True),
    ],
)
def test_what_is_decided_without_a_worker(kind: Kind, answer: str, reference: str, grade: bool | None) -> None:
    assert at_once(kind, answer, reference) is grade


def test_an_unknown_kind_is_mathematics() -> None:
    assert [as_kind(name) for name in ("letter", "numeric", "math", "maths", None)] == ["letter", "numeric", "math", "math", "math"]


@given(st.text(), st.text(), st.sampled_from(GRADER_KINDS))
def test_a_quick_grade_raises_nothing(a: str, b: str, kind: Kind) -> None:
    assert at_once(kind, a, b) in (True, False, None)
    assert at_once(kind, a, a) in (True, False) or choice(a) is None


@given(st.text(), st.text())
def test_any_text_is_equal_to_itself_and_raises_nothing(a: str, b: str) -> None:
    assert same_answer(a, a)
    assert same_answer(a, b) == same_answer(b, a)
    boxed(a + "\\boxed{" + b + "}")


@given(st.integers(-(10**30), 10**30), st.integers(1, 10**30))
def test_fractions_are_exact(over: int, under: int) -> None:
    assert same_answer(f"{over}/{under}", rf"\frac{{{2 * over}}}{{{2 * under}}}")
    assert not same_answer(f"{over}/{under}", f"{over + 1}/{under}")


digits = st.integers(1, 10**12)
exponents = st.integers(-30, 30)
signs = st.sampled_from(["", "-"])


LAYOUT = (r"\Large {}", r"{}\hspace{{1cm}}", r"\displaystyle {}", r"{}\,", r"\boxed{{\mathsf{{{}}}}}", r"{} \tag{{1}}")
SENTENCES = ("The answer is **{}**.", "So it is {}.", "**Final Answer:** {}", "Answer: $ {} $")


def grouped(whole: str, gap: str) -> str:
    """`whole` in groups of three digits."""
    return re.sub(r"(?<=\d)(?=(?:\d{3})+$)", lambda _: gap, whole)


def written(sign: str, whole: int, exponent: int) -> list[str]:
    """Ways to write the number `whole` times a power of ten; each is the same number."""
    plain = f"{Decimal(whole).scaleb(exponent):f}"
    integer, point, rest = plain.partition(".")
    over, under = (whole * 10**exponent, 1) if exponent >= 0 else (whole, 10**-exponent)
    forms = [
        plain,
        f"{whole}e{exponent}",
        f"{whole}E{exponent:+d}",
        rf"{whole}\times 10^{{{exponent}}}",
        rf"{whole} \cdot 10^{{{exponent}}}",
    ]
    forms += [f"{over}/{under}", rf"\dfrac{{{over}}}{{{under}}}", rf"\frac{{{3 * over}}}{{{3 * under}}}", f"{plain}."]
    forms += [grouped(integer, gap) + point + rest for gap in (",", "{,}", r",\!", "\u2009", "\u00a0", "\u202f", r"\,", "'", " ")]
    forms += [plain.translate({ord("0") + n: chr(ord("\uff10") + n) for n in range(10)})]
    around = ("{}", "**{}**", "`{}`", "$ {} $", r"\({}\)", " {}\n", r"\boxed{{{}}}", *SENTENCES, *LAYOUT)
    return [frame.format(sign + form) for form in forms for frame in around]


@given(signs, digits, exponents, st.data())
def test_notation_changes_no_verdict(sign: str, whole: int, exponent: int, data: st.DataObject) -> None:
    """Spaces, emphasis, digit forms, grouping and powers of ten, at magnitudes of 1e-30 to 1e42."""
    one, other = (data.draw(st.sampled_from(written(sign, whole, exponent))) for _ in range(2))
    assert at_once("math", one, other) is True
    assert at_once("numeric", one, other) is True


@given(signs, digits, exponents, st.data())
def test_different_values_stay_different(sign: str, whole: int, exponent: int, data: st.DataObject) -> None:
    """Neighbours in the last digit, by a power of ten, by a sign, and by a factor."""
    near = [
        (sign, whole + 1, exponent),
        (sign, whole, exponent + 1),
        ("-" if not sign else "", whole, exponent),
        (sign, 2 * whole, exponent),
    ]
    one = data.draw(st.sampled_from(written(sign, whole, exponent)))
    other = data.draw(st.sampled_from(written(*data.draw(st.sampled_from(near)))))
    assert at_once("math", one, other) is False
    assert at_once("math", other, one) is False


def test_what_takes_no_algebra_is_decided_rightly() -> None:
    found = [(pair, at_once(pair.kind, pair.answer, pair.reference)) for pair in PAIRS]
    assert [pair for pair, grade in found if grade not in (None, pair.right)] == []
    assert sum(grade is not None for _, grade in found) > 250


UNSEEN = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) == "Cf"]


@given(st.sampled_from(PAIRS), st.data())
def test_what_is_not_seen_changes_no_verdict(pair: Pair, data: st.DataObject) -> None:
    sides = [pair.answer, pair.reference]
    for number, text in enumerate(sides):
        for place in data.draw(st.lists(st.integers(0, len(text)), max_size=4)):
            sides[number] = sides[number][:place] + data.draw(st.sampled_from(UNSEEN)) + sides[number][place:]
    assert at_once(pair.kind, *sides) is at_once(pair.kind, pair.answer, pair.reference)


@given(st.integers(1, 999), st.integers(1, 999))
@example(333, 433)
def test_what_a_double_rounds_is_equal_to_it(over: int, under: int) -> None:
    assert at_once("math", f"{over}/{under}", repr(over / under)) is True
    assert at_once("math", f"{over}/{under}", repr((over + 1) / under)) is False
    assert at_once("math", f"{over}/{under}", f"{over / under:.3f}") is (Fraction(f"{over / under:.3f}") == Fraction(over, under))


HOSTILE = ["\\boxed{", "{", "9", "1 ", "a, ", "A", "A A ", "A and ", "A, ", "answer: ", "1 1/", "(", "9%", "**a ", "__a ", "\uff14", "0.11"]
HOSTILE += ["\u00b2", "\u00bc", "1 000 ", "\\text{", "\\text ", "1,", "1,234", "\\frac{1", "$", "$x", "the answer is ", "the answer to "]
HOSTILE += ["answer \n", "**", "\\[", "\\(", "####", "#### \n", "</think>", "- ", "= ", " "]


@pytest.mark.slow
@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_text_takes_no_time(unit: str) -> None:
    for text in (unit * (50_000 // len(unit)), unit * (2_000 // len(unit)) + "!", f"\\boxed{{{unit * (9_000 // len(unit))}}}"):
        start = time.process_time()
        for kind in GRADER_KINDS:
            at_once(kind, text, text[:-1] + "x")
        for form in ("number", "letter", "expression", None):
            stated(text, form)  # type: ignore[arg-type]
        assert time.process_time() - start < 3.0, "quadratic time would be minutes"
