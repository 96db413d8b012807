"""The marks by which models tell what they think, what they answer and what they ask of tools: a text enters, its parts leave.

`<think>` has many names and brackets: `[THINK]`, `<thinking>`, `<|END_THINKING|>`, the channels of harmony. What a tool is asked is no
answer. Time is linear in the length of the text, and nothing raises.
"""

import re
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from pipeline.grading.notation import visible

_THOUGHT = r"(?:\w{1,12}:)?(?:think(?:ing)?|thoughts?|reason(?:ing)?|reflection|scratchpad|analysis)"
_ANSWER = r"(?:final_?)?(?:answer|solution|response|output)"
_FROM, _TO = r"(?:begin|start)_(?:of_)?", "end_(?:of_)?"
OPEN = re.compile(
    rf"[<\[\u25c1]{_THOUGHT}[>\]\u25b7]|<\|(?:{_FROM})?{_THOUGHT}\|>|<\|inner_prefix\|>|<\|channel\|?>(?:analysis|thought)(?:<\|message\|>)?",
    re.I,
)
"""What begins a thought."""
CLOSE = re.compile(
    rf"[<\[\u25c1]/{_THOUGHT}[>\]\u25b7]|<\|(?:/|{_TO}){_THOUGHT}\|>|<\|inner_suffix\|>|<channel\|>"
    r"|<\|end\|>|<\|channel\|>final<\|message\|>|assistantfinal",
    re.I,
)
"""What ends a thought."""
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


class Parts(NamedTuple):
    """A text without its marks."""

    answer: str
    """What follows the thought, or what stands between the marks of an answer."""
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
    return Parts(_as_text(said[keys[-1]]), thought, True) if keys else Parts(answer, thought)


def _object(text: str) -> dict[str, Any] | None:
    """The JSON object that is the whole text, or its last part between fences; None where there is none."""
    body = text.strip().removesuffix(_FENCE).rstrip()
    body = body[body.rfind(_FENCE) + 3 :].removeprefix("json").strip() if _FENCE in body else body
    if body[:1] + body[-1:] == "{}":
        with suppress(msgspec.DecodeError, RecursionError, UnicodeError):
            return msgspec.json.decode(_ESCAPE.sub(lambda found: found[1] or r"\\", body), type=dict[str, Any])
    return None


def _as_text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
