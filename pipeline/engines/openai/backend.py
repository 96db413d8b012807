"""Engine `openai`: any server with OpenAI's completions endpoint, or several that are replicas of one another.

Specs enter, open engines leave: every server is asked what it is and what it can do before anything is run.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial, reduce
from importlib.metadata import version

import anyio
from anyio.abc import TaskGroup

from pipeline.engine import Backend, Examination, Fact, Finding
from pipeline.engines.models import resolve
from pipeline.engines.openai.client import Server
from pipeline.engines.openai.engine import Deployment, OpenAIEngine, ServedTokenizer
from pipeline.engines.openai.probe import CacheConfig, CheckedServer, ServedModel, check_server, context_length, find_model
from pipeline.engines.openai.request import MANY, PRIORITY, Capabilities, shared_capabilities
from pipeline.engines.openai.served import connect, served_available, unusable, where_of, within
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.startup import READY, tell_phase
from pipeline.engines.validate import is_another_model
from pipeline.errors import GraphError, boundary
from pipeline.system.machine import Machine
from pipeline.system.tasks import background_tasks, gather

_SHORTENS = "whether the server truncates prompts"
_SHORTENS_OR_ADDS = f"{_SHORTENS}, or prepends a token (which `adds_bos` would state),"


@asynccontextmanager
async def open_openai(specs: Mapping[str, OpenAISpec]) -> AsyncIterator[Mapping[str, OpenAIEngine]]:
    """Open an engine for each role, concurrently.

    Raises `GraphError` when a server cannot be reached, refuses the key, does not serve the model or cannot do what is needed.
    """
    async with AsyncExitStack() as stack, background_tasks() as tasks:
        engines = await _open_all(specs, stack, tasks)
        try:
            yield engines
        finally:
            for engine in engines.values():
                await engine.aclose()


async def _open_all(specs: Mapping[str, OpenAISpec], stack: AsyncExitStack, tasks: TaskGroup) -> dict[str, OpenAIEngine]:
    """The engines of all roles, with what fails fast done first: addresses and keys, then the lists of models, then the
    tokenizers, which load slowly."""
    connected = [(role, spec, connect(role, spec, stack)) for role, spec in specs.items()]
    surveyed = await gather([partial(within, role, spec, partial(_survey, role, spec, servers)) for role, spec, servers in connected])
    engines: dict[str, OpenAIEngine] = {}
    for deployment, models in surveyed:
        tell_phase(deployment.role, "loading the tokenizer")
        tokenizer = await anyio.to_thread.run_sync(_load_tokenizer, deployment.role, deployment.spec, abandon_on_cancel=True)
        where, spec, servers = where_of(deployment.role), deployment.spec, zip(deployment.servers, models, strict=True)
        tell_phase(deployment.role, "checking what its servers can do")
        probes = [partial(check_server, where, server, model, spec, tokenizer) for server, model in servers]
        probed = await within(deployment.role, spec, partial(gather, probes))
        if len({one.can.adds_bos for one in probed}) > 1:
            raise GraphError(where, "some of its servers put a beginning-of-sequence token before a prompt and others do not")
        can = reduce(shared_capabilities, (one.can for one in probed))
        tell_phase(deployment.role, READY)
        engines[deployment.role] = OpenAIEngine(deployment, tokenizer, can, facts(deployment, can, probed), tasks)
    return engines


async def _survey(role: str, spec: OpenAISpec, servers: Sequence[Server]) -> tuple[Deployment, list[ServedModel]]:
    """The deployment of a role, and its model as each of the servers lists it."""
    where = where_of(role)
    models = await gather([partial(find_model, where, server, spec) for server in servers])
    lengths = [context_length(where, server, spec, model) for server, model in zip(servers, models, strict=True)]
    return Deployment(role, spec, servers, min(lengths)), models


def _load_tokenizer(role: str, spec: OpenAISpec) -> ServedTokenizer:
    try:
        tokenizer = ServedTokenizer(resolve(role, spec.tokenizer or spec.model), template_arguments=spec.chat_template_kwargs)
    except GraphError as error:
        remedy = "" if spec.tokenizer else "; set tokenizer to the folder or the hub name of the model's own"
        raise GraphError(where_of(role), f"{error}{remedy}") from error
    with boundary(GraphError, where_of(role), foreign=GraphError):
        tokenizer.render([{"role": "user", "content": "0 or 1?"}])
    return tokenizer


def facts(deployment: Deployment, can: Capabilities, probed: Sequence[CheckedServer]) -> dict[str, Fact]:
    """The engine's `Engine.facts`, with what is assumed where the servers do not say."""
    by_text = not can.returns_ids and not can.reports_stop
    return {
        "answers": "model",
        "servers": tuple(server.url for server in deployment.servers),
        "server": probed[0].model.owned_by or "unknown",
        "server_version": probed[0].version or "unknown",
        "httpx2_version": version("httpx2"),
        "replicas": len(probed),
        "prompts": can.prompts,
        "outputs": "ids" if can.returns_ids else "text, encoded here",
        "options": "exact" if can.exact_options else f"among the top {can.top_logprobs} tokens" if can.top_logprobs else "none",
        "stops": "assumed: a text that stopped ended at the stop string it was sent" if by_text else "reported by the server",
        "candidates": "all in one request" if MANY in can.fields else "a request each",
        "priorities": PRIORITY in can.fields,
        "prompt_tokens": "as sent" if can.counts_prompts else "not stated",
        **_doubts(deployment, can, probed),
        "cannot": can.cannot,
        **_cache_facts([server.cache for server in probed]),
    }


def _doubts(deployment: Deployment, can: Capabilities, probed: Sequence[CheckedServer]) -> dict[str, Fact]:
    """The fact `doubts`: things about the servers that are strange or cannot be known."""
    asked = deployment.spec.model
    names = ((server.url, one.answered_by) for server, one in zip(deployment.servers, probed, strict=True))
    said = [f"{url} answers as the model {name!r} where {asked!r} is asked for" for url, name in names if is_another_model(asked, name)]
    if not can.counts_prompts:
        known = can.prompts == "ids" or deployment.spec.adds_bos is not None
        said.append(f"it does not report how many tokens it read: {_SHORTENS if known else _SHORTENS_OR_ADDS} cannot be determined")
    return {"doubts": tuple(said)} if said else {}


def _cache_facts(caches: Sequence[CacheConfig | None]) -> dict[str, Fact]:
    """The size of the caches of all replicas together; nothing where one of them does not say."""
    known = [cache for cache in caches if cache is not None]
    if not known or len(known) < len(caches):
        return {}
    return {
        "kv_cache_tokens": sum(cache.tokens for cache in known),
        "block_size": max(cache.block_size for cache in known),
    }


async def examine_openai(specs: Mapping[str, OpenAISpec], machine: Machine) -> Examination:
    """Ask the servers of every role what they can do, as a run would at its start."""
    findings: list[Finding] = []
    cannot: dict[str, Collection[str]] = {}
    for role, spec in specs.items():
        try:
            async with open_openai({role: spec}) as engines:
                found, cannot[role] = engines[role].facts, engines[role].can.cannot
        except GraphError as error:
            findings.append(unusable(role, error))
            continue
        words = f"{found['server']} {found['server_version']} answers: prompts as {found['prompts']}, outputs as {found['outputs']}"
        how = f"options {found['options']}, stops {found['stops']}, prompt tokens {found['prompt_tokens']}"
        findings.append(Finding(role=role, what=words, remedy=how, fatal=False))
    return Examination(findings=tuple(findings), cannot=cannot)


BACKEND = Backend(spec=OpenAISpec, open=open_openai, available=served_available, examine=examine_openai, tokenizer=_load_tokenizer)
