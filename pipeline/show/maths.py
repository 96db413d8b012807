"""Text with formulas in LaTeX, as HTML: text enters, escaped text with MathML in the place of its formulas leaves.

What is no formula, or none that can be read, stays as it is written. The text is a model's: only elements and attributes of presentation
MathML get through, and whatever a formula says is text in them.
"""

import html
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from xml.etree.ElementTree import Element, tostring

from latex2mathml.converter import convert_to_element
from markupsafe import Markup, escape

from pipeline.files import sanitize

LONGEST, DEEPEST = 2_000, 40
"""Characters, and braces within braces, of a formula that is converted."""
FORMULA = re.compile(
    r"\\\[(?P<display>(?:(?!\\\[)[\s\S])+?)\\\]|\\\((?P<inline>(?:(?!\\\()[\s\S])+?)\\\)|\$\$(?P<dollars>[^$]+)\$\$"
    r"|(?<![\\$])\$(?P<dollar>(?=[^\s$])[^\n$]*(?<=[^\s\\]))\$(?![\d$])|(?P<boxed>\\boxed\{(?:[^{}$]|\{[^{}$]*\})*\})"
)
"""A formula in a text. One in single dollars neither begins nor ends with a space, and no digit follows: `$5 and $6` is money. Each
branch ends before it begins again, so that a text is read in linear time. Models also write a box without any marks."""
COMMAND = re.compile(r"\\[a-zA-Z]+|[\^_]")
"""What makes an answer without marks a formula."""
ALIGNED = re.compile(r"\{(aligned|alignedat|gathered|split)\}")
"""Environments that the converter knows by another name."""
ELEMENTS = frozenset(
    "math menclose mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow ms mspace msqrt mstyle msub msubsup msup "
    "mtable mtd mtext mtr munder munderover none".split()
)
ATTRIBUTES = frozenset(
    "accent columnalign columnlines columnspacing depth display displaystyle fence form height largeop linethickness lspace mathvariant "
    "maxsize minsize movablelimits notation rowlines rowspacing rspace scriptlevel separator stretchy symmetric voffset width".split()
)


def with_maths(text: str | None) -> Markup:
    """`text` as HTML, with its formulas as MathML."""
    return Markup("").join(_parts(sanitize(text or "").strip()))


def answer(text: str | None) -> Markup:
    """An answer as HTML: all of it is a formula where it has a command and no mark of one."""
    said = sanitize(text or "")
    if COMMAND.search(said) and not FORMULA.search(said) and (found := mathml(said, False)) is not None:
        return found
    return with_maths(said)


def _parts(text: str) -> Iterator[Markup]:
    end = 0
    for found in FORMULA.finditer(text):
        kind = str(found.lastgroup)
        if (formula := mathml(found[kind], kind in ("display", "dollars"))) is not None:
            yield escape(text[end : found.start()])
            yield formula
            end = found.end()
    yield escape(text[end:])


@lru_cache(4096)
def mathml(latex: str, display: bool) -> Markup | None:
    """A formula as MathML; None where it is too long or cannot be converted."""
    depths = list(accumulate((letter == "{") - (letter == "}") for letter in latex))
    if len(latex) > LONGEST or max(depths, default=0) > DEEPEST:
        return None
    try:
        element = convert_to_element(ALIGNED.sub(r"{align*}", latex), display="block" if display else "inline")
        for each in element.iter():
            _clean(each)
        element.set("title", latex)
        return Markup(tostring(element, encoding="unicode"))
    except Exception:  # of whatever kind the converter raises for LaTeX that it does not know
        return None


def _clean(element: Element) -> None:
    """Leave what presentation MathML has; raises `ValueError` for another element, and for a command that was not understood."""
    if element.tag not in ELEMENTS or (element.tag == "mi" and COMMAND.match(element.text or "")):
        raise ValueError(element.tag, element.text)
    for name in set(element.keys()) - ATTRIBUTES:
        del element.attrib[name]
    element.text = sanitize(html.unescape(element.text or "")) or None
