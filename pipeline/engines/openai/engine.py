"""The `Engine` contract over servers with OpenAI's completions endpoint that are replicas of one another.

Requests enter and completions leave; nothing is computed here and nothing is sent twice (`pipeline.runtime.retry` does that). A
chain stays with the replica that has its prefix. A replica whose connection failed gets no calls until it answers a question
about its models; when no replica has answered for `reconnect_s` the engine is dead.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import anyio
from anyio.abc import TaskGroup

from pipeline.engine import Completion, EngineStatistics, Fact, Request, Tokenizer
from pipeline.engines.meter import UsageMeter
from pipeline.engines.openai.client import Broken, Oversized, Reply, Server, is_context_overflow, server_error_of
from pipeline.engines.openai.probe import FIRST_DELAY_S, LONGEST_DELAY_S, listed_model
from pipeline.engines.openai.request import SCORING, Capabilities, request_bodies
from pipeline.engines.openai.response import Aborted, Malformed, ResponseBody, completion_of, decode_response
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.validate import validate_request
from pipeline.errors import ContextOverflow, EngineDead, EngineUnavailable, PipelineError, RequestRefused
from pipeline.tasks import gather

T = TypeVar("T")
MAX_CHAINS = 65536
"""How many chains' replicas are remembered; the chain whose last call is longest ago is forgotten first."""


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
        self.role = deployment.role
        self.tokenizer: Tokenizer = tokenizer
        self.max_model_len = deployment.max_model_len
        self.facts = facts
        self.can, self._tasks = can, tasks
        self._spec, self._servers = deployment.spec, deployment.servers
        self.vocab_size = tokenizer.vocab_size
        self._router = Router(len(deployment.servers))
        self._any_up = anyio.Event()
        self._any_up.set()
        self._exit_reason: str | None = None
        self._scopes: set[anyio.CancelScope] = set()
        self._meter = UsageMeter()

    async def generate(self, request: Request) -> Completion:
        """See `Engine.generate`."""
        self._check_alive()
        validate_request(request, self.max_model_len, self.vocab_size)
        self._check_possible(request)
        max_tokens = min(request.max_tokens, self.max_model_len - len(request.prompt_ids))
        contents = request_bodies(request, self.can, self._spec.model, self.tokenizer, max_tokens)
        answers: list[ResponseBody] | None = None
        self._meter.begin()
        try:
            with anyio.CancelScope() as scope:
                self._scopes.add(scope)
                answers = await self._ask(request, contents)
        finally:
            self._scopes.discard(scope)
            self._meter.end()
        if answers is None:
            raise EngineDead(self.role, self._exit_reason or "it was closed")
        return self._read(request, answers)

    def statistics(self) -> EngineStatistics:
        """See `EngineStatistics`, counted on this side of the connection: a request waits while no replica is up."""
        running = sum(self._router.in_flight)
        return self._meter.statistics(running=running, waiting=self._meter.open_calls - running)

    async def aclose(self) -> None:
        """See `Engine.aclose`."""
        self._die("it was closed")
        with anyio.CancelScope(shield=True):
            for server in self._servers:
                await server.aclose()

    # One request.

    async def _ask(self, request: Request, contents: Sequence[Mapping[str, Any]]) -> list[ResponseBody]:
        """The answers to all bodies, from one replica."""
        while (replica := self._router.take(request.affinity)) is None:
            await self._any_up.wait()
        try:
            if len(contents) == 1:
                return [await self._answer(request, replica, contents[0])]
            return await gather([partial(self._answer, request, replica, body) for body in contents])
        finally:
            self._router.leave(replica)

    async def _answer(self, request: Request, replica: int, body: Mapping[str, Any]) -> ResponseBody:
        server = self._servers[replica]
        try:
            reply = await server.post(body)
        except Oversized as error:
            raise RequestRefused(f"request {request.request_id!r}: engine {self.role!r} {error}") from None
        except Broken as error:
            words = str(error)
        else:
            return self._accept(request, server, reply)
        self._check_alive()
        self._mark_down(replica, words)
        raise EngineUnavailable(self.role, words)

    def _accept(self, request: Request, server: Server, reply: Reply) -> ResponseBody:
        if not reply.ok:
            raise self._refusal(request, server, reply)
        return self._understand(request, lambda: decode_response(reply.content))

    def _read(self, request: Request, answers: Sequence[ResponseBody]) -> Completion:
        completion = self._understand(request, lambda: completion_of(request, answers, self.can, self.tokenizer))
        for candidate in completion.candidates:  # an id that the model has and its tokenizer lacks comes back in a prompt
            self.vocab_size = max(self.vocab_size, 1 + max(candidate.ids, default=0))
        self._meter.count(completion.usage)
        return completion

    def _check_possible(self, request: Request) -> None:
        if request.scored_ids and SCORING not in self.can.fields:
            raise RequestRefused(f"request {request.request_id!r}: the server of {self.role!r} gives no log probabilities of a prompt")
        if request.option_ids and not self.can.top_logprobs:
            raise RequestRefused(f"request {request.request_id!r}: the server of {self.role!r} gives no log probabilities to choose by")

    def _understand(self, request: Request, read: Callable[[], T]) -> T:
        """The result of `read`, which decodes an answer; its errors become errors of the engine, without the key that they may hold."""
        failure: PipelineError
        try:
            return read()
        except Aborted as error:
            failure = EngineUnavailable(self.role, self._scrub(error))
        except Malformed as error:
            failure = RequestRefused(f"request {request.request_id!r}: the answer of engine {self.role!r} {self._scrub(error)}")
        raise failure

    def _scrub(self, error: Exception) -> str:
        return self._servers[0].scrub(str(error))

    def _refusal(self, request: Request, server: Server, reply: Reply) -> Exception:
        """The error to raise for a reply whose status is not 200."""
        error = server_error_of(reply)
        if reply.transient:
            return EngineUnavailable(self.role, f"at {server.url} answered {reply.status}: {error.text}", reply.retry_after_s)
        if reply.status in (400, 413, 422) and is_context_overflow(error):
            return ContextOverflow(len(request.prompt_ids) + len(request.scored_ids), error.context or self.max_model_len)
        return RequestRefused(f"request {request.request_id!r}: engine {self.role!r} refused it with status {reply.status}: {error.text}")

    # Replicas that fail and come back.

    def _mark_down(self, replica: int, words: str) -> None:
        """After a connection to `replica` failed: send no more calls there until it answers again; `words` say how it failed."""
        if not self._router.up[replica]:
            return
        self._router.up[replica] = False
        self._tasks.start_soon(self._until_dead, self._await_replica, replica)
        if not any(self._router.up):
            self._any_up = anyio.Event()
            self._tasks.start_soon(self._until_dead, self._await_any_replica, words)

    async def _until_dead(self, job: Callable[[T], Awaitable[None]], argument: T) -> None:
        """Run `job`, but no longer than the engine lives."""
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            await job(argument)
        self._scopes.discard(scope)

    async def _await_replica(self, replica: int) -> None:
        """Ask a replica that is down until it serves the model again; then it gets calls again."""
        delay = FIRST_DELAY_S
        while not await self._serves(replica):
            await anyio.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY_S)
        self._router.up[replica] = True
        self._any_up.set()

    async def _serves(self, replica: int) -> bool:
        try:
            return await listed_model(self._servers[replica], self._spec.model) is not None
        except Broken:
            return False

    async def _await_any_replica(self, words: str) -> None:
        """Give the engine up when no replica has come back within `reconnect_s`; `words` say how the last one failed."""
        with anyio.move_on_after(self._spec.reconnect_s):
            await self._any_up.wait()
            return
        self._die(f"{words}; no server of it has answered for reconnect_s={self._spec.reconnect_s:g}")

    def _die(self, exit_reason: str) -> None:
        """Make every call raise `EngineDead` from now on, the waiting ones first."""
        if self._exit_reason is None:
            self._exit_reason = exit_reason
        for scope in self._scopes:
            scope.cancel()

    def _check_alive(self) -> None:
        if self._exit_reason is not None:
            raise EngineDead(self.role, self._exit_reason)


class Router:
    """Chooses the replica for each call: a chain stays with the replica that has its prefix, as long as that is up; a new chain goes
    where the fewest calls are in flight."""

    def __init__(self, replicas: int, max_chains: int = MAX_CHAINS) -> None:
        self.up = [True] * replicas
        self.in_flight = [0] * replicas
        self._chains = [0] * replicas
        self._replicas: OrderedDict[str, int] = OrderedDict()
        """The replica of each chain; the chain with the latest call stands last."""
        self._max_chains = max_chains

    def take(self, affinity: str) -> int | None:
        """The replica for one more call of the chain `affinity`, or None while none is up."""
        replica = self._replicas.get(affinity)
        if replica is None or not self.up[replica]:
            replica = self._least_loaded()
            if replica is None:
                return None
        if affinity:
            self._assign(affinity, replica)
        self.in_flight[replica] += 1
        return replica

    def leave(self, replica: int) -> None:
        """Count the end of a call to `replica`."""
        self.in_flight[replica] -= 1

    def _least_loaded(self) -> int | None:
        alive = [replica for replica, up in enumerate(self.up) if up]
        return min(alive, key=lambda replica: (self.in_flight[replica], self._chains[replica]), default=None)

    def _assign(self, affinity: str, replica: int) -> None:
        before = self._replicas.pop(affinity, None)
        if before is not None:
            self._chains[before] -= 1
        self._replicas[affinity] = replica
        self._chains[replica] += 1
        if len(self._replicas) > self._max_chains:
            _, forgotten = self._replicas.popitem(last=False)
            self._chains[forgotten] -= 1
