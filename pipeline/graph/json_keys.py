"""Keys of engine specs that hold any JSON, which others read: fields of requests, and arguments of chat templates. Pure."""

import math
from collections.abc import Mapping
from typing import Any

_OF_THE_TEMPLATE = ("messages", "tools", "documents", "add_generation_prompt")
"""What a chat template is told by this package."""


def check_json(key: str, value: Mapping[str, Any], reserved: Mapping[str, str] = {}) -> None:
    """Raise `ValueError` where the `value` of `key` is no JSON, or names one of the `reserved` fields, each with what sets it."""
    for name in value:
        if name in reserved:
            raise ValueError(f"{key} must not hold `{name}`: {reserved[name]}")
    if (flaw := _flaw(value, key)) is not None:
        raise ValueError(flaw)


def check_template_arguments(value: Mapping[str, Any]) -> None:
    """Raise `ValueError` where `value` cannot be what the key `chat_template_kwargs` holds."""
    check_json("chat_template_kwargs", value, dict.fromkeys(_OF_THE_TEMPLATE, "every prompt sets its own"))


def _flaw(value: object, place: str) -> str | None:
    """Why `value`, at `place`, is no JSON."""
    if isinstance(value, Mapping):
        odd = next((key for key in value if not isinstance(key, str)), None)
        if odd is not None:
            return f"{place} has the key {odd!r}, which is not text"
        return next((flaw for key, each in value.items() if (flaw := _flaw(each, f"{place}.{key}"))), None)
    if isinstance(value, list | tuple):
        return next((flaw for number, each in enumerate(value) if (flaw := _flaw(each, f"{place}[{number}]"))), None)
    if isinstance(value, float) and not math.isfinite(value):
        return f"{place} is {value}, which JSON cannot represent"
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return f"{place} is an integer of more than 64 bits"
    if value is not None and not isinstance(value, str | int | float):
        return f"{place} is a {type(value).__name__}, which JSON cannot represent"
    return None
