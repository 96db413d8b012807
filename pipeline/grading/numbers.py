"""The exact value of a number, however it is written: a text as `notation` leaves it enters, a fraction or None leaves.

Read are integers, decimals, grouped digits, fractions, mixed numbers, repeating decimals and powers of ten (`1e-3`, `6.02\\times10^{23}`).
Nothing else is evaluated, nothing raises, and a number of more than `MOST_DIGITS` characters or a greater exponent than `MOST_EXPONENT`
is not read.
"""

import re
from fractions import Fraction

MOST_DIGITS = 400
MOST_EXPONENT = 1000
"""The greatest power of ten, either way."""

_DECIMAL = r"(?:\d+\.?\d*|\.\d+)"
_GROUPED = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,3}(?: \d{3})+(?:\.\d+)?|\d{1,3}(?:'\d{3})+(?:\.\d+)?|\d{1,3}(?:_\d{3})+(?:\.\d+)?"
_SEPARATORS = re.compile("[ ,'_]")
_TIMES = r"\s*(?:\\times|\\cdot|\*|x)\s*"
_TEN = r"10\s*\^\s*(?:\{\s*([+-]?\d+)\s*\}|([+-]?\d+))"
_SIGNED = rf"[+-]?\s?(?:{_GROUPED}|{_DECIMAL})"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)(?:(?P<decimal>{_DECIMAL})(?:[eE](?P<exponent>[+-]?\d+)|{_TIMES}{_TEN})?"
    rf"|{_TEN}|(?P<grouped>{_GROUPED})"
    rf"|(?P<whole>\d+) (?P<over>\d+)/(?P<under>\d+)|(?P<whole_>\d+)\\frac\{{(?P<over_>\d+)\}}\{{(?P<under_>\d+)\}}"
    rf"|(?P<start>\d*\.\d*)\\overline\{{(?P<again>\d+)\}})",
    re.ASCII,
)
_RATIO = re.compile(rf"([+-]?)\\frac\{{({_SIGNED})\}}\{{({_SIGNED})\}}|({_SIGNED})/({_SIGNED})", re.ASCII)


def number(text: str) -> Fraction | None:
    """The number that `text` is, as a whole; None where it is none, or too long to be one."""
    if len(text) > MOST_DIGITS or not any(char.isdigit() for char in text):
        return None
    if (found := _NUMBER.fullmatch(text)) and (value := _unsigned(found)) is not None:
        return -value if found["sign"] == "-" else value
    if ratio := _RATIO.fullmatch(text):
        over, under = (Fraction(_SEPARATORS.sub("", each)) for each in (ratio[2] or ratio[4], ratio[3] or ratio[5]))
        return None if not under else -over / under if ratio[1] == "-" else over / under
    return None


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
    if abs(exponent) > MOST_EXPONENT:
        return None
    return Fraction(found["decimal"] or 1) * Fraction(10) ** exponent
