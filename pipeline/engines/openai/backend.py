"""Engine `openai`: any server with OpenAI's completions endpoint, or several that are replicas of one another.

Specs enter, open engines leave: every server is asked what it is and what it can do before anything is run.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial, reduce
from importlib.metadata import version

import anyio
from anyio.abc import TaskGroup

from pipeline.engine import Availability, Backend, Examination, Fact, Finding
from pipeline.engines.models import resolve
from pipeline.engines.openai.client import Server, checked_url, key_of
from pipeline.engines.openai.engine import OpenAIEngine, ServedTokenizer, Site, all_of
from pipeline.engines.openai.probe import Found, ModelCard, context_length, find_card, find_out
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.openai.terms import MANY, PRIORITY, SCORING, Capabilities, weakest
from pipeline.errors import GraphError
from pipeline.machine import Machine


@asynccontextmanager
async def open_openai(specs: Mapping[str, OpenAISpec]) -> AsyncIterator[Mapping[str, OpenAIEngine]]:
    """Open an engine for each role, all at once.

    Raises `GraphError` when a server cannot be reached, refuses the key, does not serve the model or cannot do what is needed.
    """
    engines: dict[str, OpenAIEngine] = {}
    failure: Exception | None = None
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        try:
            engines = await _open_all(specs, stack, tasks)
            yield engines
        except Exception as error:
            failure = error  # raised below, so that it does not come out as a group
        finally:
            for engine in engines.values():
                await engine.aclose()
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _open_all(specs: Mapping[str, OpenAISpec], stack: AsyncExitStack, tasks: TaskGroup) -> dict[str, OpenAIEngine]:
    """What fails fast comes first: addresses and keys, then the lists of models, then the tokenizers, which load slowly."""
    connected = [(role, spec, _connect(role, spec, stack)) for role, spec in specs.items()]
    surveyed = await all_of([partial(_survey, role, spec, servers) for role, spec, servers in connected])
    engines: dict[str, OpenAIEngine] = {}
    for site, cards in surveyed:
        tokenizer = await anyio.to_thread.run_sync(_load_tokenizer, site.role, site.spec, abandon_on_cancel=True)
        found = await all_of(
            [partial(find_out, _where(site.role), *one, site.spec, tokenizer) for one in zip(site.servers, cards, strict=True)]
        )
        can = reduce(weakest, (one.can for one in found))
        engines[site.role] = OpenAIEngine(site, tokenizer, can, facts(can, found), tasks)
    return engines


def _where(role: str) -> str:
    return f"engine {role!r}"


def _connect(role: str, spec: OpenAISpec, stack: AsyncExitStack) -> list[Server]:
    where = _where(role)
    urls = [checked_url(where, url) for url in ([spec.base_url] if isinstance(spec.base_url, str) else spec.base_url)]
    if not urls or len(set(urls)) < len(urls):
        raise GraphError(where, "base_url must name at least one server, and none of them twice")
    key = key_of(where, spec.api_key_env)
    servers = [Server(where, url, key, spec.max_in_flight) for url in urls]
    for server in servers:
        stack.push_async_callback(server.aclose)
    return servers


async def _survey(role: str, spec: OpenAISpec, servers: Sequence[Server]) -> tuple[Site, list[ModelCard]]:
    where = _where(role)
    cards = await all_of([partial(find_card, where, server, spec) for server in servers])
    lengths = [context_length(where, server, spec, card) for server, card in zip(servers, cards, strict=True)]
    return Site(role, spec, servers, min(lengths)), cards


def _load_tokenizer(role: str, spec: OpenAISpec) -> ServedTokenizer:
    try:
        return ServedTokenizer(resolve(role, spec.tokenizer or spec.model))
    except GraphError as error:
        remedy = "" if spec.tokenizer else "; set tokenizer to the folder or the hub name of the model's own"
        raise GraphError(_where(role), f"{error}{remedy}") from error


def facts(can: Capabilities, found: Sequence[Found]) -> dict[str, Fact]:
    """What `run.json` says about the servers, and about what is assumed where they are silent."""
    by_text = not can.returns_ids and not can.tells_stop
    return {
        "server": found[0].card.owned_by or "unknown",
        "server_version": found[0].version or "unknown",
        "openai_version": version("openai"),
        "replicas": len(found),
        "prompts": can.prompts,
        "outputs": "ids" if can.returns_ids else "text, encoded here",
        "options": "exact" if can.exact_options else f"among the top {can.top_logprobs} tokens" if can.top_logprobs else "none",
        "stops": "assumed: a text that stopped had the stop string it was sent" if by_text else "told by the server",
        "candidates": "all in one request" if MANY in can.fields else "a request each",
        "priorities": PRIORITY in can.fields,
        "scoring": SCORING in can.fields,
    }


async def examine_openai(specs: Mapping[str, OpenAISpec], machine: Machine) -> Examination:
    """Asks the servers of every role, as a run would at its start."""
    return Examination(findings=tuple([await _ask(role, spec) for role, spec in specs.items()]))


async def _ask(role: str, spec: OpenAISpec) -> Finding:
    try:
        async with open_openai({role: spec}) as engines:
            found = engines[role].facts
    except GraphError as error:
        what, _, remedy = error.what.partition("; ")
        return Finding(role=role, what=what, remedy=remedy, fatal=True)
    words = f"{found['server']} {found['server_version']} answers: prompts as {found['prompts']}, outputs as {found['outputs']}"
    return Finding(role=role, what=words, remedy=f"options {found['options']}, stops {found['stops']}", fatal=False)


def openai_available(machine: Machine) -> Availability:
    """Is the client library installed?"""
    version = machine.versions.get("openai")
    if version is None:
        return Availability(usable=False, what="openai is not installed", remedy='pip install "pipeline[openai]"')
    return Availability(usable=True, what=f"openai {version}")


BACKEND = Backend(spec=OpenAISpec, open=open_openai, available=openai_available, examine=examine_openai)
