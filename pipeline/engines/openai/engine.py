"""The `Engine` contract over servers with OpenAI's completions endpoint that are replicas of one another.

Requests enter and completions leave; nothing is computed here and nothing is sent twice (the dispatcher does that). A
chain stays with the replica that has its prefix. A replica whose connections fail is asked until it answers again;
when none has answered for `reconnect_s` the engine is dead.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import anyio
from anyio.abc import TaskGroup

from pipeline.engine import Completion, EngineStatistics, Fact, Request, Tokenizer
from pipeline.engines.meter import UsageMeter
from pipeline.engines.openai.answers import Aborted, Answer, Malformed, answer_of
from pipeline.engines.openai.client import Broken, Oversized, Reply, Server, complaint_of, overflows
from pipeline.engines.openai.completion import completion_of
from pipeline.engines.openai.probe import FIRST_DELAY_S, LONGEST_DELAY_S, model_card
from pipeline.engines.openai.replicas import Router
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.openai.terms import SCORING, Capabilities, bodies
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.validate import validate_request
from pipeline.errors import ContextOverflow, EngineDead, EngineUnavailable, PipelineError, RequestRefused

T = TypeVar("T")


class ServedTokenizer(HFTokenizer):
    """The tokenizer of a model that is served elsewhere."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest id it knows."""
        highest: int = max(self._hf.get_vocab().values())
        return 1 + highest


class Site(NamedTuple):
    """Where the model of a role is served."""

    role: str
    spec: OpenAISpec
    servers: Sequence[Server]
    max_model_len: int
    """The least of the servers'."""


class OpenAIEngine:
    """The `Engine` contract over servers; open it with `open_openai`."""

    def __init__(self, site: Site, tokenizer: ServedTokenizer, can: Capabilities, facts: dict[str, Fact], tasks: TaskGroup) -> None:
        self.role = site.role
        self.tokenizer: Tokenizer = tokenizer
        self.max_model_len = site.max_model_len
        self.facts = facts
        self.can, self._tasks = can, tasks
        self._spec, self._servers = site.spec, site.servers
        self.vocab_size = tokenizer.vocab_size
        self._router = Router(len(site.servers))
        self._someone_up = anyio.Event()
        self._someone_up.set()
        self._last_words: str | None = None
        self._scopes: set[anyio.CancelScope] = set()
        self._meter = UsageMeter()

    async def generate(self, request: Request) -> Completion:
        """See `Engine.generate`."""
        self._check_alive()
        validate_request(request, self.max_model_len, self.vocab_size)
        self._check_possible(request)
        max_tokens = min(request.max_tokens, self.max_model_len - len(request.prompt_ids))
        contents = bodies(request, self.can, self._spec.model, self.tokenizer, max_tokens)
        answers: list[Answer] | None = None
        self._meter.begin()
        try:
            with anyio.CancelScope() as scope:
                self._scopes.add(scope)
                answers = await self._ask(request, contents)
        finally:
            self._scopes.discard(scope)
            self._meter.end()
        if answers is None:
            raise EngineDead(self.role, self._last_words or "it was closed")
        return self._read(request, answers)

    def statistics(self) -> EngineStatistics:
        """This side's own counts; a request waits while no replica is up."""
        running = sum(self._router.in_flight)
        return self._meter.statistics(running=running, waiting=self._meter.open_calls - running)

    async def aclose(self) -> None:
        """See `Engine.aclose`."""
        self._bury("it was closed")
        with anyio.CancelScope(shield=True):
            for server in self._servers:
                await server.aclose()

    # One request.

    async def _ask(self, request: Request, contents: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """The answers to all bodies, from one replica."""
        while (replica := self._router.take(request.affinity)) is None:
            await self._someone_up.wait()
        try:
            if len(contents) == 1:
                return [await self._answer(request, replica, contents[0])]
            return await all_of([partial(self._answer, request, replica, body) for body in contents])
        finally:
            self._router.leave(replica)

    async def _answer(self, request: Request, replica: int, body: Mapping[str, Any]) -> Answer:
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
        self._lost(replica, words)
        raise EngineUnavailable(self.role, words)

    def _accept(self, request: Request, server: Server, reply: Reply) -> Answer:
        if not reply.ok:
            raise self._refusal(request, server, reply)
        return self._understand(request, lambda: answer_of(reply.content))

    def _read(self, request: Request, answers: Sequence[Answer]) -> Completion:
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
        """What `read` makes of the server's words; where it cannot, the error that this is, without the key they may hold."""
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
        """The error that a reply without an answer stands for."""
        complaint = complaint_of(reply)
        if reply.transient:
            return EngineUnavailable(self.role, f"at {server.url} answered {reply.status}: {complaint.text}", reply.retry_after_s)
        if reply.status in (400, 413, 422) and overflows(complaint):
            return ContextOverflow(len(request.prompt_ids) + len(request.scored_ids), complaint.context or self.max_model_len)
        return RequestRefused(
            f"request {request.request_id!r}: engine {self.role!r} refused it with status {reply.status}: {complaint.text}"
        )

    # Replicas that are lost and found.

    def _lost(self, replica: int, words: str) -> None:
        """A connection to `replica` failed: no more calls go there until it answers again."""
        if not self._router.up[replica]:
            return
        self._router.up[replica] = False
        self._tasks.start_soon(self._until_buried, self._find, replica)
        if not any(self._router.up):
            self._someone_up = anyio.Event()
            self._tasks.start_soon(self._until_buried, self._wait_for_anyone, words)

    async def _until_buried(self, job: Callable[[T], Awaitable[None]], argument: T) -> None:
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            await job(argument)
        self._scopes.discard(scope)

    async def _find(self, replica: int) -> None:
        """Ask a lost replica until it serves the model again."""
        delay = FIRST_DELAY_S
        while not await self._serves(replica):
            await anyio.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY_S)
        self._router.up[replica] = True
        self._someone_up.set()

    async def _serves(self, replica: int) -> bool:
        try:
            return await model_card(self._servers[replica], self._spec.model) is not None
        except Broken:
            return False

    async def _wait_for_anyone(self, words: str) -> None:
        with anyio.move_on_after(self._spec.reconnect_s):
            await self._someone_up.wait()
            return
        self._bury(f"{words}; no server of it has answered for reconnect_s={self._spec.reconnect_s:g}")

    def _bury(self, exit_reason: str) -> None:
        """From now on every call raises `EngineDead`, the waiting ones first."""
        if self._last_words is None:
            self._last_words = exit_reason
        for scope in self._scopes:
            scope.cancel()

    def _check_alive(self) -> None:
        if self._last_words is not None:
            raise EngineDead(self.role, self._last_words)


async def all_of(jobs: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """The results of all `jobs`, run at once; the first error ends the others and is raised as it is."""
    results: dict[int, T] = {}
    failures: list[Exception] = []
    async with anyio.create_task_group() as tasks:

        async def run(index: int, job: Callable[[], Awaitable[T]]) -> None:
            try:
                results[index] = await job()
            except Exception as error:
                failures.append(error)
                tasks.cancel_scope.cancel()

        for index, job in enumerate(jobs):
            tasks.start_soon(run, index, job)
    if failures:
        raise failures[0]
    return [results[index] for index in range(len(jobs))]
