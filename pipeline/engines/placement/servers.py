"""What a server that plays a role is asked before its engine is described: the name of its one model, and its context length.

A choice enters, the fields of an engine leave. A server whose model is named is not asked.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio

from pipeline.engines.openai.client import Server, check_url, read_key
from pipeline.engines.openai.probe import ServedModel, listed_models
from pipeline.engines.placement.choices import Served
from pipeline.errors import UsageError

_ANSWER_S = 30.0
_MOST_NAMES = 10


def served_fields(role: str, choice: Served, said: Mapping[str, Any]) -> dict[str, Any]:
    """The engine of a role that a server plays; `said` are fields that the user sets. Raises `UsageError` and `GraphError`."""
    backend = "chat" if choice.chat else "openai"
    fields: dict[str, Any] = {"backend": backend, "model": choice.model, "base_url": choice.url}
    if choice.model is not None and (not choice.chat or "max_model_len" in said):
        return fields
    listed = _ask(role, choice.url, said.get("api_key_env"))
    model = _model(role, choice, listed)
    fields["model"] = model.id
    if model.root is not None and model.root != model.id and not choice.chat:
        fields["tokenizer"] = model.root
    if choice.chat and "max_model_len" not in said:
        if model.own_context is None:
            what = f"{choice.url} does not say the context length of {model.id!r}"
            raise UsageError(f"--model {role}=...: {what}; add --set engines.{role}.max_model_len=TOKENS")
        fields["max_model_len"] = model.own_context
    return fields


def _model(role: str, choice: Served, listed: list[ServedModel]) -> ServedModel:
    """The model that is meant: the one that is named, else the only one."""
    if choice.model is not None:
        return next((each for each in listed if each.id == choice.model), ServedModel(choice.model))
    models = [each for each in listed if each.parent is None]
    if len(models) != 1:
        prefix = "chat+" if choice.chat else ""
        names = ", ".join(each.id for each in models[:_MOST_NAMES]) + (", ..." if len(models) > _MOST_NAMES else "")
        what = f"{choice.url} serves {names}" if models else f"{choice.url} does not list its models"
        example = models[0].id if models else "MODEL"
        raise UsageError(f"--model {role}=...: {what}; name one: --model {role}={prefix}{choice.url}#{example}")
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
