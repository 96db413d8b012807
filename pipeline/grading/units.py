"""The unit of an answer: text enters, the text without the unit and the words of the unit leave.

A unit on one side only is ignored, because the question names it; so is a noun that is no unit (`25 apples`).
"""

import re
from collections import Counter
from fractions import Fraction
from functools import lru_cache
from itertools import product

_UNITS = {
    "m": ("", "meter metre"), "g": ("", "gram gm gramme"), "s": ("", "second sec"), "A": ("", "ampere amp"), "K": ("", "kelvin"),
    "mol": ("", "mole"), "cd": ("", "candela"), "bit": ("", ""), "degree": ("", "deg"), "radian": ("", "rad"),
    "celsius": ("", "centigrade"), "fahrenheit": ("", ""), "dollar": ("", "usd buck"), "euro": ("", "eur"), "sterling": ("", "gbp"),
    "yen": ("", "jpy"), "rupee": ("", "inr"), "yuan": ("", "rmb cny"), "month": ("", "mo"), "year": ("12 month", "yr"),
    "day": ("86400 s", ""), "min": ("60 s", "minute"), "h": ("3600 s", "hour hr"), "week": ("604800 s", "wk"),
    "cent": ("0.01 dollar", "\u00a2"), "in": ("0.0254 m", "inch"), "ft": ("0.3048 m", "foot feet"), "yd": ("0.9144 m", "yard"),
    "mi": ("1609.344 m", "mile"), "nmi": ("1852 m", ""), "angstrom": ("0.0000000001 m", "\u00e5"), "acre": ("4046.8564224 m2", ""),
    "ha": ("10000 m2", "hectare"), "l": ("0.001 m3", "liter litre L"), "gal": ("0.003785411784 m3", "gallon"),
    "qt": ("0.000946352946 m3", "quart"), "pt": ("0.000473176473 m3", "pint"), "lb": ("453.59237 g", "pound"),
    "oz": ("28.349523125 g", "ounce"), "t": ("1000000 g", "tonne"), "N": ("1000 g m s-2", "newton"), "J": ("1 N m", "joule"),
    "W": ("1 J s-1", "watt"), "V": ("1 W A-1", "volt"), "Hz": ("1 s-1", "hertz"), "C": ("1 A s", "coulomb"), "Pa": ("1 N m-2", "pascal"),
    "F": ("1 C V-1", "farad"), "ohm": ("1 V A-1", "\u03a9"), "T": ("1 V s m-2", "tesla"), "Wb": ("1 V s", "weber"),
    "H": ("1 V s A-1", "henry"), "B": ("8 bit", "byte"), "cal": ("4.184 J", "calorie"), "Wh": ("3600 J", ""),
    "eV": ("0.0000000000000000001602176634 J", "electronvolt"), "bar": ("100000 Pa", ""), "atm": ("101325 Pa", "atmosphere"),
    "mph": ("1 mi h-1", ""), "kph": ("1 km h-1", "kmh kmph"), "mps": ("1 m s-1", ""), "fps": ("1 ft s-1", ""),
    "M": ("1 mol l-1", "molar"), "cc": ("1 cm3", ""), "mpg": ("1 mi gal-1", ""), "psi": ("6894.757293168 Pa", ""),
}  # fmt: skip
"""Each unit: its size in others, empty for one that no other measures, and its other names."""
_NAMES = {name: unit for unit, (_, names) in _UNITS.items() for name in (unit, *names.split())}
_LOWER = {name.casefold(): unit for name, unit in reversed(_NAMES.items())}
_PREFIXES = {"T": 12, "G": 9, "M": 6, "k": 3, "h": 2, "d": -1, "c": -2, "m": -3, "\u03bc": -6, "u": -6, "n": -9, "p": -12}
_PREFIXES |= {"tera": 12, "giga": 9, "mega": 6, "kilo": 3, "deci": -1, "centi": -2, "milli": -3, "micro": -6, "nano": -9, "pico": -12}
_PREFIXED = frozenset("m g s A K mol bit l N J W V Hz C Pa F ohm T Wb H B cal Wh eV bar t M".split())
_SIGNS = {"\\dollar": "dollar", "\u20ac": "euro", "\\euro": "euro", "\u00a3": "sterling", "\\pounds": "sterling", "\u00a5": "yen"}
_SIGNS |= {"\u20b9": "rupee", "\u00a2": "cent", "\\cent": "cent"}
_SHORT = frozenset("cm mm km in ft yd mi kg mg lb oz ml hr gm kw kj pa hz ev".split())
"""Names of two letters that are no product of two variables."""
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}
_SIGN = re.compile(r"^\s*([+-]?)\s*(" + "|".join(map(re.escape, _SIGNS)) + r")\s*(?=[\d.+-]|\\frac)")
_TRAILING_SIGN = re.compile(r"(" + "|".join(map(re.escape, _SIGNS)) + r")\s*$")
_DEGREE = re.compile(
    r"(?:\^\s*\{?\s*\\circ\s*\}?|\\degree|(?:\\unit\{\s*|(?<=[\d)}\]])\s*)(?=deg))\s*(?:degrees?\b)?\s*"
    r"(?:\\unit\{)?\s*(celsius|fahrenheit|centigrade|kelvin|[CFK])?\}?\s*$",
    re.IGNORECASE,
)
_EXPONENT = r"(?:\s*\^\s*(?:\{\s*-?\d\s*\}|-?\d))?"
_BETWEEN = r"(?:/|\\cdot(?![A-Za-z])|\\times(?![A-Za-z])|\*|\\,)"
_UNIT = rf"(?:\\mu\s*)?\\unit\{{[^{{}}]*\}}{_EXPONENT}\s*"
_WRAPPED = re.compile(rf"(?:\\cdot\s*)?((?:{_UNIT}(?:{_BETWEEN}\s*)?)+|\\frac\s*\{{\s*(?:{_UNIT})+\}}\s*\{{\s*(?:{_UNIT})+\}})$")
_WORD = rf"(?:(?:\\mu\s*)?[A-Za-z\u03bc\u03a9]+\.?|[kM]?\\Omega){_EXPONENT}"
_BARE = re.compile(rf"(?:(?<=[\d)}}\]])|(?<=\\pi))(\s*)({_WORD}(?:(?:\s|\s?{_BETWEEN}\s?){_WORD})*)\s*$", re.ASCII)
_LONGEST_BARE = 60
_SURE = 4
"""A word of at least this many letters after a number and a space is not read as a product of variables."""
_TOKEN = re.compile(r"[*/]|\^?-?\d+|[^\W\d_]+")
Measure = tuple[Fraction, frozenset[tuple[str, int]]]
"""The size of a unit, and the exponents of the units in which it is measured."""


def split_unit(text: str, symbols: bool = False) -> tuple[str, str | None]:
    """`text` without its unit, and the words of the unit: None where there is none, empty for a word that is no known unit.

    `\\text{}` is expected as `\\unit{}`, an escaped dollar sign as `\\dollar`; see `notation.clean`. `symbols`: a unit may be a product of
    letters, as in `5 m/s`, because variables make no sense there.
    """
    if found := _SIGN.match(text):
        return found[1] + text[found.end() :], _SIGNS[found[2]]
    if found := _TRAILING_SIGN.search(text):
        return text[: found.start()], _SIGNS[found[1]]
    if found := _DEGREE.search(text):
        scale = (found[1] or "")[:1].casefold()
        return text[: found.start()].rstrip(), {"": "degree", "f": "fahrenheit", "k": "K"}.get(scale, "celsius")
    if found := _WRAPPED.search(text):
        words = re.sub(r"\}\s*\{", "}/{", found[1].removeprefix(r"\frac")).replace(r"\unit", " ")
        known = measure(words) is not None
        if known or len(re.sub("[^a-z]", "", words.casefold())) > 1:
            return text[: found.start()].rstrip(), words.strip(" {}") if known else ""
    if found := _BARE.search(text, max(0, len(text) - _LONGEST_BARE)):
        words, first = found[2], re.split(r"[\s/^.*\\]", found[2])[0]
        known = measure(words) is not None
        if known and all(len(word) > 2 or word.casefold() in _SHORT for word in (first, *re.findall(r"^[A-Za-z]+$", words))):
            return text[: found.start()], words
        if known and symbols and (found[1] or len(words) > 1) and words not in _LOWER.keys() - _NAMES.keys():
            return text[: found.start()], words
        if not known and found[1] and len(first) >= _SURE:
            return text[: found.start()], ""
    return text, None


def factor(a: str | None, b: str | None) -> Fraction | None:
    """The factor that converts a value in unit `a` to unit `b`: 1 if one of them is not given or not known, None if they
    measure different things."""
    mine, theirs = measure(a or ""), measure(b or "")
    if mine is None or theirs is None or {mine, theirs} in _ALIKE:
        return Fraction(1)
    return mine[0] / theirs[0] if mine[1] == theirs[1] else None


@lru_cache(1024)
def measure(words: str) -> Measure | None:
    """The measure of a unit in words or symbols, such as `km/h`, `square meters`, `m s^{-1}`; None for an unknown one."""
    found: list[tuple[Measure, int]] = []
    words = re.sub(r"\\mu[\s{]*", "\u03bc", words.replace(r"\Omega", "\u03a9").replace("\u00b5", "\u03bc")).strip()
    sign, power = 1, 1
    for token in _TOKEN.findall(re.sub(r"\\cdot|\\times|[{}().\u00b7~]|\\[,;: ]|(?<=[A-Za-z])\s?-(?=[A-Za-z])", " ", words)):
        if token in ("/", "per"):
            sign = -1
        elif token[-1].isdigit() or token in ("squared", "cubed"):
            if not found or (len(token) > 3 and token not in _POWERS):
                return None
            found[-1] = found[-1][0], sign * (_POWERS.get(token) or int(token.removeprefix("^")))
        elif token in _POWERS:
            power = _POWERS[token]
        elif token != "*":
            if (one := _one(token)) is None:
                return None
            found.append((one, sign * power))
            power = 1
    if not found or power != 1 or "/" in (words[0], words[-1]):
        return None
    size, powers = Fraction(1), Counter[str]()
    for (of_one, of_those), exponent in found:
        size *= of_one**exponent
        powers.update({base: n * exponent for base, n in of_those})
    return size, frozenset((base, n) for base, n in powers.items() if n)


def _one(word: str) -> Measure | None:
    """The measure of the unit that one word or symbol names, with or without a prefix."""
    lower = word.casefold()
    for spelling, names in ((word, _NAMES), (lower, _NAMES), (lower, _LOWER))[: 3 if len(word) > 1 else 1]:
        singular = [spelling, *(spelling.removesuffix(end) for end in ("es", "s") if len(word) > 2 and spelling.endswith(end))]
        if unit := next((names[each] for each in singular if each in names), None):
            return _of(unit, 0)
        for each, (prefix, power) in product(singular, _PREFIXES.items()):
            name = each.removeprefix(prefix) if each.startswith(prefix) else ""
            unit = names.get(name, "")
            if unit in _PREFIXED and (len(prefix) < 4) == (name.casefold() in (unit.casefold(), "\u03c9")):
                return _of(unit, power)
    return None


def _of(unit: str, prefix: int) -> Measure:
    size, _, others = _UNITS[unit][0].partition(" ")
    of_those = measure(others) if size else None
    own, powers = of_those or (Fraction(1), frozenset({(unit, 1)}))
    return Fraction(size or 1) * own * Fraction(10) ** prefix, powers


_ALIKE = [{measure(a), measure(b)} for a, b in (("degree", "celsius"), ("degree", "fahrenheit"), ("C", "celsius"), ("F", "fahrenheit"))]
"""Names that may mean the same."""
