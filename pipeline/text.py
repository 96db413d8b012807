"""Untrusted text made safe to show: on a terminal, which obeys control characters, in a spreadsheet, which computes formulas, and in
Markdown, which makes links and pictures of it.

Any text enters, text without control characters leaves. They stay visible as `\\uXXXX`, the way JSON writes them, so that JSON
stays the same JSON. Nothing is printed here.
"""

import re

_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and line feed, characters that change the direction of writing, and lone surrogates."""
_MARKDOWN = re.compile(r"<|&(?=#?\w+;)|\||\](?=[(:])|\\(?=[!-/:-@\[-`{-~])")
"""What begins HTML or an entity, ends a cell or the text of a link or picture, and backslashes that would make the next character plain."""
_COMPUTED = r"(?=[\s\"']*[=@+\-\uff1d\uff20\uff0b\uff0d])"
_AT_START, _BEHIND = re.compile(_COMPUTED), re.compile(rf"[;|\t\n]{_COMPUTED}")
"""Where a spreadsheet would compute what follows (OWASP, CSV injection): at the beginning of a cell, and behind what separates cells where
the separator is not the comma."""
_PLAIN = re.compile(r"[\s\"']*(?:[+\-](?:\d+(?:[.,]\d*)*|[.,]\d+)(?:[eE][+\-]?\d+)?%?[\s\"']*(?:[;|\t\n]|\Z)|[+\-] )")
"""A signed number by itself, and the mark of an item in a list, which are no formulas."""


def sanitize(text: str) -> str:
    """`text` with control characters and characters that change the direction of writing shown as `\\uXXXX`; line feeds stay."""
    return _OBEYED.sub(_visible, text)


def one_line(text: str) -> str:
    """`text` sanitized and on one line: line feeds are shown as `\\n`, so that untrusted text cannot add lines."""
    return sanitize(text).replace("\n", "\\n")


def cell(text: str) -> str:
    """`text` as a cell of a table, sanitized, with an apostrophe wherever a spreadsheet would compute what follows."""
    text = text if text.isprintable() else sanitize(text.replace("\r\n", "\n"))
    if _AT_START.match(text):
        plain = _PLAIN.match(text)
        text = text if plain and not plain[0].endswith(" ") else f"'{text}"
    return _BEHIND.sub(_guarded, text)


def in_markdown(text: str) -> str:
    """`text` on one line of Markdown, or in a cell of a table: without links, pictures, HTML and bars. Emphasis and code stay."""
    return " ".join(_MARKDOWN.sub(_escaped, text).split())


def storable(text: str) -> str:
    """`text` as valid UTF-8, with escapes for the bytes of file names that are not."""
    return text.encode(errors="backslashreplace").decode()


def _guarded(found: "re.Match[str]") -> str:
    return found[0] if _PLAIN.match(found.string, found.end()) else f"{found[0]}'"


def _escaped(found: "re.Match[str]") -> str:
    return {"<": "&lt;", "&": "&amp;"}.get(found[0], f"\\{found[0]}")


def _visible(found: "re.Match[str]") -> str:
    return f"\\u{ord(found[0]):04x}"
