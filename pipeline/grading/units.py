"""The unit of an answer: text enters, the text without the unit and the unit's common name leave.

Units are told apart, never converted: 5 cm is not 5 m, and 1 m is not 100 cm. A unit on one side only is ignored, because the
question names it; so is a noun that is no unit (`25 apples`).
"""

import re

_SYNONYMS = {
    "cm": "centimeter centimetre",
    "mm": "millimeter millimetre",
    "m": "meter metre",
    "km": "kilometer kilometre",
    "in": "inch inche",
    "ft": "foot feet",
    "yd": "yard",
    "mi": "mile",
    "g": "gram gm",
    "kg": "kilogram kilo",
    "mg": "milligram",
    "lb": "pound lbs",
    "oz": "ounce",
    "l": "liter litre",
    "ml": "milliliter millilitre",
    "gal": "gallon",
    "s": "second sec",
    "min": "minute",
    "h": "hour hr",
    "day": "",
    "week": "",
    "month": "",
    "year": "yr",
    "dollar": "usd buck",
    "cent": "",
    "euro": "eur",
    "yen": "jpy",
    "rupee": "inr",
    "degree": "deg",
    "radian": "rad",
    "mph": "",
    "kmh": "kph",
    "n": "newton",
    "j": "joule",
    "w": "watt",
    "v": "volt",
    "hz": "hertz",
    "mol": "mole",
    "c": "coulomb",
    "pa": "pascal",
    "kw": "kilowatt",
    "kj": "kilojoule",
    "ev": "electronvolt",
    "ohm": "",
    "acre": "",
}
_NAMES = {synonym: name for name, synonyms in _SYNONYMS.items() for synonym in (name, *synonyms.split())}
_SIGNS = {"\\dollar": "dollar", "€": "euro", "\\euro": "euro", "£": "sterling", "\\pounds": "sterling", "¥": "yen", "₹": "rupee"}
_SQUARES = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}
_SIGN = re.compile(r"^\s*([+-]?)\s*(" + "|".join(map(re.escape, _SIGNS)) + r")\s*(?=[\d.+-]|\\frac)")
_TRAILING_SIGN = re.compile(r"(" + "|".join(map(re.escape, _SIGNS)) + r")\s*$")
_DEGREE = re.compile(r"\^\s*\{?\s*\\circ\s*\}?\s*([CF]?)\s*$|\\degree\s*$")
_POWER = re.compile(r"\s*\^\s*\{?\s*([23])\s*\}?")
_WRAPPED = re.compile(r"((?:\\unit\{[^{}]*\}(?:\s*\^\s*\{?\s*[23]\s*\}?)?\s*/?\s*)+)$")
_WORD = r"[A-Za-z]+\.?(?:\s?\^\s?\{?[23]\}?)?"
_BARE = re.compile(rf"(?:(?<=[\d)}}\]])|(?<=\\pi))(\s*)({_WORD}(?:(?:\s|\s?/\s?){_WORD})*)\s*$", re.ASCII)
_SYMBOL = re.compile(r"(?:(?<=[\d)}\]])\s|(?<=\\pi)\s?)\s*([mgshlLNJWV](?:\s?\^\s?\{?[23]\}?)?)\s*$", re.ASCII)
_LONGEST_BARE = 60
_SURE = 4
"""A word of at least this many letters after a number and a space is not read as a product of variables."""


def split_unit(text: str) -> tuple[str, str | None]:
    """`text` without its unit, and the unit's name: None where there is none, empty for a word that is no known unit.

    `\\text{}` is expected as `\\unit{}`, an escaped dollar sign as `\\dollar`; see `forms.clean`.
    """
    if found := _SIGN.match(text):
        return found[1] + text[found.end() :], _SIGNS[found[2]]
    if found := _TRAILING_SIGN.search(text):
        return text[: found.start()], _SIGNS[found[1]]
    if found := _DEGREE.search(text):
        return text[: found.start()], "degree"
    if found := _WRAPPED.search(text):
        words = found[1].replace("\\unit", " ")
        if (name := unit_name(words)) or len(re.sub("[^a-z]", "", words.casefold())) > 1:
            return text[: found.start()].rstrip(), name
    if (found := _BARE.search(text, max(0, len(text) - _LONGEST_BARE))) and (bare := _bare_name(found[2], bool(found[1]))) is not None:
        return text[: found.start()], bare
    return text, None


def split_symbol(text: str) -> tuple[str, str | None]:
    """Like `split_unit`, of a unit that is one letter, such as `5 m`; to be asked only where a variable would make no sense."""
    found = _SYMBOL.search(text, max(0, len(text) - _LONGEST_BARE))
    return (text, None) if found is None else (text[: found.start()], unit_name(found[1]))


def unit_name(words: str) -> str:
    """The common name of a unit in words or symbols, such as `km/h`, `square meters`, `cm^2`; empty for an unknown one."""
    parts = re.split(r"\s*/\s*|\s+per\s+", re.sub("[{}.]", "", _POWER.sub(r"\1", words.casefold())).strip())
    names = [_one_name(part.split()) for part in parts]
    return "" if None in names else "/".join(str(name) for name in names)


def differ(a: str | None, b: str | None) -> bool:
    """True if two units are both known and are not the same."""
    return bool(a) and bool(b) and a != b


def _one_name(words: list[str]) -> str | None:
    power = _SQUARES.get(words[0], "") if words else ""
    words = words[1:] if power else words
    if words and words[-1] in ("squared", "cubed"):
        power, words = "2" if words[-1] == "squared" else "3", words[:-1]
    if len(words) != 1:
        return None
    word = words[0]
    if word[-1:] in "23" and len(word) > 1:
        word, power = word[:-1], word[-1]
    name: str | None = _NAMES.get(word) or _NAMES.get(word.removesuffix("s")) or _NAMES.get(word.removesuffix("es"))
    return name and name + power


def _bare_name(words: str, spaced: bool) -> str | None:
    """The name of a unit written without `\\text{}`, empty for an unknown one; None where `words` may as well be variables."""
    first = re.split(r"[\s/^.]", words.strip())[0]
    if len(first) == 1:
        return None
    name = unit_name(words)
    if name:
        return name
    return "" if spaced and len(first) >= _SURE else None
