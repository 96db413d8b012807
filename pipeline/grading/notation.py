"""One way to write an answer: a text enters, and the same text leaves without what only says how it is laid out.

`clean` is what every comparison starts from: Markdown emphasis, dollars and layout commands go, digits of any script and characters that
LaTeX has commands for are written in one way, and a unit is marked. Time is linear in the length of the text, and nothing raises.
"""

import re
import unicodedata

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
_RAISED = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b]+")
_LOWERED = re.compile("[\u2080-\u2089]+")
_GAP = "(?:[\u00a0\u2009\u202f\u2007\u2008\u205f]|\\\\[,;: ]|~)"
_GROUPED_BY_GAPS = re.compile(rf"(?<![\d.,])\d{{1,3}}(?:{_GAP}\d{{3}})+(?!\d)", re.ASCII)
_BOLD = re.compile(r"(?<![\w*)}\]])(\*{2,3}|__)(?=[^\s*_])([^\n]{0,500}?[^\s*_])\1(?![\w*({\[])")
_SLANTED = re.compile(r"([*_`])([^*_`\n]+)\1([.!]?)")
_POWER = re.compile(r"(?<=[\w)}])\s?\*\*\s?(?=[\w({\\-])")
_DELIMITERS = re.compile(r"(?<!\\)\\[()\[\]]")
_ROOT = re.compile(r"\\?(?<![A-Za-z])sqrt\s*(?:\(([^()]*)\)|(\d+(?:\.\d+)?)|([A-Za-z]))", re.ASCII)
_NTH_ROOT = re.compile(r"(\\sqrt\[\d+\])\s*(\d+|[A-Za-z])", re.ASCII)
_PI = re.compile(r"(?<![\\A-Za-z])pi(?![A-Za-z])")
_SEPARATING_DOLLARS = re.compile(r"(?<!\\)\$\s*(,|;|and|or)\s*(?<!\\)\$")
_STYLE = re.compile(
    r"\\(?:underline|emph|texttt|mathtt|mathsf|textsf|textsc|bm|pmb|ensuremath|mathstrut)\s*\{([^{}]*)\}"
    r"|\\(?:(?:text)?color|[hv]space\*?|[hv]?phantom|tag\*?|label)\s*\{[^{}]*\}"
    r"|\\(?:begin|end)\s*\{(?:align(?:ed)?|gathered|equation|split)\*?\}|\\(?:m?kern|[hm]skip)\s*-?[\d.]+\s*[a-z]{2}"
)
_DASH = re.compile(
    r"(?:^|(?<=[=(\[{,;:*+/<>$])|(?<=\bis )|(?<=\*\*))[\u2014\u2015]\s?(?=[\d.\\(a-zA-Z])|(?<=[\w)}])[\u2014\u2015](?=\d|[a-z]\b|\\)"
)
"""A dash that is meant as a minus sign: one that begins something, or stands between two things without a space."""
_AGAIN = re.compile(r"(?<![\d.])(\d{0,20}\.\d{0,20}?)(?:(\d)\2\2+\s?(?:\.\.\.|\\l?dots)|\((\d+)\)|\\(?:bar|dot)\s*\{(\d+)\})", re.ASCII)
_LAYOUT = re.compile(
    r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|(?:script)?scriptstyle|limits|tiny|(?:script|footnote|normal)size|small|[lL]arge|LARGE"
    r"|[hH]uge|centering|boldmath|bfseries|bf|rm|it|sf|tt|strut|nonumber|notag|hfill|newline|null|relax)(?![a-zA-Z])|\\[!@]"
)
_SPACES = re.compile(r"(?<!\\)\\(?:[,;: ]|(?:q?quad|en(?:space|skip)|th(?:in|ick)space|medspace|space)(?![a-zA-Z]))|~|\s+")
_TEXT = re.compile(r"\\(text(?:bf|it|rm|normal)?|[mh]box|mathrm|mathbf|mathit|boldsymbol)\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_THIN_COMMA = re.compile(r",\\!\s*(?=\d)")
_FRAC = re.compile(r"\\[dtc]?frac(?![a-zA-Z])\s*")
_SHORT_FRAC = re.compile(r"\\frac(?:([0-9a-zA-Z])|(\{[^{}]*\}))\s*(?:([0-9a-zA-Z])|(\{))")
_LEAD = re.compile(
    r"^(?:(?:so|thus|therefore|hence|then)(?:,|\b)\s+)?(?:(?:it|this|that)\s+(?:is|equals)\s+|"
    r"(?:the\s+)?(?:final\s+|correct\s+)?(?:answer|solution|result)s?\s*(?:is|are|equals)?\s*:?\s+)?",
    re.IGNORECASE,
)
_ARRAY = re.compile(r"\\begin\{array\}\s*\{[^{}]*\}|\\begin\{[pbvBV]?(?:small)?matrix\}")
_ARRAY_END = re.compile(r"\\end\{(?:array|[pbvBV]?(?:small)?matrix)\}")
BOUND = (
    r"\b(?:(?P<less>(?:strictly )?(?:less|fewer|smaller|lower) than|below|under)"
    r"|(?P<more>(?:strictly )?(?:more|greater|larger|higher|bigger) than|above|over|exceed(?:s|ing))"
    r"|(?P<most>at most|up to|not exceeding|(?:no|not) (?:more|greater|larger|higher) than)"
    r"|(?P<least>at least|(?:no|not) (?:less|fewer|smaller|lower) than))"
    r"(?P<equal> or equal to)?"
)
"""How a sentence says that a number is a bound."""
_BRACES = re.compile(r"\{(?!.*\\(?:choose|over|atop)(?![a-z]))[^{},;]*\}")
_BOUND = re.compile(rf"(?:([a-zA-Z]) (?:is |must be )?)?{BOUND}\s*(?=[-+]?[\d.]|\\(?:frac|sqrt|pi|dollar))", re.IGNORECASE)
_MARK = re.compile(r"\\unit\{([^{}]*)\}|\\dollar|%|\^\s*\{?\s*\\circ\s*\}?")
# A space between two digits stays: it keeps 1 1/2 apart from 11/2.
_LOOSE_SPACE = re.compile(r"(?<!\d)\s+|\s+(?!\d)")
_ONLY_DIGITS = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)


def clean(text: str) -> str:
    """`text` with emphasis, dollars, layout commands, spaces, arrays, digits and characters outside LaTeX each written in one way.

    An escaped dollar becomes `\\dollar`, a `\\text{}` behind something `\\unit{}`, and every matrix a `matrix`.
    """
    if _ONLY_DIGITS.fullmatch(text):
        return text
    text = without_emphasis(in_ascii(_DASH.sub("-", visible(text))))
    text = _SEPARATING_DOLLARS.sub(r" \1 ", text)
    text = _THIN_COMMA.sub(",", text).replace(r"\$", r"\dollar ").replace("$", "").replace(r"\%", "%").replace("{,}", ",")
    text = _AGAIN.sub(lambda found: rf"{found[1]}\overline{{{found[2] or found[3] or found[4]}}}", _STYLE.sub(r"\1", text))
    text = _DELIMITERS.sub("", text).replace(r"\cr ", r"\\ ").replace(r"\langle", "(").replace(r"\rangle", ")")
    text = _fractions(_LAYOUT.sub("", text))
    text = _ARRAY_END.sub(r"\\end{matrix}", _ARRAY.sub(r"\\begin{matrix}", text))
    text = _TEXT.sub(_unwrapped, _SPACES.sub(" ", text)).strip()
    text = _PI.sub(r"\\pi ", _ROOT.sub(lambda found: rf"\sqrt{{{found[1] or found[2] or found[3] or ''}}}", text))
    text = _NTH_ROOT.sub(r"\1{\2}", text)
    text = re.sub(r"\s*\bpercent\b", "%", text.replace("<=", r"\le ").replace(">=", r"\ge ").replace("!=", r"\ne "))
    return in_figures(_bounded(_stripped(_LEAD.sub("", text).lstrip(" ,;:").rstrip(" .,;:"))))


def _stripped(text: str) -> str:
    """`text` without quotation marks around it, `=` or `\\approx` before it, and line breaks or a number in words behind it."""
    text = re.sub(r"^(?:=|\\approx)\s*", "", text).rstrip("\\ ")
    text = text[1:-1] if len(text) > 2 and text[0] == text[-1] and text[0] in "\"'" else text
    while _BRACES.fullmatch(text):
        text = text[1:-1].strip()
    return re.sub(r"(?<=\d)\s\([A-Za-z -]{3,30}\)$", "", text).strip()


def _bounded(text: str) -> str:
    """`text` as a relation where words say that it is a bound: `at most 5` is `x \\le 5`."""
    if (found := _BOUND.match(text)) is None:
        return text
    below, strictly = found["less"] or found["most"], (found["less"] or found["more"]) and not found["equal"]
    return f"{found[1] or 'x'} {('<' if below else '>') if strictly else chr(92) + ('le' if below else 'ge')} {text[found.end() :]}"


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
        text = _RAISED.sub(lambda found: f"^{{{_plain_digits(found[0])}}}", text)
        text = _LOWERED.sub(lambda found: f"_{{{_plain_digits(found[0])}}}", text)
        text = "".join(map(_in_ascii, visible(text)))
    return _GROUPED_BY_GAPS.sub(lambda found: re.sub(r"[^0-9]", "", found[0]), text)


def without_emphasis(text: str) -> str:
    """`text` without the marks of Markdown's emphasis and code; `**` between operands is a power."""
    if "*" in text or "_" in text or "`" in text:
        text = _BOLD.sub(r"\2", text)
        whole = _SLANTED.fullmatch(text.strip())
        text = whole[2] + whole[3] if whole else text
        text = _POWER.sub("^", text)
    return text


def _in_ascii(char: str) -> str:
    if char.isascii():
        return char
    if (known := _CHARACTERS.get(char)) is not None:
        return known
    if "\uff01" <= char <= "\uff5e":
        return chr(ord(char) - 0xFEE0)
    if char.isdecimal():
        return str(unicodedata.decimal(char))
    plain = unicodedata.normalize("NFKC", char)
    over, _, under = plain.partition("\u2044")
    if over and under:
        return rf"\frac{{{over}}}{{{under}}}"
    return "".join(map(_in_ascii, plain)) if plain not in (char, "") and not plain.isspace() else char


def _plain_digits(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace("\u2212", "-")


def _fractions(text: str) -> str:
    r"""`text` with every fraction as `\frac{}{}`, also `\dfrac12`, `\frac1{72}` and `\frac{1}2`."""
    if "frac" not in text:
        return text
    return _SHORT_FRAC.sub(
        lambda found: (
            rf"\frac{{{found[1]}}}" * (found[1] is not None)
            + rf"\frac{found[2]}" * (found[2] is not None)
            + (found[4] or f"{{{found[3]}}}")
        ),
        _FRAC.sub(r"\\frac", text),
    )


def _unwrapped(found: re.Match[str]) -> str:
    """What a `\\text{}` holds, marked as a possible unit where it stands behind something."""
    words = re.sub(r"\s*\^\s*\{\s*(-?\d)\s*\}", r"^\1", found[2]).strip()
    if words in ("and", "or", "percent", "%"):
        return "%" if words[0] in "p%" else f" {words} "
    behind = found.string[: found.start()].rstrip()[-1:]
    upright = found[1] not in ("mathbf", "mathit", "boldsymbol")
    return f"\\unit{{{words}}}" if upright and "{" not in words and behind and behind not in "=<>+-*([,;:&\\" else f" {words} "
