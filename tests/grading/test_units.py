"""Units at the end of answers are found, named and told apart."""

import pytest

from pipeline.grading.forms import clean
from pipeline.grading.units import differ, split_unit, unit_name


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        (r"5\text{ cm}", "5", "cm"),
        (r"15\mbox{ cm}^2", "15", "cm2"),
        (r"6.6 \mathrm{~mi} / \mathrm{hr}", "6.6", "mi/h"),
        ("60 miles per hour", "60", "mi/h"),
        ("30 square feet", "30", "ft2"),
        ("5 cubic meters", "5", "m3"),
        ("25 apples", "25", ""),
        (r"12\pi cm", r"12\pi", "cm"),
        (r"\$36", "36", "dollar"),
        (r"-\$36", "-36", "dollar"),
        ("\u20ac5", "5", "euro"),
        (r"90^\circ", "90", "degree"),
        (r"37^{\circ} C", "37", "degree"),
        ("5 x", "5 x", None),
        ("3abc", "3abc", None),
        ("5am", "5am", None),
        ("3 cos", "3 cos", None),
        (r"2\mathbf{j}", r"2 j", None),
        (r"1+2\mathrm{i}", r"1+2\unit{i}", None),
        (r"\text{even}", "even", None),
        ("7", "7", None),
        ("", "", None),
    ],
)
def test_the_unit_of_an_answer(text: str, value: str, unit: str | None) -> None:
    found, name = split_unit(clean(text))
    assert (found.strip(), name) == (value, unit)


def test_known_units_differ_and_others_count_for_nothing() -> None:
    assert differ("cm", "m")
    assert not differ("cm", None)
    assert not differ("", "m")
    assert not differ("kg", "kg")


@pytest.mark.parametrize("words", ["", " ", "/", "per", "of the", "2", "square", "squared", "km/", "/h", "a b c"])
def test_what_is_no_unit_has_no_name(words: str) -> None:
    assert unit_name(words) == ""
