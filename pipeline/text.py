"""Text made safe to write and to show: without secrets, and without what a terminal obeys, a spreadsheet computes, or Markdown makes links
and pictures of.

A secret is the value of an environment variable with a name such as `OPENAI_API_KEY` or `HF_TOKEN`, or one that was declared to hold a
secret, or a password or key within a URL; servers, workers and libraries repeat such values in their messages. Control characters stay
visible as `\\uXXXX`, the way JSON writes them, so that JSON stays the same JSON. Nothing is printed here.
"""

import html
import os
import re
from collections.abc import Sequence
from functools import cache
from typing import Any
from urllib.parse import quote, quote_plus

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


MARK = "***"
"""What stands in place of a secret."""
LEAST_CHARACTERS = 8
"""Shorter values are not taken for secrets: replacing a `1` would garble every number."""
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])")
"""The words of a name: `OPENAI_APIKEY`, `openaiApiKey`."""
_SECRET = re.compile(
    r"""(?:api|access|secret|private|public|auth|account|master|admin|client|service|encryption|signing|license|ssh|ssl|tls|pgp|gpg)?key
    |\w*(?:token|secret|password|passwd|passphrase|credential)|(?!old)\w*pwd|(?:db|my|pg|sql|user|admin|root)?pass|pat|jwt|bearer""",
    re.IGNORECASE | re.VERBOSE,
)
"""A word, without an `s` at its end, that says that a value is a secret."""
WORKING_FOLDER = "PWD"
"""The variable in which a shell keeps it."""
_URL_PASSWORD = re.compile(r"(?<=://)[^\s/@'\"]+(?=@)")
_URL_KEY = re.compile(r"(?<=[?&])((?:[\w.-]*(?:key|token|secret|password|passwd|pwd|signature)|sig|pass)=)[^\s&#'\"]+", re.IGNORECASE)
_declared: set[str] = set()
"""Names of environment variables that hold secrets though their names do not say so."""


def declare_secret(name: str) -> None:
    """From now on the value of the environment variable `name` is a secret, whatever its name."""
    _declared.add(name)


def redact(text: str) -> str:
    """`text` with `***` in place of every secret of the environment, of what stands before the `@` of a URL, and of keys in its query."""
    return _redacted(text, _secrets())


def _redacted(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = without(text, secret)
    return _URL_KEY.sub(rf"\g<1>{MARK}", _URL_PASSWORD.sub(MARK, text))


def without(text: str, secret: str) -> str:
    """`text` with `***` in place of `secret`, as it is or as JSON, Python, a URL or HTML writes it."""
    return _pattern(secret).sub(MARK, text)


@cache
def _pattern(secret: str) -> re.Pattern[str]:
    """Every form in which `secret` may be written, the longest first: a shorter one may be part of it."""
    escaped = secret.replace("\\", "\\\\").replace('"', '\\"')
    quoted = {escaped.replace("/", "\\/"), escaped, repr(secret)[1:-1], quote(secret), quote(secret, safe=""), quote_plus(secret)}
    forms = sorted({secret, html.escape(secret), *quoted}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, forms)))


def redact_all(value: Any) -> Any:
    """`value`, made of dicts and lists, with every string in it redacted; keys of dicts stay, as they come from this package."""
    secrets = _secrets()

    def redacted(value: Any) -> Any:
        if isinstance(value, str):
            return _redacted(value, secrets)
        if isinstance(value, dict):
            return {key: redacted(each) for key, each in value.items()}
        return [redacted(each) for each in value] if isinstance(value, list | tuple) else value

    return redacted(value)


def is_secret(name: str) -> bool:
    """True if the value of an environment variable of this name is a secret."""
    return name in _declared or _names_secret(name)


@cache
def _names_secret(name: str) -> bool:
    return name != WORKING_FOLDER and any(map(_says_secret, _WORDS.findall(name)))


def _says_secret(word: str) -> bool:
    return any(_SECRET.fullmatch(each) for each in (word, word.rstrip("sS")))


def _secrets() -> list[str]:
    """The longest first: a shorter one may be part of it."""
    found = (value.strip() for name, value in os.environ.items() if is_secret(name))
    return sorted((value for value in found if len(value) >= LEAST_CHARACTERS), key=len, reverse=True)
