"""The meaning of `--model ROLE=VALUE`: a text enters, the model for the role leaves. Pure.

A value is a name on the Hugging Face hub, a folder, `bundled:NAME`, or the URL of a server, up to and including `/v1`, with the name of the
model after a `#` if the server has several. `chat+` before the URL says that the server has chat completions only.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

from pipeline.engines.model_card import is_hub_name
from pipeline.errors import UsageError

_CHAT = "chat+"
_FORMS = "a Hugging Face name, a folder, bundled:NAME, or http://HOST:PORT/v1#MODEL"


class Weights(Struct, frozen=True):
    """A model that is to be loaded."""

    model: str
    """A hub name, an absolute path, or `bundled:NAME`."""


class Served(Struct, frozen=True):
    """A server that has the model loaded."""

    url: str
    model: str | None = None
    """As the server names it; None: it has one."""
    chat: bool = False
    """It has chat completions only."""


Choice: TypeAlias = Weights | Served


def read_choices(models: Mapping[str, object], lacking: Mapping[str, str] | None = None) -> dict[str, Choice]:
    """The choice for each role; raises one `UsageError` for all that is wrong with it, and for the roles that are `lacking`: by role what
    lacks it."""
    found: dict[str, Choice] = {}
    flaws: list[str] = []
    for role, value in models.items():
        try:
            found[role] = _choice(role, str(value))
        except UsageError as error:
            flaws.append(str(error))
    if lacking:
        graph = next(iter(lacking.values()))
        what = f"{graph} also needs a model for {' and '.join(lacking)}"
        flaws.append(f"--model: {what}; add {' '.join(f'--model {role}=NAME' for role in lacking)}, or give --engines")
    if flaws:
        raise UsageError("\n".join(flaws))
    return found


def pairs(values: Sequence[str]) -> dict[str, str]:
    """The values of an option `--model ROLE=VALUE` by role; raises `UsageError`."""
    found: dict[str, str] = {}
    for each in values:
        role, equals, value = each.partition("=")
        if not equals or not role or not value:
            raise UsageError(f"--model {each}: expected ROLE=VALUE, such as target=Qwen/QwQ-32B; VALUE is {_FORMS}")
        if role in found:
            raise UsageError(f"--model {role}=...: the role is given twice")
        found[role] = value
    return found


def _choice(role: str, value: str) -> Choice:
    text = value.removeprefix(_CHAT)
    if re.match(r"https?://", text, re.IGNORECASE):
        return _served(role, text, chat=text != value)
    if Path(value).expanduser().is_dir():
        return Weights(str(Path(value).expanduser().absolute()))
    if value.startswith("bundled:") or is_hub_name(value):
        return Weights(value)
    what = "there is no such folder" if "://" not in value and "/" in value else "is not a valid model"
    raise UsageError(f"--model {role}={value}: {what}; expected {_FORMS}")


def _served(role: str, text: str, *, chat: bool) -> Served:
    url, _, model = text.partition("#")
    path = urlsplit(url).path.rstrip("/")
    if not path:
        example = f"{url.rstrip('/')}/v1" + (f"#{model}" if model else "")
        raise UsageError(f"--model {role}={text}: a server's URL must include the path, up to /v1: {role}={_CHAT if chat else ''}{example}")
    return Served(url.rstrip("/"), model or None, chat)
