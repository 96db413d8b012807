"""Removal of secrets from text that is written or printed: text enters, the same text without secrets leaves.

A secret is the value of an environment variable with a name such as `OPENAI_API_KEY` or `HF_TOKEN`, or a password within a
URL. Servers, workers and libraries repeat such values in their error messages, so error messages are redacted before they
are written or printed.
"""

import os
import re
from collections.abc import Iterator
from typing import Any

MARK = "***"
"""What stands in place of a secret."""
LEAST_CHARACTERS = 8
"""Shorter values are not taken for secrets: replacing a `1` would garble every number."""
_SECRET = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)S?($|_)", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(?<=://)[^\s/@'\"]+(?=@)")


def redact(text: str) -> str:
    """`text` with every secret of the environment, and what stands before the `@` of a URL, replaced by `***`."""
    for secret in sorted(_secrets(), key=len, reverse=True):
        text = without(text, secret)
    return _URL_PASSWORD.sub(MARK, text)


def without(text: str, secret: str) -> str:
    """`text` with `***` in place of `secret`, as it is or as JSON escapes it."""
    escaped = secret.replace("\\", "\\\\").replace('"', '\\"')
    for form in (escaped.replace("/", "\\/"), escaped, secret):
        text = text.replace(form, MARK)
    return text


def redact_all(value: Any) -> Any:
    """`value`, made of dicts and lists, with every string in it redacted; keys of dicts stay, as they come from this package."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: redact_all(each) for key, each in value.items()}
    return [redact_all(each) for each in value] if isinstance(value, list | tuple) else value


def is_secret(name: str) -> bool:
    """Whether the name of an environment variable says that its value is a secret."""
    return _SECRET.search(name) is not None


def _secrets() -> Iterator[str]:
    for name, value in os.environ.items():
        if len(value.strip()) >= LEAST_CHARACTERS and is_secret(name):
            yield value.strip()
