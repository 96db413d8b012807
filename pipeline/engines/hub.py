"""The Hugging Face hub, asked about a model before an engine starts: a name enters, what the hub holds of it leaves, within seconds.

The libraries that load models ask again and again: where nothing answers, for minutes.
"""

import json
import os
import re
from concurrent.futures import Future
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from pipeline.errors import reason

HUB_S = 5.0
"""Seconds for one attempt, the search for the hub's address included."""
_MAX_BYTES = 1 << 24
_ABSENT = ("RepoNotFound", "GatedRepo")
"""How the hub names, in a header, why a model cannot be had."""
_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")


class NotOnHub(OSError):
    """A model cannot be had from the hub; the text is a clause."""


def is_hub_name(model: str) -> bool:
    """True if `model` can be a name on the hub; a path cannot."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", model) is not None


def is_offline() -> bool:
    """True if the user forbids downloads from the hub."""
    return os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on")


def local_folder(model: str) -> Path | None:
    """The folder of a model on this machine: `model` itself, or its place in the local Hugging Face cache; None without one."""
    if (folder := Path(model).expanduser()).is_dir():
        return folder
    if not is_hub_name(model):
        return None
    from huggingface_hub import try_to_load_from_cache

    found = (try_to_load_from_cache(model, name) for name in _FILES)
    return next((Path(path).parent for path in found if isinstance(path, str)), None)


def check_hub(model: str) -> None:
    """Raise `NotOnHub` if `model` is a name on the hub, not on this machine, that the hub does not know or cannot be asked for."""
    if is_hub_name(model) and not is_offline() and local_folder(model) is None:
        hub_json(f"{model}/resolve/main/config.json")


def hub_json(path: str) -> dict[str, Any]:
    """The JSON object at a path of the hub, asked for once; empty where there is none. Raises `NotOnHub`."""
    answer: Future[dict[str, Any]] = Future()
    Thread(target=_ask, args=(path, answer), daemon=True).start()  # the search for an address has no limit of time
    try:
        return answer.result(HUB_S)
    except TimeoutError:
        raise NotOnHub(f"not on this machine, and the Hugging Face hub did not answer within {HUB_S:g} s") from None


def _ask(path: str, answer: "Future[dict[str, Any]]") -> None:
    from huggingface_hub import get_token
    from huggingface_hub.constants import ENDPOINT

    asked = Request(f"{ENDPOINT}/{path}")
    if token := get_token():
        asked.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urlopen(asked, timeout=HUB_S) as page:
            found = json.loads(page.read(_MAX_BYTES))
        answer.set_result(found if isinstance(found, dict) else {})
    except HTTPError as error:
        if error.headers.get("X-Error-Code") in _ABSENT:
            answer.set_exception(NotOnHub("unknown to the Hugging Face hub, or you have no access to it (HF_TOKEN)"))
        else:
            answer.set_result({})
    except ValueError:
        answer.set_result({})
    except (OSError, HTTPException) as error:
        why = reason(getattr(error, "reason", error))
        answer.set_exception(NotOnHub(f"not on this machine, and the Hugging Face hub cannot be reached ({why})"))
