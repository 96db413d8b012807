"""The main process's side of an engine whose model is computed in a worker process.

Requests enter and completions leave; nothing is computed here. The main process shares the cores with the engines, so a call must cost it
little. A backend makes a `WorkerEngine` of the `Setup` and the `Program` of each role and opens them all with `open_workers`;
`pipeline.engines.process.worker` is the other side. Lives on asyncio.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from math import inf
from typing import Any, NamedTuple

import anyio
import anyio.abc
from msgspec import structs

from pipeline.engine import Completion, EngineStatistics, Fact, Request, Tokenizer
from pipeline.engines.meter import UsageMeter
from pipeline.engines.process.wire import Abort, Failed, Loading, Ready, Report, ResetPrefixCache, Setup, Submit, ToWorker, Unframer, frame
from pipeline.engines.startup import READY, current_listener
from pipeline.engines.validate import validate_request
from pipeline.errors import EngineDead, EngineUnavailable, GraphError, RequestRefused, boundary
from pipeline.system.worker_process import Program, WorkerProcess
from pipeline.tasks import background_tasks, gather

_EXIT_S = 0.5
"""How long a worker whose socket is closed has to leave its exit status; then it is killed."""
_IDLE = UsageMeter().statistics()
"""The statistics of an engine that has done nothing yet."""
_QUIET = {"TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
"""Environment variables of every worker, which keep its stderr free of anything but errors."""


class _Link(asyncio.Protocol):
    """The socket to a worker: gives every message to `take`. Sending never waits: what the socket does not take at once is sent later."""

    def __init__(self, take: Callable[[Any], None]) -> None:
        self.closed = asyncio.Event()
        """Set once the worker is gone."""
        self._take, self._unframer = take, Unframer("parent")
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for message in self._unframer.feed(data):
            self._take(message)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()

    def send(self, message: ToWorker) -> None:
        """Send `message`; does nothing if the worker is gone."""
        if not self.closed.is_set():
            self._transport.write(frame(message))

    def close(self) -> None:
        self._transport.abort()


class _Call(NamedTuple):
    """A request that is being computed, and the future of its completion."""

    request_id: str
    answer: asyncio.Future[Completion]


class WorkerEngine:
    """The `Engine` contract over a worker process, which `restart` replaces by another one; open it with `open_workers`."""

    tokenizer: Tokenizer
    max_model_len: int
    vocab_size: int
    facts: dict[str, Fact]

    def __init__(self, setup: Setup, program: Program, load_tokenizer: Callable[[], Tokenizer]) -> None:
        """`load_tokenizer` is called once, in a thread, while the worker loads its model; it raises `GraphError`."""
        self.role = setup.role
        self._setup, self._load_tokenizer = setup, load_tokenizer
        self._program = structs.replace(program, environment=_QUIET | program.environment)
        self._adapters = setup.spec.get("adapters", {})
        self._listener = current_listener()
        self._earlier: list[EngineStatistics] = []
        """What the processes before this one last reported."""
        self._reported = _IDLE
        self._restarts = 0
        self._calls: dict[int, _Call] = {}
        self._numbers = count()
        self._closed = False
        self._exit_reason: str | None = "it is not open"
        """Why there is no process that answers; None while there is one."""
        self._process: WorkerProcess | None = None
        self._tasks: anyio.abc.TaskGroup
        self._link: _Link
        self._loaded: asyncio.Future[Ready | Failed]
        self._ended: asyncio.Event

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        assert self._process is not None, "it is not open"
        return self._process.pid

    async def generate(self, request: Request) -> Completion:
        validate_request(request, self.max_model_len, self.vocab_size, self._adapters)
        self._check_alive()
        number, call = next(self._numbers), _Call(request.request_id, asyncio.get_running_loop().create_future())
        self._calls[number] = call
        self._link.send(Submit(number, structs.replace(request, content=None)))
        try:
            return await call.answer
        finally:
            if self._calls.pop(number, None) is not None:
                self._link.send(Abort(number))

    def statistics(self) -> EngineStatistics:
        if not self._restarts:
            return self._reported
        reported = [*self._earlier, *([] if self._reported is _IDLE else [self._reported])]
        return structs.replace(EngineStatistics.together(reported or [_IDLE]), restarts=self._restarts)

    async def reset_prefix_cache(self) -> None:
        self._check_alive()
        self._link.send(ResetPrefixCache())

    def kill(self, exit_reason: str) -> None:
        self._end_calls(exit_reason)
        if self._process is not None:
            self._process.kill()

    async def restart(self) -> None:
        self.kill("it was restarted")
        await self._ended.wait()
        if self._closed:
            raise EngineDead(self.role, "it was closed")
        if self._reported is not _IDLE:
            self._earlier.append(structs.replace(self._reported, running=0, waiting=0, kv_cache_usage=None))
        self._reported, self._restarts = _IDLE, self._restarts + 1
        try:
            await self._start_process()
        except GraphError as error:
            raise EngineDead(self.role, error.what) from error

    async def aclose(self) -> None:
        self._closed = True
        self._end_calls("it was closed")
        if self._process is not None:
            await anyio.to_thread.run_sync(self._process.end)

    def load_tokenizer(self) -> None:
        """Load the tokenizer, which takes a while; raises `GraphError`."""
        with boundary(GraphError, f"engine {self.role!r}", foreign=GraphError):
            self.tokenizer = self._load_tokenizer()

    async def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the first process, and wait until it has loaded the model; `tasks` watch each process until its end.

        Raises `GraphError` when the model cannot be loaded here, `EngineDead` when the process dies while loading or takes too long.
        """
        self._tasks = tasks
        ready = await self._start_process()
        self.max_model_len, self.vocab_size, self.facts = ready.max_model_len, ready.vocab_size, ready.facts

    async def _start_process(self) -> Ready:
        """Start a process, the first one or the next, and wait until it has loaded the model."""
        loop = asyncio.get_running_loop()
        self._listener.phase(self.role, "starting its process")
        with boundary(EngineDead, self.role, foreign=OSError):
            process = self._process = WorkerProcess(self._program)
        self._exit_reason, self._loaded, self._ended = None, loop.create_future(), asyncio.Event()
        _, self._link = await loop.create_unix_connection(partial(_Link, self._take), sock=process.socket)
        self._tasks.start_soon(self._watch, process, self._link)
        self._link.send(self._setup)
        limit_s = float(self._setup.spec.get("startup_timeout_s", inf))
        with anyio.move_on_after(limit_s) as patience:
            answer = await self._loaded
        if patience.cancelled_caught:
            self.kill(f"it did not start within startup_timeout_s={limit_s:g}; increase it if more is needed")
            self._check_alive()
        if isinstance(answer, Failed):
            if answer.what is None:
                await self._ended.wait()
            what = f"cannot load the model {self._setup.spec.get('model', self._setup.model)!r}: {answer.what or self._exit_reason}"
            raise GraphError(f"engine {self.role!r}", what)
        self._listener.phase(self.role, READY)
        return answer

    async def _watch(self, process: WorkerProcess, link: _Link) -> None:
        """Read what a process prints; when it is gone, find out why, and fail the calls that wait for it."""
        loop, output = asyncio.get_running_loop(), partial(self._listener.output, self.role)

        def read_stderr() -> None:
            if not process.read_stderr(output):
                loop.remove_reader(process.stderr)

        loop.add_reader(process.stderr, read_stderr)
        try:
            await link.closed.wait()
            await anyio.to_thread.run_sync(process.wait, _EXIT_S)
            self._end_calls(process.exit_reason())
            self._ended.set()
        finally:
            loop.remove_reader(process.stderr)
            link.close()
            process.close_files()

    def _take(self, message: Loading | Ready | Failed | Report) -> None:
        if isinstance(message, Loading):
            self._listener.phase(self.role, message.phase)
        elif isinstance(message, Report):
            self._reported = message.statistics
            for number, completion in message.done:
                if (call := self._ended_call(number)) is not None:
                    call.answer.set_result(completion)
            for number, why in message.refused:
                if (call := self._ended_call(number)) is not None:
                    call.answer.set_exception(RequestRefused(f"request {call.request_id!r}: {why}"))
            for number, why in message.again:
                if (call := self._ended_call(number)) is not None:
                    call.answer.set_exception(EngineUnavailable(self.role, f"failed in request {call.request_id!r}: {why}"))
        elif not self._loaded.done():
            self._loaded.set_result(message)

    def _ended_call(self, number: int) -> _Call | None:
        """The call that the worker answers now; None if its caller has given it up."""
        call = self._calls.pop(number, None)
        return None if call is None or call.answer.done() else call

    def _check_alive(self) -> None:
        if self._exit_reason is not None:
            raise EngineDead(self.role, self._exit_reason)

    def _end_calls(self, exit_reason: str) -> None:
        """Raise `EngineDead` in the calls that wait, and in all later ones until a restart. Only the first `exit_reason` counts."""
        if self._exit_reason is not None:
            return
        self._exit_reason = exit_reason
        if self._reported is not _IDLE:
            self._reported = structs.replace(self._reported, running=0, waiting=0, kv_cache_usage=0.0)
        calls, self._calls = self._calls, {}
        waits: list[asyncio.Future[Any]] = [self._loaded, *(call.answer for call in calls.values())]
        for waiting in waits:
            if not waiting.done():
                waiting.set_exception(EngineDead(self.role, exit_reason))


@asynccontextmanager
async def open_workers(queues: Sequence[Sequence[WorkerEngine]]) -> AsyncIterator[Mapping[str, WorkerEngine]]:
    """Open all engines, by role: the queues side by side, the engines of one queue one after the other.

    Raises `GraphError` when a model cannot be loaded here, `EngineDead` when a worker dies while loading.
    """
    engines = {engine.role: engine for queue in queues for engine in queue}

    async def load_tokenizers() -> None:
        for engine in engines.values():  # one after the other: importing transformers is not thread-safe
            await anyio.to_thread.run_sync(engine.load_tokenizer, abandon_on_cancel=True)

    async def start(queue: Sequence[WorkerEngine]) -> None:
        for engine in queue:
            await engine.start(tasks)

    async with background_tasks() as tasks:
        try:
            starts: list[Callable[[], Awaitable[None]]] = [partial(start, queue) for queue in queues]
            await gather([load_tokenizers, *starts])
            yield engines
        finally:
            with anyio.CancelScope(shield=True):
                await gather([engine.aclose for engine in engines.values()])
