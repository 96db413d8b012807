"""The Hugging Face hub, asked about a model before an engine starts: a name enters, what its `config.json` holds leaves, within seconds.

The libraries that load models ask again and again: where nothing answers, for minutes.
"""

import json
import logging
from http.client import HTTPException
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from pipeline.engines.model_card import is_hub_name, is_offline
from pipeline.errors import GraphError, reason

HUB_S = 5.0
"""Seconds for one attempt, the search for the hub's address included."""
_MAX_BYTES = 1 << 20
_ABSENT = ("RepoNotFound", "GatedRepo")
"""How the hub names, in a header, why a model cannot be had."""
_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")


class NotOnHub(OSError):
    """A model cannot be had from the hub; the text is a clause."""


def check_hub(model: str) -> None:
    """Raise `NotOnHub` if `model` is a name on the hub, not on this machine, that the hub does not know or cannot be asked for."""
    if not is_hub_name(model) or is_offline() or Path(model).is_dir():
        return
    from huggingface_hub import try_to_load_from_cache

    if not any(isinstance(try_to_load_from_cache(model, name), str) for name in _FILES):
        hub_config(model)


def check_model(role: str, model: str) -> None:
    """Raise the `GraphError` of a role whose model cannot be had."""
    try:
        check_hub(model)
    except NotOnHub as absent:
        raise GraphError(f"engine {role!r}", f"{model}: {absent}; name a folder with its files, or another model on the hub") from None


def hub_config(model: str) -> dict[str, Any]:
    """The configuration of a model on the hub, asked for once; empty where it has none. Raises `NotOnHub`."""
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it tells every attempt
    answers: SimpleQueue[dict[str, Any] | NotOnHub] = SimpleQueue()
    Thread(target=lambda: answers.put(_asked(model)), daemon=True).start()  # the search for an address has no limit of time
    try:
        found = answers.get(timeout=HUB_S)
    except Empty:
        found = NotOnHub(f"not on this machine, and the Hugging Face hub did not answer within {HUB_S:g} s")
    if isinstance(found, NotOnHub):
        raise found
    return found


def _asked(model: str) -> dict[str, Any] | NotOnHub:
    from huggingface_hub import get_token
    from huggingface_hub.constants import ENDPOINT

    asked = Request(f"{ENDPOINT}/{model}/resolve/main/config.json")
    if token := get_token():
        asked.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urlopen(asked, timeout=HUB_S) as answer:
            found = json.loads(answer.read(_MAX_BYTES))
    except HTTPError as error:
        known = error.headers.get("X-Error-Code") not in _ABSENT
        return {} if known else NotOnHub("unknown to the Hugging Face hub, or you have no access to it (HF_TOKEN)")
    except ValueError:
        return {}
    except (OSError, HTTPException) as error:
        return NotOnHub(f"not on this machine, and the Hugging Face hub cannot be reached ({reason(getattr(error, 'reason', error))})")
    return found if isinstance(found, dict) else {}
