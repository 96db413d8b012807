"""What the Hugging Face hub says of a model before it is downloaded: a name enters, a `ModelCard` leaves.

Of a model that is not on this machine only its `config.json` is fetched, a few kilobytes, and only where no published configuration of it
is known here.
"""

from pipeline.engines.model_card import ModelCard, is_hub_name, is_offline, read_card
from pipeline.errors import UsageError

_ANSWER_S = 5.0


def card_of(role: str, model: str) -> ModelCard:
    """What is known of `model`, a folder or a hub name; raises `UsageError` for a name that the hub does not know."""
    card = read_card(model)
    if card.shape is None and card.folder is None and is_hub_name(model) and not is_offline():
        _fetch(role, model)
        card = read_card(model)
    return card


def _fetch(role: str, model: str) -> None:
    """Fetch the configuration of `model` into the local cache, where the hub can be reached."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        hf_hub_download(model, "config.json", etag_timeout=_ANSWER_S)
    except RepositoryNotFoundError:
        what = "the Hugging Face hub has no such model, or not for you (HF_TOKEN)"
        raise UsageError(f"--model {role}={model}: {what}") from None
    except (OSError, ValueError, RuntimeError):
        return
