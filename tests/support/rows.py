"""Rows of a trace, all but what a test is about left blank."""

from typing import Any, get_type_hints

from msgspec import Struct


def blank(row: type[Struct], **fields: Any) -> Any:
    """A row whose other fields are null, empty or zero."""
    values: dict[str, Any] = {}
    for name, hint in get_type_hints(row).items():
        text = str(hint)
        values[name] = () if text.startswith("tuple") else None if "None" in text else hint()
    return row(**values | fields)
