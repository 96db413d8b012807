"""Numbers in words: `twenty-one`, `half a million`, `3 dozen` and `5th` enter, figures leave. Time is linear, and nothing raises."""

import re
from fractions import Fraction

_ONES = "one two three four five six seven eight nine"
_TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SIZES = {"dozen": 12, "thousand": 10**3, "lakh": 10**5, "million": 10**6, "crore": 10**7, "billion": 10**9, "trillion": 10**12}
_SIZES |= {"万": 10**4, "亿": 10**8}
_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth", "twelve": "twelfth"}
_WORDS = {"zero": ("t", 0), "hundred": ("h", 100), "and": ("&", 0), "of": ("", 0)} | dict.fromkeys(("a", "an"), ("a", 1))
"""The kind of each word, a letter of `_GRAMMAR`, and its value."""
for _kind, _words, _start, _step in (("o", _ONES, 1, 1), ("t", _TEENS, 10, 1), ("T", _TENS, 20, 10)):
    for _place, _word in enumerate(_words.split()):
        _value = _start + _place * _step
        _WORDS[_word] = _kind, _value
        _WORDS[_ORDINALS.get(_word, f"{_word.removesuffix('y')}{'ie' * (_kind == 'T')}th")] = "p" if _value > 2 else "r", _value
_WORDS |= {word: ("s", size) for word, size in _SIZES.items()} | {"hundredth": ("p", 100), "thousandth": ("p", 1000)}
_WORDS |= {"half": ("p", 2), "halve": ("p", 2), "quarter": ("p", 4)}

_SMALL = "(?:To?|[ot])"
_HUNDREDS = f"(?:(?:{_SMALL}|a)?h(?:&?{_SMALL})?|{_SMALL})"
_WHOLE = f"(?:{_HUNDREDS}|a(?=s))(?:s+(?:&?{_HUNDREDS})?)*"
_GRAMMAR = re.compile(
    f"(?:(?P<whole>{_WHOLE})(?:&(?P<more>(?:{_SMALL}|a)?p))?|(?P<part>(?:{_WHOLE}|a)?p)|(?P<place>T?r))(?P<times>a?s+)?a?"
)

_ANY = "|".join(sorted(_WORDS, key=len, reverse=True))
SIZE = rf"(?:hundred|{'|'.join(_SIZES)})s?(?![A-Za-z])"
"""A word that multiplies the number before it."""
_RUN = re.compile(
    r"(?:^|(?<=[=(\[{,;])(?<!\\unit\{)(?<!\d\\text\{)|(?<=\band)|(?<=\bor))(\s*)"  # `5\text{ seconds}` has no ordinal
    rf"(?:the\s)?((?:minus|negative)\s)?((?:{_ANY})s?(?:[ -](?:{_ANY})s?)*)(?![A-Za-z-])",
    re.IGNORECASE,
)
_SIZED = re.compile(
    r"(?<![\d.,])(?:(?:(\d{1,99})\s*)??(?:\\frac\{(\d{1,99})\}\{(\d{1,99})\}|(?<!\d)(\d{1,99})/(\d{1,99}))"
    r"|(\d{1,3}(?:[ ,]\d{3}){1,9}(?:\.\d{1,99})?|\d{0,99}\.?\d{1,99}))"
    rf"[\s-]*(\\unit\{{\s*)?({SIZE}(?:[\s-]+{SIZE}){{0,3}})\s*(\}})?\s*(?=(.)?)",
    re.IGNORECASE | re.ASCII,
)
_NTH = re.compile(r"(?<=\d)\s?(?:\^?\s?\{?\s?(?:\\unit\{)?(?:st|nd|rd|th)\b\}{0,2})", re.ASCII)
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")


def in_figures(text: str) -> str:
    """`text` with figures for numbers in words, if these are what it consists of, and with words such as `million` multiplied out."""
    text = _SIZED.sub(_multiplied, _NTH.sub("", text))
    told = _RUN.sub(_counted, text)
    return told if len(_PROSE.findall(told)) <= 2 else text


def _in_latex(value: Fraction) -> str:
    """An exact number."""
    return str(value) if value.denominator == 1 else rf"{'-' * (value < 0)}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def _singular(word: str) -> str:
    lower = word.casefold()
    return lower if lower in _WORDS else lower.removesuffix("s")


def _multiplied(found: re.Match[str]) -> str:
    over, under = found[2] or found[4], found[3] or found[5]
    if under and not int(under):
        return found[0]
    value = int(found[1] or 0) + Fraction(int(over), int(under)) if under else Fraction(re.sub("[ ,]", "", found[6]))
    for word in re.findall(SIZE, found[8], re.IGNORECASE):
        value *= _WORDS[_singular(word)][1]
    return _in_latex(value) + (r"\unit{" if found[7] and not found[9] else " " if found[10] else "")


def _counted(found: re.Match[str]) -> str:
    """The figures for a run of words that count; the run itself where it is no number."""
    behind = found.string[found.end() :].lstrip()
    alone = not behind or behind[0] in ",;)]}" or behind.startswith(("and ", "or "))
    for counted in ([found[3]], re.split(r"\sand\s", found[3], flags=re.IGNORECASE)):
        values = [_value_of(each, alone) for each in counted]
        if None not in values:
            return found[1] + "-" * bool(found[2]) + " and ".join(_in_latex(value) for value in values if value is not None)
    return found[0]


def _value_of(counted: str, alone: bool) -> Fraction | None:
    """The number that words are; an ordinal one only where it stands `alone`."""
    words = [each for word in re.split("[ -]", counted) if (each := _WORDS[_singular(word)])[0]]
    parsed = _GRAMMAR.fullmatch("".join(kind for kind, _ in words)) if len(words) < 20 else None
    if parsed is None:
        return None

    def of(group: str) -> list[tuple[str, int]]:
        return words[slice(*parsed.span(group))] if parsed[group] else []

    part, more = of("part"), of("more")
    ordinal = of("place") or (part if [kind for kind, _ in part] in (["p"], ["T", "p"]) and part[-1][1] not in (2, 4) else [])
    if ordinal and not parsed["times"]:
        return Fraction(sum(value for _, value in ordinal)) if alone else None
    value = Fraction(_whole(of("whole")))
    for *over, (_, under) in filter(None, (part, more)):
        value += Fraction(_whole(over) or 1, under)
    for kind, size in of("times"):
        value *= size if kind == "s" else 1
    return value


def _whole(words: list[tuple[str, int]]) -> int:
    total = group = 0
    for kind, value in words:
        if kind == "h":
            group = (group or 1) * 100
        elif kind == "s":
            total, group = (total + group) * value if not group and total else total + (group or 1) * value, 0
        elif kind in "oTt":
            group += value
    return total + group
