"""Engine `openai`: any server with OpenAI's completions endpoint, or several that are replicas of one another.

Specs enter, open engines leave: every server is asked what it is and what it can do before anything is run. Then requests become bodies,
and answers completions.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial, reduce
from importlib.metadata import version
from typing import Any, NamedTuple, TypeVar

import anyio
from anyio.abc import TaskGroup

from pipeline.engine import Availability, Backend, Completion, EngineStatistics, Examination, Fact, Finding, Request, Tokenizer
from pipeline.engines.meter import UsageMeter
from pipeline.engines.models import resolve
from pipeline.engines.openai.answers import ResponseBody, decode_reply
from pipeline.engines.openai.client import ASK_S, NoAnswer, Server, check_url, quoted, read_key
from pipeline.engines.openai.completions import completion_of
from pipeline.engines.openai.probe import CheckedServer, ServedModel, check_server, context_length, find_model
from pipeline.engines.openai.replicas import Replicas, ServerReplica
from pipeline.engines.openai.replies import error_of
from pipeline.engines.openai.request import (
    MANY,
    PRIORITY,
    SCORING,
    Capabilities,
    max_bytes,
    probe_request,
    request_bodies,
    shared_capabilities,
)
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.startup import READY, tell_phase
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.validate import is_another_model, validate_completion, validate_request
from pipeline.errors import EngineDead, EngineUnavailable, GraphError, PipelineError, RequestRefused, boundary, install_command
from pipeline.system.machine import Machine
from pipeline.system.tasks import background_tasks, gather, unwrapped

T = TypeVar("T")
_TIMED_OUT = 0.9
"""A call that is cancelled after this share of `timeout_s`, or of `hang_s`, counts as timed out."""
PADDING_IDS = 4096
"""Most ids that a model has beyond those of its tokenizer: vocabularies are padded to sizes that suit a processor."""
_SHORTENS = "whether the server truncates prompts"
_SHORTENS_OR_ADDS = f"{_SHORTENS}, or prepends a token (which `adds_bos` would state),"


class ServedTokenizer(HFTokenizer):
    """The tokenizer of a model that is served elsewhere."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id in the tokenizer."""
        highest: int = max(self._hf.get_vocab().values())
        return 1 + highest


class Deployment(NamedTuple):
    """Where the model of a role is served."""

    role: str
    spec: OpenAISpec
    servers: Sequence[Server]
    """Its replicas."""
    max_model_len: int
    """The least context length of the servers, in tokens."""


class OpenAIEngine:
    """The `Engine` contract over the servers of a deployment; open it with `open_openai`."""

    def __init__(
        self, deployment: Deployment, tokenizer: ServedTokenizer, can: Capabilities, facts: Mapping[str, Fact], tasks: TaskGroup
    ) -> None:
        """`can` is what all servers of `deployment` can do; `tasks` must live as long as the engine."""
        spec = deployment.spec
        self.role, self.max_model_len, self.facts, self.can = deployment.role, deployment.max_model_len, facts, can
        self.tokenizer: Tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        self._spec, self._servers, self._tasks = spec, deployment.servers, tasks
        self._max_ids = tokenizer.vocab_size + PADDING_IDS
        self._limit_s = min(spec.hang_s, spec.timeout_s or spec.hang_s)
        self._replicas = Replicas(self._servers, spec.reconnect_s, self._probe, self._start, self._die)
        self._tried: dict[str, set[ServerReplica]] = {}
        """Replicas at which a request, by its id, has failed since it was sent for the first time or had to wait."""
        self._exit_reason: str | None = None
        self._scopes: set[anyio.CancelScope] = set()
        """Everything that ends with the engine: calls and background tasks."""
        self._meter = UsageMeter()

    def _check(self, request: Request) -> None:
        """Raise `RequestRefused` for a request that no server is to be asked."""
        validate_request(request, self.max_model_len, self.vocab_size, self._spec.adapters)
        if request.scored_ids and SCORING not in self.can.fields:
            raise RequestRefused(f"request {request.request_id!r}: the server of {self.role!r} returns no log probabilities of a prompt")
        if request.option_ids and not self.can.top_logprobs:
            raise RequestRefused(f"request {request.request_id!r}: the server of {self.role!r} returns no log probabilities to choose by")

    async def generate(self, request: Request) -> Completion:
        self._check_alive()
        self._check(request)
        self._meter.begin()
        try:
            with self._while_alive():
                completion = await self._ask(request)
        finally:
            self._meter.end()
        self._meter.count(completion.usage)
        return completion

    async def wait_answering(self) -> bool:
        with self._while_alive():
            return await self._replicas.wait_answering()

    @property
    def received_bytes(self) -> int:
        return sum(server.received_bytes for server in self._servers)

    def statistics(self) -> EngineStatistics:
        """Counted on this side of the connection: a request waits while no replica takes calls."""
        running = self._replicas.in_flight
        return self._meter.statistics(running=running, waiting=self._meter.open_calls - running)

    async def aclose(self) -> None:
        self._die("it was closed")
        with anyio.CancelScope(shield=True):
            for server in self._servers:
                await server.aclose()

    async def _ask(self, request: Request) -> Completion:
        """The answer of one replica; raises the error to raise where there is none."""
        replica = await self._replicas.take(self._tried.get(request.request_id, ()))
        sent = anyio.current_time()
        try:
            completion = await self._answer(request, replica.server)
            if flaw := validate_completion(completion, request, self.vocab_size):
                raise NoAnswer("malformed", f"is not valid: {flaw}")
        except NoAnswer as found:
            failure = found
        except PipelineError:  # of the request, or of what the model wrote, which says nothing of the server
            self._tried.pop(request.request_id, None)
            raise
        except anyio.get_cancelled_exc_class():
            self._cancelled(request, replica, anyio.current_time() - sent)
            raise
        else:
            self._replicas.succeeded(replica)
            self._tried.pop(request.request_id, None)
            return completion
        finally:
            replica.in_flight -= 1
        raise await self._settled(request, replica, failure) from None

    async def _settled(self, request: Request, replica: ServerReplica, failure: NoAnswer) -> PipelineError:
        """Tell the replica's state of a failure; the error to raise for it."""
        error = error_of(failure, self.role, request, replica.server.url, self.max_model_len)
        if failure.verdict in ("withheld", "overflow"):  # of one answer: a server that refuses does so with a status
            self._tried.pop(request.request_id, None)
            return error
        answers = True
        if failure.verdict in ("refused", "gone", "closed"):
            answers = await self._replicas.answers(replica)
        else:
            self._replicas.failed(replica, failure)
        if self._goes_elsewhere(request, replica) or not answers:
            return EngineUnavailable(self.role, f"at {replica.server.url} {quoted(str(failure))}", moved=True)
        self._tried.pop(request.request_id, None)
        return error

    def _goes_elsewhere(self, request: Request, replica: ServerReplica) -> bool:
        """True if there is a replica at which a request that has failed at `replica` has not been tried."""
        tried = self._tried.setdefault(request.request_id, set())
        tried.add(replica)
        return self._replicas.has_other(tried)

    def _cancelled(self, request: Request, replica: ServerReplica, elapsed_s: float) -> None:
        """A call was cancelled; one that took too long speaks against its replica, and is sent to another one next time."""
        if elapsed_s < _TIMED_OUT * self._limit_s:
            self._tried.pop(request.request_id, None)
            return
        self._replicas.failed(replica, NoAnswer("failing", f"has not answered for {elapsed_s:.3g} s"))
        self._goes_elsewhere(request, replica)

    async def _probe(self, server: Server) -> NoAnswer | None:
        """The failure of a small request to a server; None: it was answered."""
        limit_s = min(self._limit_s, ASK_S)
        try:
            with anyio.move_on_after(limit_s):
                await self._answer(probe_request(self.tokenizer, self.can), server)
                return None
        except NoAnswer as failure:
            if failure.verdict == "busy":
                return NoAnswer("failing", failure.words)
            return None if failure.verdict == "withheld" else failure  # it answers, and withholds that
        return NoAnswer("failing", f"has not answered a small request for {limit_s:.3g} s")

    def _start(self, job: Callable[[], Awaitable[None]]) -> None:
        self._tasks.start_soon(self._in_background, job)

    async def _in_background(self, job: Callable[[], Awaitable[None]]) -> None:
        """Run `job`, but no longer than the engine lives."""
        with suppress(EngineDead), self._while_alive():
            await job()

    @contextmanager
    def _while_alive(self) -> Iterator[None]:
        """Cancels its body when the engine dies, and raises `EngineDead` then."""
        self._check_alive()
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            self._check_alive()

    def _die(self, exit_reason: str) -> None:
        """Make every call raise `EngineDead` from now on, the waiting ones first."""
        if self._exit_reason is None:
            self._exit_reason = exit_reason
        for scope in self._scopes:
            scope.cancel()

    def _check_alive(self) -> None:
        if self._exit_reason is not None:
            raise EngineDead(self.role, self._exit_reason)

    async def _answer(self, request: Request, server: Server) -> Completion:
        """The answer of one server; raises `NoAnswer`."""
        max_tokens = min(request.max_tokens, self.max_model_len - len(request.prompt_ids))
        model = self._spec.model if request.adapter is None else self._spec.adapters[request.adapter]
        bodies = [{**body, **self._spec.extra} for body in request_bodies(request, self.can, model, self.tokenizer, max_tokens)]
        posts = [partial(_post, server, body) for body in bodies]
        with unwrapped(NoAnswer):
            answers = [await posts[0]()] if len(posts) == 1 else await gather(posts)
        completion = completion_of(request, answers, self.can, self.tokenizer)
        for candidate in completion.candidates:
            # An id that the model has and its tokenizer lacks comes back in a prompt.
            self.vocab_size = max(self.vocab_size, min(1 + max(candidate.ids, default=0), self._max_ids))
        return completion


async def _post(server: Server, body: Mapping[str, Any]) -> ResponseBody:
    return decode_reply(await server.post("/completions", body, max_bytes(body)))


def _where(role: str) -> str:
    """The beginning of messages about the engine of a role."""
    return f"engine {role!r}"


def _connect(role: str, spec: OpenAISpec, stack: AsyncExitStack) -> list[Server]:
    """The servers of a role, closed with `stack`; raises `GraphError` for an address or a key that cannot be used."""
    where = _where(role)
    urls = [check_url(where, url) for url in spec.urls]
    if not urls or len(set(urls)) < len(urls):
        raise GraphError(where, "base_url must name at least one server, each of them once")
    key = read_key(where, spec.api_key_env)
    servers = [Server(where, url, key, spec.max_in_flight) for url in urls]
    tell_phase(role, f"connecting to {', '.join(urls)}")
    for server in servers:
        stack.push_async_callback(server.aclose)
    return servers


async def _within(role: str, spec: OpenAISpec, ask: Callable[[], Awaitable[T]]) -> T:
    """The result of `ask`, which asks the servers of a role; raises `GraphError` where that takes longer than the spec allows."""
    with anyio.move_on_after(spec.startup_timeout_s):
        return await ask()
    what = f"its servers did not say what they can do within startup_timeout_s={spec.startup_timeout_s:g}; increase it if they need more"
    raise GraphError(_where(role), what)


def _available(machine: Machine) -> Availability:
    """States whether the HTTP library is installed."""
    installed = machine.versions.get("httpx2")
    if installed is None:
        return Availability(usable=False, what="httpx2 is not installed", remedy=install_command("openai"))
    return Availability(usable=True, what=f"httpx2 {installed}")


@asynccontextmanager
async def open_openai(specs: Mapping[str, OpenAISpec]) -> AsyncIterator[Mapping[str, OpenAIEngine]]:
    """Open an engine for each role, concurrently; they are open while the block runs.

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
        role, where, spec = deployment.role, _where(deployment.role), deployment.spec
        tell_phase(role, "loading the tokenizer")
        tokenizer = await anyio.to_thread.run_sync(_load_tokenizer, role, spec, abandon_on_cancel=True)
        tell_phase(role, "checking what its servers can do")
        pairs = zip(deployment.servers, models, strict=True)
        probes = [partial(check_server, where, server, model, spec, tokenizer) for server, model in pairs]
        probed = await _within(role, spec, partial(gather, probes))
        if len({one.can.adds_bos for one in probed}) > 1:
            raise GraphError(where, "some of its servers put a beginning-of-sequence token before a prompt and others do not")
        can = reduce(shared_capabilities, (one.can for one in probed))
        tell_phase(role, READY)
        engines[role] = OpenAIEngine(deployment, tokenizer, can, facts(deployment, can, probed), tasks)
    return engines


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
        tokenizer.render([{"role": "user", "content": "0 or 1?"}])
    return tokenizer


def facts(deployment: Deployment, can: Capabilities, probed: Sequence[CheckedServer]) -> dict[str, Fact]:
    """The engine's `Engine.facts`, with what is assumed where the servers do not say."""
    by_text = not can.returns_ids and not can.reports_stop
    found: dict[str, Fact] = {
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
        "cannot": can.cannot,
    }
    if doubts := _doubts(deployment, can, probed):
        found["doubts"] = doubts
    caches = [server.cache for server in probed if server.cache is not None]
    if len(caches) == len(probed):
        found |= {"kv_cache_tokens": sum(cache.tokens for cache in caches), "block_size": max(cache.block_size for cache in caches)}
    return found


def _doubts(deployment: Deployment, can: Capabilities, probed: Sequence[CheckedServer]) -> tuple[str, ...]:
    """Things about the servers that are strange or cannot be known."""
    asked = deployment.spec.model
    names = ((server.url, one.answered_by) for server, one in zip(deployment.servers, probed, strict=True))
    said = [f"{url} answers as the model {name!r} where {asked!r} is asked for" for url, name in names if is_another_model(asked, name)]
    if not can.counts_prompts:
        known = can.prompts == "ids" or deployment.spec.adds_bos is not None
        said.append(f"it does not report how many tokens it read: {_SHORTENS if known else _SHORTENS_OR_ADDS} cannot be determined")
    return tuple(said)


async def examine_openai(specs: Mapping[str, OpenAISpec], machine: Machine) -> Examination:
    """Ask the servers of every role what they can do, as a run would at its start."""
    findings: list[Finding] = []
    cannot: dict[str, Collection[str]] = {}
    for role, spec in specs.items():
        try:
            async with open_openai({role: spec}) as engines:
                found, cannot[role] = engines[role].facts, engines[role].can.cannot
                what = f"{found['server']} {found['server_version']} answers: prompts as {found['prompts']}, outputs as {found['outputs']}"
                how = f"options {found['options']}, stops {found['stops']}, prompt tokens {found['prompt_tokens']}"
                findings.append(Finding(role=role, what=what, remedy=how, fatal=False))
        except GraphError as error:
            what, _, remedy = error.what.partition("; ")
            findings.append(Finding(role=role, what=what, remedy=remedy, fatal=True))
    return Examination(findings=tuple(findings), cannot=cannot)


BACKEND = Backend(spec=OpenAISpec, open=open_openai, available=_available, examine=examine_openai, tokenizer=_load_tokenizer)
