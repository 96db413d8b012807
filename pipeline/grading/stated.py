"""The answer that a text states: a text enters, its answer leaves.

A text that ends in an answer says so: in its last `\\boxed{}`, in a line `#### ANSWER`, after `answer is`, `Answer:` or `Final Answer`, in
several languages, or in bold in its last line. Several boxes in one sentence are one answer. In a text without these
the answer is the last number, option or expression, whichever the reference is. The text after the thought counts first; a call of a tool
is no answer. A thought is marked by `<think>`, which has many names and brackets: `[THINK]`, `<thinking>`,
`<|END_THINKING|>`, the channels of harmony.
Time is linear in the length of the text, and nothing raises.
"""

import re
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from pipeline.grading.notation import BOUND, SIZE, clean, in_ascii, in_figures, visible

Form: TypeAlias = Literal["number", "letter", "expression"]
"""The form of a reference, and so of the answer to look for."""
MAX_PHRASES = 4
"""Phrases such as `the answer is` that are looked at, from the end."""
_SHORT = 500
"""Longer texts are no letters of a choice, and no bare answers."""

_THOUGHT = r"(?:\w{1,12}:)?(?:think(?:ing)?|thoughts?|reason(?:ing)?|reflection|scratchpad|analysis)"
_ANSWER = r"(?:final_?)?(?:answer|solution|response|output)"
_FROM, _TO = r"(?:begin|start)_(?:of_)?", "end_(?:of_)?"
OPEN = re.compile(
    rf"[<\[\u25c1]{_THOUGHT}[>\]\u25b7]|<\|(?:{_FROM})?{_THOUGHT}\|>|<\|inner_prefix\|>|<\|channel\|?>(?:analysis|thought)(?:<\|message\|>)?",
    re.I,
)
"""Begins a thought."""
CLOSE = re.compile(
    rf"[<\[\u25c1]/{_THOUGHT}[>\]\u25b7]|<\|(?:/|{_TO}){_THOUGHT}\|>|<\|inner_suffix\|>|<channel\|>"
    r"|<\|end\|>|<\|channel\|>final<\|message\|>|assistantfinal",
    re.I,
)
"""Ends a thought."""
_ANSWERED = re.compile(
    rf"(?:<{_ANSWER}>|\[{_ANSWER}\]|<\|{_FROM}{_ANSWER}\|>)(.*?)(?:</{_ANSWER}>|\[/{_ANSWER}\]|<\|{_TO}{_ANSWER}\|>|\Z)", re.I | re.S
)
_CALL = re.compile(
    r"<(tool_calls?|function_calls?|tool_code)>.*?(?:</\1>|\Z)|<function=.*?(?:</function>|\Z)"
    r"|<\|channel\|>commentary to=.*?(?:<\|call\|>|\Z)"
    r"|(?:\[TOOL_CALLS?\]|<\|python_tag\|>|<\|tool_calls?(?:_section)?(?:_begin)?\|>|<\uff5ctool\u2581calls?\u2581begin\uff5c>).*\Z",
    re.S,
)
_CONTROL = re.compile(r"(?:\s*<\|(?:return|im_end|eot_id|endoftext|start)\|>(?:assistant)?)+\s*\Z")
_FENCE = "```"
_ESCAPE = re.compile(r'(\\["\\/])|\\')
_KEY = re.compile(r"(?:^|[_ ])(?:answer|solution|result|choice|option)$", re.I)

_BOX = r"\\(?:boxed|fbox|framebox(?:\[[^\]\n]{0,20}\]){0,2})\s*"
_BRACE = re.compile(rf"{_BOX}\{{|\\\\(?!(?:boxed|fbox|framebox))|\\[{{}}]|[{{}}]")
_UNBRACED = re.compile(
    rf"{_BOX}(-?\d(?:[\d.,]*\d)?|\\[dt]?frac\s*(?:\{{[^{{}}]*\}}\s*\{{[^{{}}]*\}}|\d\d)|\\(?:text\w*|sqrt)\s*\{{[^{{}}]*\}}|\\sqrt\d|\\pi\b|[A-Za-z](?![A-Za-z]))"
)
_NEW_SENTENCE = re.compile(r"[.!?][\"')$*]*\s|[\u3002\uff01\uff1f]|\n\s*\n|\n\s*(?:[-*]|\d+\.)\s")
_ANOTHER = re.compile(
    r"\b(?:no|not|wait|but|actually|rather|instead|sorry|oops|hmm|then|so|thus|hence|therefore|which|that is|i\.e|about|namely|sum|product"
    r"|total|altogether|should|mean|first|earlier|original\w*|previous\w*|correct\w*|wrong\w*|mistake\w*|equivalent\w*|equal\w*|approx\w*|final\w*"
    r"|simpl\w*|round\w*|reduc\w*|becom\w*|giv\w*|yield\w*|answer|result\w*|chang\w*|fix\w*|revis\w*)\b|n't\b|[\u2014=\u2248\u2192\u21d2]"
    r"|\\(?:approx|implies|to|R?rightarrow)",
    re.IGNORECASE,
)
"""Between two boxes: the second corrects or repeats the first."""
_LISTED = re.compile(r"[,;&\u3001\uff0c]|\b(?:and|or|while|whereas)\b|和|或|\A[^\w]*\Z")
_NAMED = re.compile(r"(?<![\w\\])([A-Za-z](?:_\{?\w{1,3}\}?)?)\s*=\s*[$\\(\[\s]*\Z")
_NOT = re.compile(r"(?:\bnot|n't be|rather than|instead of)[\s$\\(]*\Z", re.IGNORECASE)
_HASHES = re.compile(r"^[ \t]*####[ \t]+(\S[^\n]*)$", re.MULTILINE)
_FINAL = r"final answer|r[ée]ponse finale|respuesta final|endg[üu]ltige antwort|окончательный ответ"
_NOUN = (
    rf"answer|ans|final result|final solution|{_FINAL}|r[ée]ponse|r[ée]sultat(?: final)?|antwort|(?:end)?ergebnis|l[öo]sung|respuesta"
    r"|resultado(?: final)?|soluci[óo]n(?: final)?|resposta|risposta|ответ|результат"
)
_IS = r"is|(?:should|would|must|will|has to) be|equals|comes to|est|vaut|ist|lautet|betr[äa]gt|es|son|раве?н\w?|это"
_ADVERB = r"(?:\s+(?:therefore|thus|then|hence|so|donc|also|daher|somit|entonces))?"
_PHRASE = re.compile(
    rf"(?<![-\w])(?:{_NOUN})(?:\s+(?:to|of|for|here)\b[^\n.,:=?!]{{0,80}}?)?(?:,?\s+(?:which\s+)?(?:{_IS})\b{_ADVERB}:?|[^\S\n]*[:=\uff1a\u2014])\s*"
    rf"|\b(?:{_FINAL})[^\w\n]{{0,8}}\n\s*"
    r"|(?:答案|结果|結果|答え|정답)[^\S\n]*(?:[:=\uff1a是为為は은]|等于)+\s*|答案[^\w\n]{0,8}\n\s*",
    re.IGNORECASE,
)
_WITH_POINTS = re.compile(r"ans|final|[^\W\da-z\u00c0-\u04ff]", re.IGNORECASE)
"""Begins a phrase in English, Chinese, Japanese or Korean; the decimals of the other languages have commas."""
_WITH_COMMA = re.compile(r"(?<![\d.,(\[{])(\d+),(\d{1,2}|\d{4,})(?![\d,)\]\\}])", re.ASCII)
_NO_ANSWER = re.compile(r"(?:not|n't|un\w+|wrong|incorrect|correct|right|the same|that|in|pas|nicht|не)\b|不", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?;](?=\s|$)|[\u3002\uff01\uff1f\uff1b]|\n|,? (?:because|since|as|which|where|so|but|not|rather)\b|\uff0c")
_DISPLAY = re.compile(r"(?:\\\[|\$\$)\s*")
_DISPLAY_END = re.compile(r"\s*(?:\\\]|\$\$)")
_MATH = re.compile(r"\\\(([^\n]{1,500}?)\\\)|\\\[\s*([^\[\]]{1,500}?)\s*\\\]|(?<![\\$])\$\$?([^$\n]{1,500}?)(?<!\\)\$\$?")
_MARKS = re.compile(r"\*\*|__|`")
_BOLD = re.compile(r"\*\*([^*\n]{1,200})\*\*|(?<!\w)__([^_\n]{1,200})__(?!\w)")
_PROSE = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{3,}")
_FEW_WORDS = re.compile(r"\*\*[^*]+\*\*\.?|[A-Za-z]+(?: [A-Za-z]+){0,3}")
_FOREIGN = re.compile("[Ѐ-ӿ\u3040-鿿가-힯]")
_DIGITS = r"(?:\d{1,3}(?:(?:,|\{,\}|,\\!)\d{3}(?!\d))+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
NUMBER = re.compile(
    r"(?:(?<![\w.)}$])[-+])?(?:\\?\$\s?-?)?(?<![\w.])"
    rf"(?:(?:\d+\s?)?\\[dt]?frac\s*(?:\{{\s*-?{_DIGITS}\s*\}}\s*\{{\s*{_DIGITS}\s*\}}|\d\d(?!\d))"
    rf"|{_DIGITS}(?:[eE][+-]?\d+(?!\w)|\s?(?:\\times|\\cdot|\u00d7|\*|x)\s?10\s?\^\s?(?:\{{-?\d+\}}|-?\d+)| \d+/\d+|/{_DIGITS})?)"
    rf"(?!(?:st|nd|rd|th)\b)(?:[\s-](?!dozen){SIZE})*(?:\s?\\?%)?",
    re.ASCII | re.IGNORECASE,
)
"""A number with words that multiply it, such as `million`; eggs are counted in dozens."""
_BOUNDED = re.compile(rf"\D{{0,80}}?{BOUND}[\s*$\\(]*(?:-?[\d.]|\\[a-z])|\D*[\d.,]+ or (?:less|more|fewer|greater)\b", re.IGNORECASE)
_BOUNDING = re.compile(rf"{BOUND}[\s*$\\(]*\Z", re.IGNORECASE)
_OPTION = re.compile(
    r"(?:\b(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s+\(?|\()([A-Z])\b\)?|(?<![\w\\'])([B-HJ-Z]|[AI](?!\s+(?!or\b|and\b)[a-z]))(?![\w'])", re.ASCII
)
_LETTERS = re.compile(
    r"(?i:(?:the )?(?:correct )?(?:final )?(?:answer|option|choice)(?: is)? ?:? ?)?"
    r"[\[({]?([A-Z](?:(?: ?(?:,|and|&) ?| )?[A-Z])*|[a-z])[\])}]?(?:[.:)]|[.:)] .*)?",
    re.ASCII,
)
_REASON = re.compile(r",? (?:because|since|as) ")
_RIGHT_OPTION = re.compile(
    r"(?:(?<![\w\\'])\(?([A-Za-h])\)?\s+(?:is|must be|would be|seems)\s+"
    r"(?:(?:the|clearly|indeed|thus|therefore|definitely|only) ){0,3}(?:correct|right|best|answer)\b"
    r"|(?:\b(?:choose|chose|pick|select|go(?:ing)? with|opt for|[Ii]t(?:'s| is| must be))\s+|选择?\s*)"
    r"(?:[Oo]ption |[Cc]hoice |[Aa]nswer )?\(?([A-Z])(?![\w'])"
    r"|(?<![\w\\'])\(?([A-Z])\)? and \(?([A-Z])\)? are (?:both )?(?:correct|right)\b"
    r"|\b(?:correct|right|best) (?:option|choice|letter) (?:is|would be):? (?:[Oo]ption )?\(?([A-Z])(?![\w']))"
)
_NEGATION = re.compile(r"\b(?:not|no|neither|nor|except|wrong)\b|n't\b", re.IGNORECASE)
_SEVERAL = re.compile(r"\b(?:or|and|to|between)\b|[=<>+*]")
_SEVERAL_NAMES = re.compile(r"(?<![A-Za-z])[A-Za-z]\w?\s*=[^=]{1,80}(?:,|;|\band\b|\bor\b)\s*[A-Za-z]\w?\s*=")
_WRAPPED = re.compile(r"\\(?:text|mathrm|mbox)\s*\{[^{}]*\}")
_SAID_IN_TEXT = re.compile(rf"\\(?:text\w*|mbox|mathrm)\s*\{{([^{{}}]*\b(?:{_NOUN})\b[^{{}}]*)\}}", re.IGNORECASE)


class Parts(NamedTuple):
    """A text without its marks."""

    answer: str
    """The text after the thought, or between the marks of an answer."""
    thought: str = ""
    """Empty where nothing is marked as such."""
    marked: bool = False
    """True if the answer as a whole is marked as one."""


def parts_of(text: str) -> Parts:
    """The answer and the thought in `text`, without characters that are not seen and without calls of tools."""
    text = visible(text)
    if not any(mark in text for mark in ("<", "[", "{", "\u25c1", "assistantfinal")):
        return Parts(text)
    text = _CONTROL.sub("", _CALL.sub("", text))
    answer, thought = text, ""
    closes = [*CLOSE.finditer(text)]
    if closes and text[closes[-1].end() :].strip():
        answer, thought = text[closes[-1].end() :], text[: closes[-1].start()]
    elif closes or OPEN.search(text):
        answer, thought = "", text[: closes[-1].start()] if closes else text
    if found := [each for each in _ANSWERED.findall(answer) if each.strip()]:
        return Parts(found[-1], thought, True)
    if (said := _object(answer)) is None:
        return Parts(answer, thought)
    keys = [key for key in said if _KEY.search(key)]
    if "name" in said and said.keys() & {"arguments", "parameters"}:
        return Parts("", thought)
    if not keys:
        return Parts(answer, thought)
    value = said[keys[-1]]
    return Parts(", ".join(map(str, value)) if isinstance(value, list) else str(value), thought, True)


def _object(text: str) -> dict[str, Any] | None:
    """The JSON object that is the whole text, or its last part between fences; None where there is none."""
    body = text.strip().removesuffix(_FENCE).rstrip()
    body = body[body.rfind(_FENCE) + 3 :].removeprefix("json").strip() if _FENCE in body else body
    if body[:1] + body[-1:] == "{}":
        with suppress(msgspec.DecodeError, RecursionError, UnicodeError):
            return msgspec.json.decode(_ESCAPE.sub(lambda found: found[1] or r"\\", body), type=dict[str, Any])
    return None


_Box = tuple[int, int, str]
"""Where a box begins and ends, and its content."""


def boxed(text: str) -> str | None:
    """The content of the last `\\boxed{...}` that is balanced and not blank (of nested ones the inner), joined with the boxes listed
    before it in its sentence; None without one."""
    return _joined(text, _boxes(text, closed=True))


def _boxes(text: str, *, closed: bool) -> list[_Box]:
    """The boxes of a text that are not blank and have no other one in them, also those without braces unless all must be `closed`."""
    found: list[_Box] = []
    opened: list[tuple[int, int, bool]] = []
    for brace in _BRACE.finditer(text) if "box" in text else ():
        mark = brace.group()
        if mark[-1] == "{" and mark != "\\{":
            opened.append((brace.start(), brace.end(), mark != "{"))
        elif mark == "}" and opened:
            begin, start, is_box = opened.pop()
            if is_box and (not found or begin > found[-1][0]) and (content := text[start : brace.start()].strip()):
                found.append((begin, brace.end(), content))
    if closed or "box" not in text:
        return found
    left_open = [
        (begin, len(text), text[start:].strip(" \n$.")) for begin, start, is_box in opened if is_box and len(text) - start < _SHORT
    ]
    found += [each for each in left_open[:1] if each[2] and "\n\n" not in each[2]]
    return sorted(found + [(each.start(), each.end(), each[1]) for each in _UNBRACED.finditer(text)])


def _joined(text: str, boxes: list[_Box]) -> str | None:
    """The last box with those before it that the same sentence lists."""
    boxes = [box for box in boxes if not _NOT.search(text[max(0, box[0] - 30) : box[0]])] or boxes
    listed = boxes[-1:]
    for box in reversed(boxes[:-1]):
        between = text[box[1] : listed[0][0]]
        rest = _NAMED.sub("", between)
        if len(between) > 120 or _NEW_SENTENCE.search(between) or _ANOTHER.search(rest) or not _LISTED.search(rest):
            break
        listed.insert(0, box)
    contents = [content for _, _, content in listed]
    names = [name[1] for begin, _, _ in listed if (name := _NAMED.search(text[max(0, begin - 30) : begin]))]
    if len(names) == len(listed) == len({name[0] for name in names}) > 1:
        contents = [f"{name}={content}" for name, content in zip(names, contents, strict=True)]
    return ", ".join(dict.fromkeys(contents)) or None


def stated(text: str, form: Form | None = None) -> str | None:
    """The answer that a whole `text` states, in this `form`; None if it states none. The text after the thought counts first."""
    parts = parts_of(text)
    parts = parts._replace(answer=in_ascii(parts.answer), thought=in_ascii(parts.thought))
    if (found := declared(parts, form)) is not None:
        return found
    return next(filter(None, (rule(part) for part in (parts.answer, parts.thought) for rule in _ENDINGS[form])), None)


def stated_in(answer: str, thought: str, form: Form | None = None) -> str | None:
    """The answer of a chain: the part marked in its `answer`, else the last box of its `thought`, else the whole `answer`; None if all are
    empty."""
    said, before = parts_of(answer), parts_of(thought)
    thinking = f"{before.thought}{before.answer}{said.thought}"
    box = _joined(thinking, _boxes(thinking, closed=False)) or ""
    found = _given(said._replace(thought=box), form) or (_given(before, form) if before.thought else None)
    return found or box or said.answer.strip() or None


def declared(parts: Parts, form: Form | None = None) -> str | None:
    """The part marked as the answer, after the thought or else in it: a box, a phrase, or bold in the last line; None without a mark."""
    return _given(parts, form) or (_marked(parts.thought, form) if parts.thought.strip() else None)


def _given(parts: Parts, form: Form | None) -> str | None:
    """The part of the text after the thought that is marked as the answer, or all of it if it is bare."""
    if (found := _marked(parts.answer, form)) is not None or parts.marked:
        return found or parts.answer.strip()
    return _bare(parts.answer.strip(), form) if parts.thought.strip() else None


def _bare(text: str, form: Form | None) -> str | None:
    """A text that is an answer and nothing else, or has one number alone; None for any other."""
    if len(text) > _SHORT:
        return None
    if form == "letter":
        return choice(text) or only_option(text)
    if text and "\n" not in text and (not _PROSE.search(_WRAPPED.sub("", clean(text))) or _FEW_WORDS.fullmatch(text)):
        return text
    numbers = {*NUMBER.findall(text)}
    return numbers.pop().strip() if form != "expression" and len(numbers) == 1 else None


def _marked(text: str, form: Form | None) -> str | None:
    box = _joined(text, _boxes(text, closed=False))
    if box is not None and (form != "letter" or choice(box) is not None):
        return _after_phrase(_SAID_IN_TEXT.sub(r"\1", box), form) or box
    if marked := _HASHES.findall(text):
        return str(marked[-1]).strip()
    if value := _after_phrase(_SAID_IN_TEXT.sub(r"\1", _MARKS.sub("", text)), form):
        return value
    line = text.rstrip().rpartition("\n")[2]
    bold = [*_BOLD.finditer(line)]
    said = bold[0][1] or bold[0][2] if len(bold) == 1 and not _BOUNDING.search(line[: bold[0].start()][-60:]) else ":"
    if not said.rstrip().endswith(":") and (value := _of_form(said, form, whole=True)):
        return value
    return box if form != "letter" else _first_or_right(text) or box


def _after_phrase(plain: str, form: Form | None) -> str | None:
    """The answer after the last phrase that has one."""
    found = [*_PHRASE.finditer(plain)][: -MAX_PHRASES - 1 : -1]
    clauses = ((_clause(plain, phrase.end()), _WITH_POINTS.match(phrase[0])) for phrase in found)
    said = (_of_form(clause if points else _WITH_COMMA.sub(r"\1.\2", clause), form) for clause, points in clauses)
    return next(filter(None, said), None)


def _first_or_right(text: str) -> str | None:
    """The letter that is the last or the first line of a text, or that the text calls right or chooses."""
    lines = text.strip().split("\n")
    for line in (lines[-1], lines[0]):
        if len(found := choice(_REASON.split(line, maxsplit=1)[0]) or "") == 1:
            return found
    right = ["".join(groups) for groups in _RIGHT_OPTION.findall(text)]
    return right[-1].upper() if right else None


def choice(text: str) -> str | None:
    """The letters that `text` chooses in a multiple choice, sorted and without repeats; None where `text` is no such choice.

    `B`, `(B)`, `B.`, `\\text{B}`, `**B**`, `option B`, `(B) 12` and, alone, `b` are B; `B, D` and `BD` are BD.
    """
    found = _LETTERS.fullmatch(" ".join(clean(text[:_SHORT]).split()).strip("*. "))
    return None if found is None else "".join(sorted(set(re.sub("[^A-Z]", "", found[1].replace("and", "").upper()))))


def _clause(text: str, start: int) -> str:
    """The text after a phrase: a displayed formula, or the rest of the sentence."""
    if display := _DISPLAY.match(text, start):
        end = _DISPLAY_END.search(text, display.end(), display.end() + 500)
        return text[display.end() : end.start()] if end else ""
    found = _SENTENCE_END.search(text, start)
    clause = text[start : found.start() if found else len(text)].strip(" \t:*")
    return "" if _NO_ANSWER.match(clause) else clause


def _trimmed(text: str) -> str:
    return text.strip(" ,;:").rstrip(" .,;:")


def _of_form(text: str, form: Form | None, whole: bool = False) -> str | None:
    """The answer in a few words that are said to hold it; `whole`: without a `form`, or as an expression, it must be all of them."""
    if form == "letter":
        named = list(dict.fromkeys(_options(text)))
        return choice(text) or (named[0] if len(named) == 1 else text.strip(" .,;:") if named else None)
    if _BOUNDED.match(text) or _SEVERAL_NAMES.search(text):
        return _trimmed(text)
    text = in_figures(text) if form in ("number", None) else text
    if not _PROSE.search(_WRAPPED.sub("", text)) and (form == "expression" or not _FOREIGN.search(text)):
        return _trimmed(text) or None
    numbers = NUMBER.findall(text.rpartition("=")[2]) or NUMBER.findall(text)
    if form == "number" and numbers and (len(numbers) == 1 or not _SEVERAL.search(text)):
        return str(numbers[0]).strip()
    if form == "expression":
        math = segments(text)
        return math[0] if len(math) == 1 else None if whole else _trimmed(text) or None
    option = choice(text) or ""
    return option if len(option) == 1 else str(numbers[0]).strip() if len(numbers) == 1 else None


def _last_number(text: str) -> str | None:
    for line in reversed(text.split("\n")):
        if numbers := [*NUMBER.finditer(line)]:
            bound = _BOUNDING.search(line[: numbers[0].start()][-60:]) if len(numbers) == 1 else None
            return (bound[0] if bound else "") + numbers[-1][0].strip()
    return None


def _last_option(text: str) -> str | None:
    return next(reversed(_options(text)), None)


def _last_formula(text: str) -> str | None:
    if math := segments(text):
        return math[-1]
    last = re.split(r"\.\s|\n", text.rpartition("=")[2].strip(), maxsplit=1)[0].strip(" .,;:$") if "=" in text else ""
    return last or None


_ENDINGS = {
    "number": (_last_number,),
    "letter": (_last_option,),
    "expression": (_last_formula, _last_number),
    None: (_last_number, _last_formula, _last_option),
}


def only_option(text: str) -> str | None:
    """The one option that a sentence names, as in `I choose C.`; None if it names none or several, or negates."""
    named = set(_options(text))
    return named.pop() if len(named) == 1 and not _NEGATION.search(text) else None


def _options(text: str) -> list[str]:
    return [one or other for one, other in _OPTION.findall(text)]


def segments(text: str) -> list[str]:
    """The formulas of a text between dollars or LaTeX's delimiters."""
    return [segment.strip(" .,;:") for groups in _MATH.findall(text) for segment in groups if segment.strip(" .,;:")]
