"""Does this answer equal that one: text enters, a verdict leaves, in time linear in the text and without evaluating it.

Equal means equal after light normalisation (spaces, `$`, thousands commas, `\\text{}`, percent signs) or equal as
rational numbers; full mathematical equivalence is not decided here. Nothing here raises.
"""

import re
from fractions import Fraction

LONGEST = 10_000
"""Longer answers, in characters, are compared as they stand."""

_BRACE = re.compile(r"\\boxed\s*\{|\\\\(?!boxed)|\\[{}]|[{}]")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:(?:,|\{,\})(?:\\!)?\d{3})+(?:\.\d+)?", re.ASCII)
_WRAPPED = re.compile(r"\\(?:text|mbox|mathrm|textbf|mathbf)\s*\{([^{}]*)\}")
_NOISE = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\[!,;: ]|\^\{?\\circ\}?|\\?[%$]|\s")
_SHORT_FRAC = re.compile(r"\\frac(\d)(\d)", re.ASCII)
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)"
_RATIO = re.compile(rf"({_NUMBER})(?:/({_NUMBER}))?", re.ASCII)
_FRAC = re.compile(rf"([+-]?)\\frac\{{({_NUMBER})\}}\{{({_NUMBER})\}}", re.ASCII)
_MOST_DIGITS = 200


def extract_answer(text: str) -> str | None:
    """What the last balanced, not blank `\\boxed{...}` holds, stripped; None where there is none. Of nested ones the inner."""
    answer, answer_start = None, -1
    opened: list[tuple[int, bool]] = []
    for brace in _BRACE.finditer(text, max(text.find("\\boxed"), 0)) if "\\boxed" in text else ():
        mark = brace.group()
        if mark[-1] == "{" and mark != "\\{":
            opened.append((brace.end(), mark != "{"))
        elif mark == "}" and opened:
            start, boxed = opened.pop()
            if boxed and start > answer_start and (content := text[start : brace.start()].strip()):
                answer, answer_start = content, start
    return answer


def has_boxed(text: str) -> bool:
    """Whether `extract_answer` would find one; without a `\\boxed` in the text this is one substring search."""
    return extract_answer(text) is not None


def same_answer(a: str, b: str) -> bool:
    """Whether two answers are the same; a percent sign, a degree sign and a dollar sign count for nothing."""
    if a.strip() == b.strip():
        return True
    if max(len(a), len(b)) > LONGEST:
        return False
    a, b = _normal(a), _normal(b)
    if a == b:
        return a != ""
    left, right = _rational(a), _rational(b)
    return left is not None and left == right


def _normal(text: str) -> str:
    text = text.strip().strip("$").strip().removesuffix(".")
    text = text.replace("\u2212", "-").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    if _GROUPED.fullmatch(text.replace("\\$", "")):
        text = re.sub(r"[^0-9.+-]", "", text)
    text = _NOISE.sub("", _WRAPPED.sub(r"\1", text))
    return _SHORT_FRAC.sub(r"\\frac{\1}{\2}", text).removesuffix(".")


def _rational(text: str) -> Fraction | None:
    if len(text) > _MOST_DIGITS:
        return None
    ratio = _RATIO.fullmatch(text)
    sign, over, under = ("", ratio[1], ratio[2] or "1") if ratio else ("", "", "0")
    if frac := _FRAC.fullmatch(text):
        sign, over, under = frac[1], frac[2], frac[3]
    if not over or not Fraction(under):
        return None
    value = Fraction(over) / Fraction(under)
    return -value if sign == "-" else value
