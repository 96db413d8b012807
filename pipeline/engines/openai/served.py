"""The common part of every engine whose model is served over HTTP, by one server or by several replicas.

Requests enter and completions leave; nothing is computed here and nothing is sent twice (`pipeline.runtime.retry` does that). A subclass
says how a server is asked; this class sends the call to a replica, says what a failure means for it, and ends with the servers.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskGroup

from pipeline.engine import Availability, Completion, EngineStatistics, Examination, Fact, Finding, Request, Tokenizer
from pipeline.engines.meter import UsageMeter
from pipeline.engines.openai.client import ASK_S, NoAnswer, Server, check_url, quoted, read_key
from pipeline.engines.openai.replicas import Replicas, ServerReplica
from pipeline.engines.openai.replies import error_of
from pipeline.engines.openai.spec import ServedSpec
from pipeline.engines.startup import tell_phase
from pipeline.engines.validate import validate_completion, validate_request
from pipeline.errors import EngineDead, EngineUnavailable, GraphError, PipelineError, install_command
from pipeline.system.machine import Machine
from pipeline.system.tasks import background_tasks

T = TypeVar("T")
E = TypeVar("E", bound="ServedEngine")
_TIMED_OUT = 0.9
"""A call that is cancelled after this share of `timeout_s`, or of `hang_s`, counts as timed out."""


class ServedEngine(ABC):
    """The `Engine` contract over the servers of one role."""

    tokenizer: Tokenizer
    max_model_len: int
    vocab_size: int
    facts: Mapping[str, Fact]

    def __init__(self, role: str, spec: ServedSpec, servers: Sequence[Server], tasks: TaskGroup) -> None:
        """`tasks` must live as long as the engine."""
        self.role, self._servers = role, servers
        self._limit_s = min(spec.hang_s, spec.timeout_s or spec.hang_s)
        self._tasks = tasks
        self._replicas = Replicas(servers, spec.reconnect_s, self._probe, self._start, self._die)
        self._tried: dict[str, set[ServerReplica]] = {}
        """Replicas at which a request, by its id, has failed since it was sent for the first time or had to wait."""
        self._exit_reason: str | None = None
        self._scopes: set[anyio.CancelScope] = set()
        """Everything that ends with the engine: calls and background tasks."""
        self._meter = UsageMeter()

    @abstractmethod
    async def answer(self, request: Request, server: Server) -> Completion:
        """The answer of one server; raises `NoAnswer`, and `RequestRefused` for what cannot be asked."""

    @abstractmethod
    async def probe(self, server: Server) -> None:
        """Send a server a small request; raises `NoAnswer`."""

    def check(self, request: Request) -> None:
        """Raise `RequestRefused` for a request that no server is to be asked."""
        validate_request(request, self.max_model_len, self.vocab_size)

    async def generate(self, request: Request) -> Completion:
        self._check_alive()
        self.check(request)
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
            completion = await self.answer(request, replica.server)
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
                await self.probe(server)
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


def where_of(role: str) -> str:
    """The beginning of messages about the engine of a role."""
    return f"engine {role!r}"


def connect(role: str, spec: ServedSpec, stack: AsyncExitStack) -> list[Server]:
    """The servers of a role, closed with `stack`; raises `GraphError` for an address or a key that cannot be used."""
    where = where_of(role)
    urls = [check_url(where, url) for url in spec.urls]
    if not urls or len(set(urls)) < len(urls):
        raise GraphError(where, "base_url must name at least one server, each of them once")
    key = read_key(where, spec.api_key_env)
    servers = [Server(where, url, key, spec.max_in_flight) for url in urls]
    tell_phase(role, f"connecting to {', '.join(urls)}")
    for server in servers:
        stack.push_async_callback(server.aclose)
    return servers


async def within(role: str, spec: ServedSpec, ask: Callable[[], Awaitable[T]]) -> T:
    """The result of `ask`, which asks the servers of a role; raises `GraphError` where that takes longer than the spec allows."""
    with anyio.move_on_after(spec.startup_timeout_s):
        return await ask()
    what = f"its servers did not say what they can do within startup_timeout_s={spec.startup_timeout_s:g}; increase it if they need more"
    raise GraphError(where_of(role), what)


def served_available(machine: Machine) -> Availability:
    """States whether the HTTP library is installed."""
    installed = machine.versions.get("httpx2")
    if installed is None:
        return Availability(usable=False, what="httpx2 is not installed", remedy=install_command("openai"))
    return Availability(usable=True, what=f"httpx2 {installed}")


@asynccontextmanager
async def open_served(make: Callable[[AsyncExitStack, TaskGroup], Awaitable[dict[str, E]]]) -> AsyncIterator[Mapping[str, E]]:
    """The engines that `make` opens, by role: the servers on the stack and the tasks live as long as the block, in which they are open."""
    async with AsyncExitStack() as stack, background_tasks() as tasks:
        engines = await make(stack, tasks)
        try:
            yield engines
        finally:
            for engine in engines.values():
                await engine.aclose()


async def examine_served(
    specs: Mapping[str, Any],
    open_: Callable[[Any], AbstractAsyncContextManager[Mapping[str, E]]],
    described: Callable[[E], tuple[str, str, Collection[str]]],
) -> Examination:
    """Open every engine as a run would at its start; `described` says of one what it found, the details, and what it cannot do."""
    findings: list[Finding] = []
    cannot: dict[str, Collection[str]] = {}
    for role, spec in specs.items():
        try:
            async with open_({role: spec}) as engines:
                what, remedy, cannot[role] = described(engines[role])
                findings.append(Finding(role=role, what=what, remedy=remedy, fatal=False))
        except GraphError as error:
            what, _, remedy = error.what.partition("; ")
            findings.append(Finding(role=role, what=what, remedy=remedy, fatal=True))
    return Examination(findings=tuple(findings), cannot=cannot)
