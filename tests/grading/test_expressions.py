"""Values of expressions: the same however they are written, different where they differ, at every magnitude and in both directions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.grading.expressions import equal
from pipeline.grading.forms import same_form

pytestmark = pytest.mark.slow

IRRATIONAL = (r"\sqrt{2}", r"\pi", "e", r"(\ln 3)", r"\sqrt[3]{5}", r"(\sin 1)")
OF_VARIABLES = ("x", r"\sqrt{x^2+1}", r"\frac{x}{y}", "(x-y)", r"(\sin x)", "e^{x}", "n!", r"\binom{n}{2}", r"|x-y|")
factors = st.sampled_from(IRRATIONAL + OF_VARIABLES)
wholes, exponents = st.integers(1, 10**6), st.integers(-30, 30)


def right(answer: str, reference: str) -> bool:
    """The verdict, which is the same the other way round."""
    found = same_form(answer, reference, equal)
    assert same_form(reference, answer, equal) is found
    return found


def written(whole: int, exponent: int, factor: str) -> list[str]:
    """Ways to write a product of a whole number, a power of ten and a factor."""
    power = rf"10^{{{exponent}}}"
    over, under = (whole * 10**exponent, 1) if exponent >= 0 else (whole, 10**-exponent)
    return [
        rf"{whole}\cdot {power}{factor}",
        rf"{factor} \times {whole}e{exponent}",
        rf"\frac{{{over} {factor}}}{{{under}}}",
        rf"-({over}/{under})\cdot(-{factor})",
        rf"**{over} \cdot {factor} / {under}**",
    ]


@given(wholes, exponents, factors, st.data())
def test_notation_changes_no_verdict(whole: int, exponent: int, factor: str, data: st.DataObject) -> None:
    one, other = (data.draw(st.sampled_from(written(whole, exponent, factor))) for _ in range(2))
    assert right(one, other)


@given(wholes, exponents, factors, st.data())
def test_different_values_stay_different(whole: int, exponent: int, factor: str, data: st.DataObject) -> None:
    others = [(whole + 1, exponent, factor), (whole, exponent + 1, factor), (2 * whole, exponent, factor)]
    others += [(whole, exponent, other) for other in IRRATIONAL + OF_VARIABLES if other != factor]
    one = data.draw(st.sampled_from(written(whole, exponent, factor)))
    assert not right(one, data.draw(st.sampled_from(written(*data.draw(st.sampled_from(others))))))
    assert not right(one, "0")


@given(st.permutations(["x", "2y", r"\pi", "n^2", r"\frac{1}{3}"]), st.lists(st.sampled_from("+-"), min_size=5, max_size=5))
def test_the_order_of_terms_changes_no_verdict(terms: list[str], signs: list[str]) -> None:
    def total(places: list[int], separator: str = "") -> str:
        return separator.join(f"{signs[place]}{separator}{terms[place]}" for place in places)

    turned = {"+": "-", "-": "+"}
    negated = "".join(turned[signs[place]] + terms[place] for place in range(5))
    assert right(total([0, 1, 2, 3, 4]), total([4, 2, 0, 1, 3], " "))
    assert right(total([0, 1, 2, 3, 4], " "), f"-({negated})")
    assert not right(total([0, 1, 2, 3, 4]), negated)


@given(wholes, exponents, st.sampled_from(["<", ">", r"\le", r"\ge", "="]))
def test_bounds_are_compared_like_values(whole: int, exponent: int, sign: str) -> None:
    one, near = (f"x {sign} {value} \\cdot 10^{{{exponent}}}" for value in (whole, whole + 1))
    assert right(one, f"x {sign} {whole}e{exponent}")
    assert not right(one, near)


def test_a_rounded_decimal_is_as_good_as_its_figures() -> None:
    assert right("1.414214", r"\sqrt{2}")
    assert right("0.0000141421356", r"10^{-5}\sqrt{2}")
    for decimal in ("1.414213", "1.4142", "1.41", "1.4142136001", "0.00001"):
        assert not right(decimal, r"\sqrt{2}")
