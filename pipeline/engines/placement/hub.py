"""What the Hugging Face hub says of a model before it is downloaded: a name enters, a `ModelCard` leaves.

Of a model that is not on this machine only its `config.json` is asked for, a few kilobytes, and only where no published configuration of
it is known here. Nothing is stored.
"""

import json
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from pipeline.engines.model_card import ModelCard, card_from_config, is_hub_name, is_offline, read_card
from pipeline.errors import UsageError

_ANSWER_S = 5.0
_MAX_BYTES = 1 << 20
_ABSENT = ("RepoNotFound", "GatedRepo")
"""How the hub names, in a header, why a model cannot be had."""


def card_of(role: str, model: str) -> ModelCard:
    """The known facts about `model`, a folder or a hub name; raises `UsageError` for a name that the hub does not know."""
    card = read_card(model)
    if card.shape is not None or card.folder is not None or not is_hub_name(model) or is_offline():
        return card
    config = _config(role, model)
    return card if config is None else card_from_config(model, config, "its config.json on the hub")


def _config(role: str, model: str) -> dict[str, object] | None:
    """The configuration of a model on the hub; None where the hub cannot be reached, or there is none."""
    from huggingface_hub import get_token
    from huggingface_hub.constants import ENDPOINT

    asked = Request(f"{ENDPOINT}/{model}/resolve/main/config.json")
    if token := get_token():
        asked.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urlopen(asked, timeout=_ANSWER_S) as answer:
            found = json.loads(answer.read(_MAX_BYTES))
    except HTTPError as error:
        if error.headers.get("X-Error-Code") in _ABSENT:
            what = "the Hugging Face hub has no such model, or you have no access to it (HF_TOKEN)"
            raise UsageError(f"--model {role}={model}: {what}") from None
        return None
    except (OSError, ValueError, HTTPException):
        return None
    return found if isinstance(found, dict) else None
