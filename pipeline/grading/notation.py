"""One way to write an answer: a text enters, and the same text leaves without its layout.

Every comparison starts with `clean`: Markdown emphasis, dollars and layout commands go, digits of any script and characters that LaTeX has
commands for are written in one way, a unit is marked, and words that count (`twenty-one`, `5th`) become figures.
Time is linear in the length of the text, and nothing raises.
"""

import re
import unicodedata
from fractions import Fraction
from functools import partial

_CHARACTERS = {
    "\u2212": "-", "\u2010": "-", "\u2011": "-", "\u2012": "-", "\u2013": "-", "\u00d7": r"\times ", "\u00f7": "/", "\u00b7": r"\cdot ",
    "\u22c5": r"\cdot ", "\u2044": "/", "\u2215": "/", "\u03c0": r"\pi ", "\u221e": r"\infty ", "\u2264": r"\le ", "\u2265": r"\ge ",
    "\u2260": r"\ne ", "\u222a": r"\cup ", "\u2229": r"\cap ", "\u2208": r"\in ", "\u00b1": r"\pm ", "\u2213": r"\mp ",
    "\u00b0": r"^\circ ", "\u2205": r"\emptyset ", "\u221a": r"\sqrt", "\u03b8": r"\theta ",
    "\u03b1": r"\alpha ", "\u03b2": r"\beta ", "\u211d": r"\mathbb{R}",
    "\u2220": r"\angle ", "\u221b": r"\sqrt[3]", "\u2248": r"\approx ", "\u2026": "...", "\u201c": '"', "\u201d": '"',
    "\u2018": "'", "\u2019": "'", "\u2032": "'",
}  # fmt: skip
_RAISED = re.compile("([\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b]+)|[\u2080-\u2089]+")
"""Raised characters, and lowered ones."""
_GAP = "(?:[\u00a0\u2009\u202f\u2007\u2008\u205f]|\\\\[,;: ]|~)"
_GROUPED_BY_GAPS = re.compile(rf"(?<![\d.,])\d{{1,3}}(?:{_GAP}\d{{3}})+(?!\d)", re.ASCII)
BOUND = (
    r"\b(?:(?P<less>(?:strictly )?(?:less|fewer|smaller|lower) than|below|under)"
    r"|(?P<more>(?:strictly )?(?:more|greater|larger|higher|bigger) than|above|over|exceed(?:s|ing))"
    r"|(?P<most>at most|up to|not exceeding|(?:no|not) (?:more|greater|larger|higher) than)"
    r"|(?P<least>at least|(?:no|not) (?:less|fewer|smaller|lower) than))"
    r"(?P<equal> or equal to)?"
)
"""How a sentence says that a number is a bound."""
_BOUND = re.compile(rf"(?:([a-zA-Z]) (?:is |must be )?)?{BOUND}\s*(?=[-+]?[\d.]|\\(?:frac|sqrt|pi|dollar))", re.IGNORECASE)
_MARK = re.compile(r"\\unit\{([^{}]*)\}|\\dollar|%|\^\s*\{?\s*\\circ\s*\}?")
# A space between two digits stays: it keeps 1 1/2 apart from 11/2.
_LOOSE_SPACE = re.compile(r"(?<!\d)\s+|\s+(?!\d)")
_ONLY_DIGITS = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)


class _Characters(dict[int, str]):
    """Each character in ASCII and LaTeX, computed on first use."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        plain = char if char.isascii() or unicodedata.category(char) != "Cf" else ""
        if char.isdecimal():
            plain = str(unicodedata.decimal(char))
        elif not (normal := unicodedata.normalize("NFKC", char)).isspace():
            over, _, under = normal.partition("\u2044")
            plain = rf"\frac{{{over}}}{{{under}}}" if over and under else plain and (normal.translate(self) if normal != char else char)
        return self.setdefault(code, plain)


_PLAIN = _Characters({ord(char): plain for char, plain in _CHARACTERS.items()})


def clean(text: str) -> str:
    """`text` with emphasis, dollars, layout commands, spaces, arrays, digits and characters outside LaTeX each written in one way.

    An escaped dollar becomes `\\dollar`, a `\\text{}` behind something `\\unit{}`, and every matrix a `matrix`.
    """
    if _ONLY_DIGITS.fullmatch(text):
        return text
    text = in_ascii(_DASH.sub("-", visible(text)))
    for rule in _RULES:
        text = rule(text)
    return in_figures(_BOUND.sub(_bounded, text, count=1) if _BOUND.match(text) else text)


def _bounded(found: re.Match[str]) -> str:
    """The relation for the words of a bound: `at most 5` is `x \\le 5`."""
    below, strictly = found["less"] or found["most"], (found["less"] or found["more"]) and not found["equal"]
    return f"{found[1] or 'x'} {('<' if below else '>') if strictly else chr(92) + ('le' if below else 'ge')} "


def compact(cleaned: str) -> str:
    """The text from `clean` without the marks of units, dollars, percents and degrees, and without spaces that separate no digits."""
    return _LOOSE_SPACE.sub("", _MARK.sub(lambda found: found[1] or "", cleaned))


def visible(text: str) -> str:
    """`text` without characters that only say how others are laid out, such as the joiners and marks of direction (category Cf)."""
    return text if text.isascii() else "".join(char for char in text if unicodedata.category(char) != "Cf")


def in_ascii(text: str) -> str:
    """`text` with digits of all scripts, full-width signs and mathematical characters as ASCII and LaTeX; digits grouped by narrow, fixed
    or LaTeX spaces become one number."""
    if not text.isascii():
        text = _RAISED.sub(lambda found: f"{'^' if found[1] else '_'}{{{unicodedata.normalize('NFKC', found[0])}}}", text).translate(_PLAIN)
    return _GROUPED_BY_GAPS.sub(lambda found: re.sub(r"[^0-9]", "", found[0]), text)


def _unwrapped(found: re.Match[str]) -> str:
    """The content of a `\\text{}`, marked as a possible unit if it follows something."""
    words = re.sub(r"\s*\^\s*\{\s*(-?\d)\s*\}", r"^\1", found[2]).strip()
    if words in ("and", "or", "percent", "%"):
        return "%" if words[0] in "p%" else f" {words} "
    behind = found.string[: found.start()].rstrip()[-1:]
    upright = found[1] not in ("mathbf", "mathit", "boldsymbol")
    return f"\\unit{{{words}}}" if upright and "{" not in words and behind and behind not in "=<>+-*([,;:&\\" else f" {words} "


_DASH = re.compile(
    r"(?:^|(?<=[=(\[{,;:*+/<>$])|(?<=\bis )|(?<=\*\*))[\u2014\u2015]\s?(?=[\d.\\(a-zA-Z])|(?<=[\w)}])[\u2014\u2015](?=\d|[a-z]\b|\\)"
)
"""A dash that is meant as a minus sign: one that begins something, or stands between two things without a space."""
_STYLES = r"\\(?:underline|emph|texttt|mathtt|mathsf|textsf|textsc|bm|pmb|ensuremath|mathstrut)\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
_NO_TEXT = (
    r"|\\(?:(?:text)?color|[hv]space\*?|[hv]?phantom|tag\*?|label)\s*\{[^{}]*\}"
    r"|\\(?:begin|end)\s*\{(?:align(?:ed)?|gathered|equation|split)\*?\}|\\(?:m?kern|[hm]skip)\s*-?[\d.]+\s*[a-z]{2}"
)
_LAYOUT = (
    r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|(?:script)?scriptstyle|limits|tiny|(?:script|footnote|normal)size|small|[lL]arge|LARGE"
    r"|[hH]uge|centering|boldmath|bfseries|bf|rm|it|sf|tt|strut|nonumber|notag|hfill|newline|null|relax)(?![a-zA-Z])|\\[!@]"
)
_SPACES = r"(?<!\\)\\(?:[,;: ]|(?:q?quad|en(?:space|skip)|th(?:in|ick)space|medspace|space)(?![a-zA-Z]))|~|\s+"
_TEXT = r"\\(text(?:bf|it|rm|normal)?|[mh]box|mathrm|mathbf|mathit|boldsymbol)\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
_MATRIX = r"(?:array\}\s*\{[^{}]*|[pbvBV]?(?:small)?matrix)\}"
_LEAD = (
    r"^(?:(?:so|thus|therefore|hence|then)(?:,|\b)\s+)?(?:(?:it|this|that)\s+(?:is|equals)\s+|"
    r"(?:the\s+)?(?:final\s+|correct\s+)?(?:answer|solution|result)s?\s*(?:is|are|equals)?\s*:?\s+)?"
)
_RULES = [
    partial(re.compile(pattern, re.IGNORECASE if pattern == _LEAD else re.ASCII).sub, written)
    for pattern, written in (
        (r"(?<![\w*)}\]])(\*{2,3}|__)(?=[^\s*_])([^\n]{0,500}?[^\s*_])\1(?![\w*({\[])", r"\2"),
        (r"^\s*([*_`])([^*_`\n]+)\1([.!]?)\s*$", r"\2\3"),
        (r"(?<=[\w)}])\s?\*\*\s?(?=[\w({\\-])", "^"),
        (r"(?<!\\)\$\s*(,|;|and|or)\s*(?<!\\)\$", r" \1 "),
        (r",\\!\s*(?=\d)|\{,\}", ","),
        (r"\\\$", r"\\dollar "),
        (r"\$|\\(?=%)", ""),
        (_STYLES + _NO_TEXT, r"\1"),
        (
            r"(?<![\d.])(\d{0,20}\.\d{0,20}?)(?:(\d)\2\2+\s?(?:\.\.\.|\\l?dots)|\((\d+)\)|\\(?:bar|dot)\s*\{(\d+)\})",
            r"\1\\overline{\2\3\4}",
        ),
        (r"(?<!\\)\\[()\[\]]", ""),
        (r"\\cr ", r"\\\\ "),
        (r"\\langle", "("),
        (r"\\rangle", ")"),
        (_LAYOUT, ""),
        (r"\\[dtc]?frac(?![a-zA-Z])\s*", r"\\frac"),
        (r"\\frac([0-9a-zA-Z])", r"\\frac{\1}"),
        (r"(\\frac\{[^{}]*\})\s*([0-9a-zA-Z])", r"\1{\2}"),
        (r"(\\frac\{[^{}]*\})\s+(?=\{)", r"\1"),
        (r"\\begin\{" + _MATRIX, r"\\begin{matrix}"),
        (r"\\end\{(?:array|[pbvBV]?(?:small)?matrix)\}", r"\\end{matrix}"),
        (_SPACES, " "),
        (_TEXT, _unwrapped),
        (r"\\?(?<![A-Za-z])sqrt\s*(?:\(([^()]*)\)|(\d+(?:\.\d+)?)|([A-Za-z]))", r"\\sqrt{\1\2\3}"),
        (r"(\\sqrt\[\d+\])\s*(\d+|[A-Za-z])", r"\1{\2}"),
        (r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi "),
        (r"\s*\bpercent\b", "%"),
        ("<=", r"\\le "),
        (">=", r"\\ge "),
        ("!=", r"\\ne "),
        (r"^\s+|\s+$", ""),
        (_LEAD, ""),
        (r"^[ ,;:]+|[ .,;:]+$", ""),
        (r"^(?:=|\\approx)\s*|[\\ ]+$", ""),
        (r"^([\"'])(.+)\1$", r"\2"),
        (r"^\{(?!.*\\(?:choose|over|atop)(?![a-z]))((?:[^{},;]|\{[^{},;]*\})*)\}$", r"\1"),
        (r"(?<=\d)\s\([A-Za-z -]{3,30}\)$|^\s+|\s+$", ""),
    )
]
"""How each way to write something is replaced, in this order."""

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
    """`text` with figures for numbers in words, if it has hardly any others, and with words such as `million` multiplied out."""
    text = _SIZED.sub(_multiplied, _NTH.sub("", text))
    counted = _RUN.sub(_counted, text)
    return counted if len(_PROSE.findall(counted)) <= 2 else text


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
