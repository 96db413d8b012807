"""What a server that plays a role is asked before its engine is described: which model it has, the tokenizer of that, its context length.

A choice enters, the fields of an engine leave. A server of which nothing is missing is not asked.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio

from pipeline.engines.model_card import is_hub_name
from pipeline.engines.openai.client import Server, check_url, read_key
from pipeline.engines.openai.probe import ServedModel, listed_models
from pipeline.engines.placement.choices import Served
from pipeline.errors import UsageError

_ANSWER_S = 30.0
_MAX_NAMES = 10


def served_fields(role: str, choice: Served, said: Mapping[str, Any]) -> dict[str, Any]:
    """The engine of a role that a server plays; `said` are fields that the user sets. Raises `UsageError` and `GraphError`."""
    missing = "max_model_len" if choice.chat else "tokenizer"
    known = missing in said or (not choice.chat and "/" in (choice.model or ""))
    if choice.model is not None and known:
        return _fields(choice, choice.model)
    model = _model(role, choice, _ask(role, choice.url, said.get("api_key_env")))
    fields = _fields(choice, model.id)
    if choice.chat and missing not in said:
        if model.own_context is None:
            what = f"{choice.url} does not report the context length of {model.id!r}"
            raise UsageError(f"--model {role}=...: {what}; add --set engines.{role}.max_model_len=TOKENS")
        return fields | {"max_model_len": model.own_context}
    return fields | ({"tokenizer": model.root} if not choice.chat and model.root != model.id and _is_here(model.root) else {})


def _fields(choice: Served, model: str) -> dict[str, Any]:
    return {"backend": "chat" if choice.chat else "openai", "model": model, "base_url": choice.url}


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
        url = ("chat+" if choice.chat else "") + choice.url
        raise UsageError(f"--model {role}={url}: {what}; name one: {role}={url}#{models[0].id if models else 'MODEL'}")
    return models[0]


def _ask(role: str, url: str, api_key_env: str | None) -> list[ServedModel]:
    """The models that a server lists; none where it has no list. Also for callers in whose thread an event loop runs."""

    async def ask() -> list[ServedModel]:
        where = f"--model {role}=..."
        server = Server(where, check_url(where, url), read_key(where, api_key_env), 1)
        try:
            found = await listed_models(where, server, api_key_env, _ANSWER_S)
        finally:
            await server.aclose()
        return found if isinstance(found, list) else []

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(anyio.run, ask).result()
