"""The Hugging Face hub, asked about a model before an engine starts: a name enters, what the hub holds of it leaves, within seconds.

The libraries that load models ask again and again: where nothing answers, for minutes.
"""

import os
import re
from pathlib import Path
from typing import Any

from pipeline.errors import reason

HUB_S = 5.0
"""Seconds for one attempt."""
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
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status  # type: ignore[attr-defined]

    try:
        reply = get_session().get(f"{constants.ENDPOINT}/{path}", headers=build_hf_headers(), timeout=HUB_S)
        hf_raise_for_status(reply)
        return dict(reply.json())
    except RepositoryNotFoundError as error:  # or one that needs a permission
        raise NotOnHub("unknown to the Hugging Face hub, or you have no access to it (HF_TOKEN)") from error
    except (HfHubHTTPError, TypeError, ValueError):
        return {}
    except Exception as error:  # of its HTTP client
        raise NotOnHub(f"not on this machine, and the Hugging Face hub cannot be reached ({reason(error)})") from error
