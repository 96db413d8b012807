"""Engine `openai`: any server with OpenAI's completions endpoint, or several that are replicas of one another.

Specs enter, open engines leave: every server is asked what it is and what it can do before anything is run.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial, reduce
from importlib.metadata import version
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

from pipeline.engine import Availability, Backend, Examination, Fact, Finding
from pipeline.engines.models import resolve
from pipeline.engines.openai.client import Server, check_url, read_key
from pipeline.engines.openai.engine import Deployment, OpenAIEngine, ServedTokenizer
from pipeline.engines.openai.probe import CacheConfig, ProbedServer, ServedModel, context_length, find_model, probe_server
from pipeline.engines.openai.request import MANY, PRIORITY, Capabilities, shared_capabilities
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.startup import READY, tell_phase
from pipeline.engines.validate import is_another_model
from pipeline.errors import GraphError, boundary, install_command
from pipeline.machine import Machine
from pipeline.tasks import background_tasks, gather

T = TypeVar("T")
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
    connected = [(role, spec, _connect(role, spec, stack)) for role, spec in specs.items()]
    surveyed = await gather([partial(_within, role, spec, partial(_survey, role, spec, servers)) for role, spec, servers in connected])
    engines: dict[str, OpenAIEngine] = {}
    for deployment, models in surveyed:
        tell_phase(deployment.role, "loading the tokenizer")
        tokenizer = await anyio.to_thread.run_sync(_load_tokenizer, deployment.role, deployment.spec, abandon_on_cancel=True)
        where, spec, servers = _where(deployment.role), deployment.spec, zip(deployment.servers, models, strict=True)
        tell_phase(deployment.role, "probing what its servers can do")
        probes = [partial(probe_server, where, server, model, spec, tokenizer) for server, model in servers]
        probed = await _within(deployment.role, spec, partial(gather, probes))
        if len({one.can.adds_bos for one in probed}) > 1:
            raise GraphError(where, "some of its servers put a beginning-of-sequence token before a prompt and others do not")
        can = reduce(shared_capabilities, (one.can for one in probed))
        tell_phase(deployment.role, READY)
        engines[deployment.role] = OpenAIEngine(deployment, tokenizer, can, facts(deployment, can, probed), tasks)
    return engines


async def _within(role: str, spec: OpenAISpec, ask: Callable[[], Awaitable[T]]) -> T:
    """What `ask` finds out about the servers of a role; raises `GraphError` where that takes longer than the spec allows."""
    with anyio.move_on_after(spec.startup_timeout_s):
        return await ask()
    what = f"its servers did not say what they can do within startup_timeout_s={spec.startup_timeout_s:g}; increase it if they need more"
    raise GraphError(_where(role), what)


def _where(role: str) -> str:
    return f"engine {role!r}"


def _connect(role: str, spec: OpenAISpec, stack: AsyncExitStack) -> list[Server]:
    where = _where(role)
    urls = [check_url(where, url) for url in ([spec.base_url] if isinstance(spec.base_url, str) else spec.base_url)]
    if not urls or len(set(urls)) < len(urls):
        raise GraphError(where, "base_url must name at least one server, each of them once")
    key = read_key(where, spec.api_key_env)
    servers = [Server(where, url, key, spec.max_in_flight) for url in urls]
    tell_phase(role, f"connecting to {', '.join(server.url for server in servers)}")
    for server in servers:
        stack.push_async_callback(server.aclose)
    return servers


async def _survey(role: str, spec: OpenAISpec, servers: Sequence[Server]) -> tuple[Deployment, list[ServedModel]]:
    """The deployment of a role, and its model as each of the servers lists it."""
    where = _where(role)
    models = await gather([partial(find_model, where, server, spec) for server in servers])
    lengths = [context_length(where, server, spec, model) for server, model in zip(servers, models, strict=True)]
    return Deployment(role, spec, servers, min(lengths)), models


def _load_tokenizer(role: str, spec: OpenAISpec) -> ServedTokenizer:
    try:
        tokenizer = ServedTokenizer(resolve(role, spec.tokenizer or spec.model), template_arguments=spec.chat_template_kwargs)
    except GraphError as error:
        remedy = "" if spec.tokenizer else "; set tokenizer to the folder or the hub name of the model's own"
        raise GraphError(_where(role), f"{error}{remedy}") from error
    with boundary(GraphError, _where(role), foreign=GraphError):
        tokenizer.render([{"role": "user", "content": "0 or 1?"}])  # a template that computes up to its limit does so in this thread
    return tokenizer


def facts(deployment: Deployment, can: Capabilities, probed: Sequence[ProbedServer]) -> dict[str, Fact]:
    """The engine's `Engine.facts`: what is known of the servers, and what is assumed where they do not say."""
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


def _doubts(deployment: Deployment, can: Capabilities, probed: Sequence[ProbedServer]) -> dict[str, Fact]:
    """What cannot be known of the servers, or is strange, as the fact `doubts`."""
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
    found = {role: await _ask(role, spec) for role, spec in specs.items()}
    return Examination(
        findings=tuple(finding for finding, _ in found.values()), cannot={role: cannot for role, (_, cannot) in found.items()}
    )


async def _ask(role: str, spec: OpenAISpec) -> tuple[Finding, Collection[str]]:
    """What is found of the servers of a role, and what these cannot do."""
    try:
        async with open_openai({role: spec}) as engines:
            found, cannot = engines[role].facts, engines[role].can.cannot
    except GraphError as error:
        what, _, remedy = error.what.partition("; ")
        return Finding(role=role, what=what, remedy=remedy, fatal=True), ()
    words = f"{found['server']} {found['server_version']} answers: prompts as {found['prompts']}, outputs as {found['outputs']}"
    how = f"options {found['options']}, stops {found['stops']}, prompt tokens {found['prompt_tokens']}"
    return Finding(role=role, what=words, remedy=how, fatal=False), cannot


def openai_available(machine: Machine) -> Availability:
    """Whether the HTTP library is installed."""
    installed = machine.versions.get("httpx2")
    if installed is None:
        return Availability(usable=False, what="httpx2 is not installed", remedy=install_command("openai"))
    return Availability(usable=True, what=f"httpx2 {installed}")


BACKEND = Backend(spec=OpenAISpec, open=open_openai, available=openai_available, examine=examine_openai, tokenizer=_load_tokenizer)
