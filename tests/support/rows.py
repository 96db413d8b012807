"""Rows of a trace, all but what a test is about left blank."""

from collections.abc import Callable
from functools import cache
from typing import Any, get_type_hints

from msgspec import Struct


def blank(row: type[Struct], **fields: Any) -> Any:
    """A row whose other fields are null, empty or zero."""
    return row(**{name: make() for name, make in _blanks(row).items()} | fields)


@cache
def _blanks(row: type[Struct]) -> dict[str, Callable[[], Any]]:
    hints = {name: (hint, str(hint)) for name, hint in get_type_hints(row).items()}
    return {name: tuple if text.startswith("tuple") else (lambda: None) if "None" in text else hint for name, (hint, text) in hints.items()}
