"""A chat in a column of the input: its messages enter; the last one, which is the user's, and the chat before it leave."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pipeline.data.rows import Flaw, kind_of
from pipeline.graph.prompts import Message

MAX_MESSAGES = 64
"""Maximum number of messages of a chat: every length is a separate template, which is cut once."""
TURNS = "an optional system message, then alternating user and assistant messages, ending with the user's"
"""What a chat has to be."""


def chat_of(name: str, value: Any) -> tuple[Message, ...] | None:
    """The messages in a column: an array of objects with `role` and `content`, or one as JSON; None for what is no such thing. Raises
    `Flaw` for a chat that does not end with a problem."""
    if isinstance(value, str) and value.startswith("[{") and '"role"' in value:
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError:
            return None
    if not isinstance(value, list) or not value or not all(isinstance(each, Mapping) and "role" in each for each in value):
        return None
    chat = tuple(_message(name, place, each) for place, each in enumerate(value))
    roles = [message.role for message in chat]
    if len(chat) > MAX_MESSAGES:
        raise Flaw(f"`{name}` has {len(chat)} messages, more than {MAX_MESSAGES}")
    if roles[-1] == "assistant":
        remedy = f"end the chat with the user's, or map it: --column problem='{name}[{len(roles) - 2}].content'"
        raise Flaw(f"`{name}` ends with an assistant message; {remedy}")
    if not takes_turns(roles):
        raise Flaw(f"`{name}` has messages by {', '.join(roles)}; expected {TURNS}")
    return chat


def takes_turns(roles: Sequence[str]) -> bool:
    """Whether messages by these roles are `TURNS`."""
    turns = [*(roles[1:] if roles and roles[0] == "system" else roles)]
    return bool(turns) and turns == ["user", "assistant"] * (len(turns) // 2) + ["user"]


def _message(name: str, place: int, message: Mapping[str, Any]) -> Message:
    role, content = message["role"], message.get("content")
    role = "system" if role == "developer" else role
    if isinstance(content, list) and content and all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str) or not content.strip():
        raise Flaw(f"the `content` of `{name}[{place}]` is {'empty' if not content else kind_of(content)}, expected text")
    return Message(str(role), content)
