"""Text made safe to show: without what a terminal obeys.

Control characters stay visible as `\\uXXXX`, the way JSON writes them, so that JSON stays the same JSON. Nothing is printed here.
"""

import re

_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and line feed, characters that change the direction of writing, and lone surrogates."""


def sanitize(text: str) -> str:
    """`text` with control characters and characters that change the direction of writing shown as `\\uXXXX`; line feeds stay."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """`text` sanitized and on one line: line feeds are shown as `\\n`, so that untrusted text cannot add lines."""
    return sanitize(text).replace("\n", "\\n")


def storable(text: str) -> str:
    """`text` as valid UTF-8, with escapes for the bytes of file names that are not."""
    return text.encode(errors="backslashreplace").decode()
