"""Text of others made harmless: for a terminal, which obeys control characters, and for a spreadsheet, which computes formulas.

Any text enters, text that can only be read leaves. What is replaced stays visible as `\\uXXXX`, the way JSON writes it, so
that JSON stays the same JSON. Nothing is printed here.
"""

import re

_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but for tab and line feed, what turns the direction of writing, and surrogates, which no stream takes."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""A cell of text that begins so would be computed by a spreadsheet (OWASP, CSV injection)."""


def sanitize(text: str) -> str:
    """`text` without anything that a terminal obeys or shows in another place; its lines stay lines."""
    return _OBEYED.sub(_visible, text)


def one_line(text: str) -> str:
    """The same, on one line: nobody can add lines of their own."""
    return sanitize(text).replace("\n", "\\n")


def cell(text: str) -> str:
    """`text` as a cell that no spreadsheet computes."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def storable(text: str) -> str:
    """`text` as UTF-8 can hold it: file names may have bytes that it cannot."""
    return text.encode(errors="backslashreplace").decode()


def _visible(found: "re.Match[str]") -> str:
    return f"\\u{ord(found[0]):04x}"
