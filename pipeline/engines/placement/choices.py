"""The meaning of `--model ROLE=VALUE`: a text enters, the model for the role leaves, and what its server or the hub says of it.

A value is a name on the Hugging Face hub, a folder, `bundled:NAME`, or the URL of a server, up to and including `/v1`, with the name of the
model after a `#` if the server has several. A server of which
nothing is missing is not asked; of a model that is not on this machine only its `config.json` is, a few kilobytes that are not stored.
"""

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import anyio
from msgspec import Struct

from pipeline.engines.held import check_held
from pipeline.engines.hub import NotOnHub, check_hub, hub_config
from pipeline.engines.model_card import ModelCard, card_from_config, is_hub_name, is_offline, read_card
from pipeline.engines.openai.client import Server, read_key
from pipeline.engines.openai.engine import ServedModel, listed_models
from pipeline.engines.openai.spec import flaw_in_url
from pipeline.errors import UsageError, did_you_mean

_FORMS = "a Hugging Face name, a folder, bundled:NAME, or http://HOST:PORT/v1#MODEL"
_SERVER_S, _MAX_NAMES = 30.0, 10


class Weights(Struct, frozen=True):
    """A model that is to be loaded."""

    model: str
    """A hub name, an absolute path, or `bundled:NAME`."""


class Served(Struct, frozen=True):
    """A server that has the model loaded."""

    url: str
    model: str | None = None
    """As the server names it; None: it has one."""


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
        found[role] = value
    return found


def _choice(role: str, value: str) -> Choice:
    if re.match(r"https?://", value, re.IGNORECASE):
        return _served(role, value)
    if Path(value).expanduser().is_dir():
        return Weights(str(Path(value).expanduser().absolute()))
    if value.startswith("bundled:") or is_hub_name(value):
        return Weights(value)
    check_held(f"--model {role}=...", value)
    what = "there is no such folder" if "://" not in value and "/" in value else "is not a valid model"
    raise UsageError(f"--model {role}={value}: {what}; expected {_FORMS}")


def _served(role: str, text: str) -> Served:
    url, _, model = text.partition("#")
    path = urlsplit(url).path.rstrip("/")
    if not path:
        example = f"{url.rstrip('/')}/v1" + (f"#{model}" if model else "")
        raise UsageError(f"--model {role}={text}: a server's URL must include the path, up to /v1: {role}={example}")
    return Served(url.rstrip("/"), model or None)


# Servers.


def served_fields(role: str, choice: Served, said: Mapping[str, Any]) -> dict[str, Any]:
    """The engine of a role that a server plays; `said` are fields that the user sets. Raises `UsageError` and `GraphError`."""
    fields = {"backend": "openai", "base_url": choice.url}
    if choice.model is not None and ("tokenizer" in said or "/" in choice.model):
        fields |= {"model": choice.model}
    else:
        model = _model(role, choice, _ask(role, choice.url, said.get("api_key_env")))
        fields |= {"model": model.id} | ({"tokenizer": str(model.root)} if model.root != model.id and _is_here(model.root) else {})
    named = str(said.get("tokenizer") or fields.get("tokenizer") or fields["model"])
    try:
        check_hub(named)
    except NotOnHub as absent:
        where, ids = f"--model {role}={choice.url}#{fields['model']}", [each.id for each in _ask(role, choice.url, said.get("api_key_env"))]
        if ids and fields["model"] not in ids:
            raise UsageError(f"{where}: the server has no such model; {did_you_mean(fields['model'], ids)}") from None
        remedy = f"give the folder or the hub name of the model's own with --set engines.{role}.tokenizer=NAME"
        raise UsageError(f"{where}: no tokenizer: {named} is {absent}; {remedy}") from None
    return fields


def _is_here(root: str | None) -> bool:
    """True if what a server loads its model from is something that can be found from here too."""
    return root is not None and (Path(root).is_dir() or ("/" in root and is_hub_name(root)))


def _model(role: str, choice: Served, listed: list[ServedModel]) -> ServedModel:
    """The model that is meant: the one that is named, else the only one."""
    if choice.model is not None:
        return next((each for each in listed if each.id == choice.model), ServedModel(choice.model))
    models = [each for each in listed if not each.parent]
    if len(models) != 1:
        names = ", ".join(each.id for each in models[:_MAX_NAMES]) + (", ..." if len(models) > _MAX_NAMES else "")
        what = f"{choice.url} serves {names}" if models else f"{choice.url} does not list its models"
        known = f"{role}={choice.url}"
        raise UsageError(f"--model {known}: {what}; name one: {known}#{models[0].id if models else 'MODEL'}")
    return models[0]


def _ask(role: str, url: str, api_key_env: str | None) -> list[ServedModel]:
    """The models that a server lists; none where it has no list. Also for callers in whose thread an event loop runs."""
    where = f"--model {role}={url}"
    if flaw := flaw_in_url(url):
        raise UsageError(f"{where}: {flaw}")

    async def ask() -> list[ServedModel]:
        server = Server(where, url, read_key(where, api_key_env))
        try:
            return await listed_models(where, server, api_key_env, _SERVER_S)
        finally:
            await server.aclose()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(anyio.run, ask).result()


# The hub.


def card_of(role: str, model: str) -> ModelCard:
    """The known facts about `model`, a folder or a hub name; raises `UsageError` for a name that nobody knows."""
    check_held(f"--model {role}=...", model)
    card = read_card(model)
    if card.shape is not None or card.folder is not None or not is_hub_name(model) or is_offline():
        return card
    try:
        config = hub_config(model)
    except NotOnHub as absent:
        raise UsageError(f"--model {role}={model}: {absent}; expected {_FORMS}") from None
    return card_from_config(model, config, "its config.json on the hub") if config else card
