"""Units at the end of answers are found, named and told apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.grading.notation import clean
from pipeline.grading.units import factor, measure, split_unit

UNITS = {
    r"15\mbox{ cm}^2": ("15", "cm2"),
    r"6.6 \mathrm{~mi} / \mathrm{hr}": ("6.6", "mi/h"),
    "5 cubic meters": ("5", "m3"),
    "25 apples": ("25", ""),
    r"12\pi cm": (r"12\pi", "cm"),
    r"-\$36": ("-36", "dollar"),
    r"37^{\circ} C": ("37", "celsius"),
    "5 x": ("5 x", None),
    "3abc": ("3abc", None),
    "5am": ("5am", None),
    "3 cos": ("3 cos", None),
    r"2\mathbf{j}": ("2 j", None),
    r"1+2\mathrm{i}": (r"1+2\unit{i}", None),
    r"\text{even}": ("even", None),
    "": ("", None),
}


@pytest.mark.parametrize("text", UNITS)
def test_the_unit_of_an_answer(text: str) -> None:
    value, unit = UNITS[text]
    found, words = split_unit(clean(text))
    assert found.strip() == value
    assert words == unit if not unit else words and measure(words) == measure(unit)


def test_a_value_is_converted_to_a_unit_of_its_dimension() -> None:
    assert factor("m", "cm") == 100
    assert factor("cm", "kg") is None
    assert factor("cm", None) == factor("", "m") == factor("kg", "kg") == 1


SIZES = [
    ["mph", "mi/h", "miles per hour", "mile h^{-1}"],
    ["kph", "km/h", "kilometers per hour", r"km\cdot h^{-1}", "kmh"],
    ["m/s", "meters per second", r"m\,s^{-1}", r"m\cdot s^{-1}", "metre/sec"],
    ["m/s^2", "m s^{-2}", "m/s/s", "meters per second squared"],
    ["ml", "mL", "cm^3", "cubic centimeters", "millilitres"],
    ["l", "liters", "L"],
    ["kPa", "kilopascals", "kN/m^2"],
    ["Pa", "N/m^2", "pascals"],
    ["mmol", "millimoles"],
    ["mol", "moles"],
    ["J", "N m", "N-m", r"N\cdot m", "joules", "kg m^2/s^2"],
    ["kWh", r"kW\cdot h"],
    ["W", "J/s", "watts"],
    ["in", "inches", "inch"],
    ["celsius", "centigrade"],
    ["fahrenheit"],
]


@given(st.data())
def test_units_of_one_size_are_equal_and_others_are_not(data: st.DataObject) -> None:
    first, second = (data.draw(st.sampled_from(SIZES)) for _ in range(2))
    one, other = (data.draw(st.sampled_from(group)) for group in (first, second))
    assert measure(one)
    assert (factor(one, other) == 1) is (first is second)


@pytest.mark.parametrize("words", ["", " ", "/", "per", "of the", "2", "square", "squared", "km/", "/h", "a b c"])
def test_what_is_no_unit_has_no_size(words: str) -> None:
    assert measure(words) is None
