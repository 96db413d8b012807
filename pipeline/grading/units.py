"""The unit of an answer: text enters, the text without the unit and the unit's common name leave.

Units are told apart by dimension and size, never converted: 5 km/h is 5 kph, 5 cm is not 5 m, and 1 m is not 100 cm. A unit on one side
only is ignored, because the question names it; so is a noun that is no unit (`25 apples`).
"""

import re
from collections import Counter
from fractions import Fraction
from functools import lru_cache

_UNITS = {
    "m": ("", "meter metre"), "g": ("", "gram gm gramme"), "s": ("", "second sec"), "A": ("", "ampere amp"), "K": ("", "kelvin"),
    "mol": ("", "mole"), "cd": ("", "candela"), "bit": ("", ""), "degree": ("", "deg"), "radian": ("", "rad"),
    "celsius": ("", "centigrade"), "fahrenheit": ("", ""), "dollar": ("", "usd buck"), "euro": ("", "eur"), "sterling": ("", "gbp"),
    "yen": ("", "jpy"), "rupee": ("", "inr"), "yuan": ("", "rmb cny"), "month": ("", "mo"), "year": ("", "yr"), "day": ("86400 s", ""),
    "min": ("60 s", "minute"), "h": ("3600 s", "hour hr"), "week": ("604800 s", "wk"), "cent": ("0.01 dollar", "\u00a2"),
    "in": ("0.0254 m", "inch"), "ft": ("0.3048 m", "foot feet"), "yd": ("0.9144 m", "yard"), "mi": ("1609.344 m", "mile"),
    "nmi": ("1852 m", ""), "angstrom": ("0.0000000001 m", "\u00e5"), "acre": ("4046.8564224 m2", ""), "ha": ("10000 m2", "hectare"),
    "l": ("0.001 m3", "liter litre L"), "gal": ("0.003785411784 m3", "gallon"), "qt": ("0.000946352946 m3", "quart"),
    "pt": ("0.000473176473 m3", "pint"), "lb": ("453.59237 g", "pound"), "oz": ("28.349523125 g", "ounce"), "t": ("1000000 g", "tonne"),
    "N": ("1000 g m s-2", "newton"), "J": ("1 N m", "joule"), "W": ("1 J s-1", "watt"), "V": ("1 W A-1", "volt"), "Hz": ("1 s-1", "hertz"),
    "C": ("1 A s", "coulomb"), "Pa": ("1 N m-2", "pascal"), "F": ("1 C V-1", "farad"), "ohm": ("1 V A-1", "\u03a9"),
    "T": ("1 V s m-2", "tesla"), "Wb": ("1 V s", "weber"), "H": ("1 V s A-1", "henry"), "B": ("8 bit", "byte"),
    "cal": ("4.184 J", "calorie"), "Wh": ("3600 J", ""),
    "eV": ("0.0000000000000000001602176634 J", "electronvolt"), "bar": ("100000 Pa", ""), "atm": ("101325 Pa", "atmosphere"),
    "mph": ("1 mi h-1", ""), "kph": ("1 km h-1", "kmh kmph"), "mps": ("1 m s-1", ""), "fps": ("1 ft s-1", ""), "M": ("1 mol l-1", "molar"),
    "cc": ("1 cm3", ""), "mpg": ("1 mi gal-1", ""), "psi": ("6894.757293168 Pa", ""),
}  # fmt: skip
"""Each unit: its size in others, empty for one that no other measures, and its other names."""
_NAMES = {name: unit for unit, (_, names) in _UNITS.items() for name in (unit, *names.split())}
_LOWER = {name.casefold(): unit for name, unit in reversed(_NAMES.items())}
_PREFIXES = {"T": 12, "G": 9, "M": 6, "k": 3, "h": 2, "d": -1, "c": -2, "m": -3, "\u03bc": -6, "u": -6, "n": -9, "p": -12}
_PREFIXES |= {"tera": 12, "giga": 9, "mega": 6, "kilo": 3, "deci": -1, "centi": -2, "milli": -3, "micro": -6, "nano": -9, "pico": -12}
_PREFIXED = frozenset("m g s A K mol bit l N J W V Hz C Pa F ohm T Wb H B cal Wh eV bar t M".split())
_ALIKE = ({"degree", "celsius"}, {"degree", "fahrenheit"}, {"C", "celsius"}, {"F", "fahrenheit"})
"""Names that may mean the same."""
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


def split_unit(text: str) -> tuple[str, str | None]:
    """`text` without its unit, and the unit's name: None where there is none, empty for a word that is no known unit.

    `\\text{}` is expected as `\\unit{}`, an escaped dollar sign as `\\dollar`; see `notation.clean`.
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
        if (name := unit_name(words)) or len(re.sub("[^a-z]", "", words.casefold())) > 1:
            return text[: found.start()].rstrip(), name
    if found := _bare(text):
        name, first = unit_name(found[2]), re.split(r"[\s/^.*\\]", found[2])[0]
        if name and all(len(word) > 2 or word.casefold() in _SHORT for word in (first, *re.findall(r"^[A-Za-z]+$", found[2]))):
            return text[: found.start()], name
        if not name and found[1] and len(first) >= _SURE:
            return text[: found.start()], ""
    return text, None


def split_symbol(text: str) -> tuple[str, str | None]:
    """Like `split_unit`, of a unit that may be a product of variables, such as `5 m/s`; to be asked only where these make no sense."""
    found = _bare(text)
    name = unit_name(found[2]) if found and (found[1] or len(found[2]) > 1) and found[2] not in _LOWER.keys() - _NAMES.keys() else ""
    return (text[: found.start()], name) if found and name else (text, None)


def _bare(text: str) -> re.Match[str] | None:
    return _BARE.search(text, max(0, len(text) - _LONGEST_BARE))


@lru_cache(1024)
def unit_name(words: str) -> str:
    """The common name of a unit in words or symbols, such as `km/h`, `square meters`, `m s^{-1}`; empty for an unknown one."""
    factors = _factors(words)
    if not factors:
        return ""
    over, under = ("\u00b7".join(name + str(abs(n)) * (abs(n) > 1) for name, n in factors if n * sign > 0) for sign in (1, -1))
    return (over or "1") + "/" * bool(under) + under


def differ(a: str | None, b: str | None) -> bool:
    """True if two units are both known and are not the same."""
    return bool(a and b) and a != b and {a, b} not in _ALIKE and _measure(str(a)) != _measure(str(b))


@lru_cache(1024)
def _measure(name: str) -> Measure:
    size, powers = Fraction(1), Counter[str]()
    for unit, exponent in _factors(name) or ():
        of_one, of_those = _of_one(unit)
        size *= of_one**exponent
        powers.update({base: n * exponent for base, n in of_those})
    return size, frozenset((base, n) for base, n in powers.items() if n)


def _of_one(name: str) -> Measure:
    """The size of a unit with or without a prefix."""
    unit, prefix = _one(name) or (name, 0)
    size, _, others = _UNITS[unit][0].partition(" ")
    of_those = _measure(others) if size else (Fraction(1), frozenset({(unit, 1)}))
    return Fraction(size or 1) * of_those[0] * Fraction(10) ** prefix, of_those[1]


def _factors(words: str) -> list[tuple[str, int]] | None:
    """The units that are multiplied, each with its exponent: all behind a slash divide. None where one is unknown."""
    found: list[tuple[str, int]] = []
    words = re.sub(r"\\mu[\s{]*", "\u03bc", words.replace(r"\Omega", "\u03a9").replace("\u00b5", "\u03bc"))
    if words.strip()[:1] == "/" or words.rstrip()[-1:] == "/":
        return None
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
            found.append((_common(*one), sign * power))
            power = 1
    return found if power == 1 else None


def _common(unit: str, prefix: int) -> str:
    return next((mark for mark, power in _PREFIXES.items() if power == prefix), "") + unit


@lru_cache(1024)
def _one(word: str) -> tuple[str, int] | None:
    """The unit that a word or a symbol names, and the power of ten before it."""
    singular = [word, *(word.removesuffix(end) for end in ("es", "s") if len(word) > 2 and word.endswith(end))]
    for each in singular:
        if each in _NAMES:
            return _NAMES[each], 0
    for names in (_NAMES, _LOWER) if len(word) > 1 else ():
        for each in singular:
            for prefix, power in _PREFIXES.items():
                name = each.removeprefix(prefix) if each.startswith(prefix) else ""
                if (unit := names.get(name)) in _PREFIXED and (len(prefix) < 4) == (name.casefold() in (str(unit).casefold(), "\u03c9")):
                    return unit, power
        if word != word.casefold():
            return _one(word.casefold())
        if unit := next((_LOWER[each] for each in singular if each in _LOWER), None):
            return unit, 0
    return None
