"""Which answer a text states: a text enters, what it gives as its answer leaves.

A text that ends in an answer says so: in its last `\\boxed{}`, in a line `#### ANSWER`, after `answer is`, `Answer:` or `Final Answer`, or
in bold in its last line. From a text without these a reader takes what it ends with: the last number, option or expression, whichever the
reference is. Time is linear in the length of the text, and nothing raises.
"""

import re
from typing import Literal, TypeAlias

from pipeline.grading.notation import in_ascii

Form: TypeAlias = Literal["number", "letter", "expression"]
"""What kind of thing a reference is, and so the answer that is looked for."""
THINK_CLOSE = "</think>"
MAX_PHRASES = 4
"""Phrases such as `the answer is` that are looked at, from the end."""

_BRACE = re.compile(r"\\boxed\s*\{|\\\\(?!boxed)|\\[{}]|[{}]")
_HASHES = re.compile(r"^[ \t]*####[ \t]+(\S[^\n]*)$", re.MULTILINE)
_PHRASE = re.compile(
    r"(?<![-\w])(?:answer|ans|final result|final solution)(?:\s+(?:to|of|for|here)\b[^\n.,:=?!]{0,80}?)?"
    r"(?:,?\s+(?:which\s+)?(?:is|(?:should|would|must|will|has to) be|equals|comes to)\b:?|[ \t]*[:=])\s*|\bfinal answer[^\w\n]{0,8}\n\s*",
    re.IGNORECASE,
)
_NO_ANSWER = re.compile(r"(?:not|n't|un\w+|wrong|incorrect|correct|right|the same|that|in)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?;](?=\s|$)|\n|,? (?:because|since|as|which|where|so|but|not|rather)\b")
_DISPLAY = re.compile(r"(?:\\\[|\$\$)\s*")
_DISPLAY_END = re.compile(r"\s*(?:\\\]|\$\$)")
_MATH = re.compile(r"\\\(([^\n]{1,500}?)\\\)|\\\[\s*([^\[\]]{1,500}?)\s*\\\]|(?<![\\$])\$\$?([^$\n]{1,500}?)(?<!\\)\$\$?")
_MARKS = re.compile(r"\*\*|__|`")
_BOLD = re.compile(r"\*\*([^*\n]{1,200})\*\*|(?<!\w)__([^_\n]{1,200})__(?!\w)")
_PROSE = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{3,}")
_DIGITS = r"(?:\d{1,3}(?:(?:,|\{,\}|,\\!)\d{3}(?!\d))+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
_NUMBER = re.compile(
    r"(?:(?<![\w.)}$])[-+])?(?:\\?\$\s?-?)?(?<![\w.])"
    rf"(?:(?:\d+\s?)?\\[dt]?frac\s*(?:\{{\s*-?{_DIGITS}\s*\}}\s*\{{\s*{_DIGITS}\s*\}}|\d\d(?!\d))"
    rf"|{_DIGITS}(?:[eE][+-]?\d+(?!\w)|\s?(?:\\times|\\cdot|\u00d7|\*|x)\s?10\s?\^\s?(?:\{{-?\d+\}}|-?\d+)| \d+/\d+|/{_DIGITS})?)"
    r"(?!(?:st|nd|rd|th)\b)(?:\s?\\?%)?",
    re.ASCII,
)
_OPTION = re.compile(
    r"(?:\b(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s+\(?|\()([A-Z])\b\)?|(?<![\w\\'])([B-HJ-Z]|[AI](?!\s+(?!or\b|and\b)[a-z]))(?![\w'])", re.ASCII
)
_FIRST_OPTION = re.compile(r"(?:\\text(?:bf)?\{)?\(?([A-Z])(?:[).:}]|\s*$)", re.ASCII)
_NEGATION = re.compile(r"\b(?:not|no|neither|nor|except|wrong)\b|n't\b", re.IGNORECASE)
_SEVERAL = re.compile(r"\b(?:or|and|to|between)\b|[=<>+*]")
_WRAPPED = re.compile(r"\\(?:text|mathrm|mbox)\s*\{[^{}]*\}")


def boxed(text: str) -> str | None:
    """The content of the last `\\boxed{...}` that is balanced and not blank, of nested ones the inner; None without one."""
    answer, answer_start = None, -1
    opened: list[tuple[int, bool]] = []
    for brace in _BRACE.finditer(text, max(text.find("\\boxed"), 0)) if "\\boxed" in text else ():
        mark = brace.group()
        if mark[-1] == "{" and mark != "\\{":
            opened.append((brace.end(), mark != "{"))
        elif mark == "}" and opened:
            start, is_box = opened.pop()
            if is_box and start > answer_start and (content := text[start : brace.start()].strip()):
                answer, answer_start = content, start
    return answer


def has_boxed(text: str) -> bool:
    """True if `boxed` finds an answer in `text`; where no `\\boxed` stands in it this costs one substring search."""
    return boxed(text) is not None


def stated(text: str, form: Form | None = None) -> str | None:
    """The answer that a whole `text` states, looked for as a thing of this `form`; None where it states none.

    What follows `</think>` counts before the thought.
    """
    thought, _, answer = text.rpartition(THINK_CLOSE)
    parts = [in_ascii(part) for part in (answer, thought) if part.strip()]
    for rule in (declared, _ending):
        for part in parts:
            if (found := rule(part, form)) is not None:
                return found
    return None


def stated_in(answer: str, thought: str, form: Form | None = None) -> str | None:
    """What a chain gives as its answer: what the text of its `answer` marks as such, else the last box of its `thought`, else the whole
    text of the answer. None where it has neither."""
    text = answer.strip()
    if (found := declared(text, form)) is not None:
        return found
    if (box := boxed(thought)) is not None:
        return box
    return text or None


def declared(text: str, form: Form | None = None) -> str | None:
    """The answer that `text` marks as its answer: a box, a phrase, or bold in its last line; None where nothing is marked."""
    if (box := boxed(text)) is not None:
        return box
    if marked := _HASHES.findall(text):
        return str(marked[-1]).strip()
    plain = _MARKS.sub("", text)
    for phrase in [*_PHRASE.finditer(plain)][: -MAX_PHRASES - 1 : -1]:
        if value := _of_form(_clause(plain, phrase.end()), form):
            return value
    bold = [one or other for one, other in _BOLD.findall(text.rstrip().rpartition("\n")[2])]
    if len(bold) == 1 and not bold[0].rstrip().endswith(":") and (value := _of_form(bold[0], form, whole=True)):
        return value
    return None


def _clause(text: str, start: int) -> str:
    """What follows a phrase: a displayed formula, or the rest of the sentence."""
    if display := _DISPLAY.match(text, start):
        end = _DISPLAY_END.search(text, display.end(), display.end() + 500)
        return text[display.end() : end.start()] if end else ""
    found = _SENTENCE_END.search(text, start)
    clause = text[start : found.start() if found else len(text)].strip(" \t:*")
    return "" if _NO_ANSWER.match(clause) else clause


def _of_form(text: str, form: Form | None, whole: bool = False) -> str | None:
    """The answer in a few words that are said to hold it; `whole`: without a `form`, or as an expression, it must be all of them."""
    option = _FIRST_OPTION.match(text)
    if form == "letter":
        named = list(dict.fromkeys(_options(text)))
        return str(option[1]) if option else named[0] if len(named) == 1 else text.strip(" .,;:") if named else None
    if not _PROSE.search(_WRAPPED.sub("", text)):
        return text.strip(" .,;:") or None
    numbers = _NUMBER.findall(text.rpartition("=")[2]) or _NUMBER.findall(text)
    if form == "number" and numbers and (len(numbers) == 1 or not _SEVERAL.search(text)):
        return str(numbers[0]).strip()
    if form == "expression":
        math = segments(text)
        return math[0] if len(math) == 1 else None if whole else text.strip(" .,;:") or None
    return str(option[1]) if option else str(numbers[0]).strip() if len(numbers) == 1 else None


def _ending(text: str, form: Form | None) -> str | None:
    """What a text that marks no answer ends with."""
    return next(filter(None, (rule(text) for rule in _ENDINGS[form])), None)


def _last_number(text: str) -> str | None:
    for line in reversed(text.split("\n")):
        if numbers := _NUMBER.findall(line):
            return str(numbers[-1]).strip()
    return None


def _last_option(text: str) -> str | None:
    options = _options(text)
    return options[-1] if options else None


def _last_formula(text: str) -> str | None:
    if math := segments(text):
        return math[-1]
    last = re.split(r"\.\s|\n", text.rpartition("=")[2].strip(), maxsplit=1)[0].strip(" .,;:$") if "=" in text else ""
    return last if last else None


_ENDINGS = {
    "number": (_last_number,),
    "letter": (_last_option,),
    "expression": (_last_formula, _last_number),
    None: (_last_number, _last_formula, _last_option),
}


def only_option(text: str) -> str | None:
    """The one option that a sentence names, as in `I choose C.`; None where it names none, several, or says what is not right."""
    named = set(_options(text))
    return named.pop() if len(named) == 1 and not _NEGATION.search(text) else None


def _options(text: str) -> list[str]:
    return [one or other for one, other in _OPTION.findall(text)]


def segments(text: str) -> list[str]:
    """The formulas of a text between dollars or LaTeX's delimiters."""
    return [segment.strip(" .,;:") for groups in _MATH.findall(text) for segment in groups if segment.strip(" .,;:")]
