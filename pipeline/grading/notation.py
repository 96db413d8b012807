"""One way to write an answer: a text enters, and the same text leaves without what only says how it is laid out.

`clean` is what every comparison starts from: Markdown emphasis, dollars and layout commands go, digits of any script and characters that
LaTeX has commands for are written in one way, and a unit is marked. Time is linear in the length of the text, and nothing raises.
"""

import re
import unicodedata
from functools import partial

from pipeline.grading.words import in_figures

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
    """What each character is in ASCII and LaTeX, worked out when it is first met."""

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
    """What `clean` returned without the marks of units, dollars, percents and degrees, and without spaces that separate no digits."""
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
    """What a `\\text{}` holds, marked as a possible unit where it stands behind something."""
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
_STYLES = r"\\(?:underline|emph|texttt|mathtt|mathsf|textsf|textsc|bm|pmb|ensuremath|mathstrut)\s*\{([^{}]*)\}"
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
        (r"^\{(?!.*\\(?:choose|over|atop)(?![a-z]))([^{},;]*)\}$", r"\1"),
        (r"(?<=\d)\s\([A-Za-z -]{3,30}\)$|^\s+|\s+$", ""),
    )
]
"""How each way to write something is replaced, in this order."""
