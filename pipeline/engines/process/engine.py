"""The main process's side of an engine whose model is computed in a worker process, with whatever library.

Requests enter and completions leave; nothing is computed here. The main process shares the machine's cores with the
engines, so a call must cost it little. A backend gives each of its roles a `Setup` and a `Program`, makes a `WorkerEngine`
of them and opens all with `open_workers`; the program itself is written with `pipeline.engines.process.worker`. When a worker
has died, `restart` starts another one on the same cores and devices.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial, reduce
from itertools import count

import anyio
import anyio.abc
from msgspec import structs

from pipeline.engine import Completion, EngineStatistics, Fact, Request, Speculation, Tokenizer
from pipeline.engines.process.wire import (
    NO_STATISTICS,
    Abort,
    CacheReset,
    Failed,
    FromWorker,
    Loading,
    Ready,
    Report,
    ResetPrefixCache,
    Setup,
    Submit,
    ToWorker,
    Unframer,
    frame,
)
from pipeline.engines.startup import READY, Listener, current_listener
from pipeline.engines.validate import validate_request
from pipeline.errors import EngineDead, EngineUnavailable, GraphError, RequestRefused, boundary
from pipeline.system.tasks import background_tasks, gather
from pipeline.system.worker_process import Program, WorkerProcess

_RECEIVE_BYTES = 1 << 18
_EXIT_S = 0.5
"""How long a worker whose socket is closed has to leave its exit status; then it is killed."""
ROOM_LOOKS, ROOM_AGAIN_S = 120, 0.5
"""How many times, and how many seconds apart, a restart looks whether the memory of the worker before is free."""
_QUIET = {"TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
"""Environment variables of every engine's worker, which keep its stderr free of anything but errors."""


class Connection:
    """Messages to and from one worker process. Sending never waits: what the socket does not take at once is sent later."""

    def __init__(self, process: WorkerProcess, output: Callable[[str], object]) -> None:
        """`output` gets every line that the worker prints."""
        self._output = output
        self._process, self._socket = process, process.socket
        self._socket.setblocking(False)
        self._unframer = Unframer("parent")
        self._unsent = bytearray()
        self._must_send = anyio.Event()

    def send(self, message: ToWorker) -> None:
        """Send `message` now, or as soon as the socket takes it; does nothing if the worker is gone."""
        data = frame(message)
        if not self._unsent:
            data = data[self._offer(data) :]
        if data:
            self._unsent += data
            self._must_send.set()

    async def listen(self, take: Callable[[FromWorker], None]) -> None:
        """Call `take` with every message until the worker is gone; must run while anything is sent."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_rest)
            tasks.start_soon(self._read_stderr)
            while True:
                await anyio.wait_readable(self._socket)
                received = self._receive()
                if received is None:
                    continue
                if not received:
                    break
                for message in self._unframer.feed(received):
                    take(message)
            tasks.cancel_scope.cancel()

    def _offer(self, data: bytes | bytearray) -> int:
        """Send what the socket takes without waiting; returns how many bytes that was."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # the worker is gone, which `listen` finds out

    def _receive(self) -> bytes | None:
        try:
            return self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except ConnectionError:
            return b""

    async def _send_rest(self) -> None:
        while True:
            await self._must_send.wait()
            self._must_send = anyio.Event()
            while self._unsent:
                await anyio.wait_writable(self._socket)
                del self._unsent[: self._offer(self._unsent)]

    async def _read_stderr(self) -> None:
        while True:
            await anyio.wait_readable(self._process.stderr)
            more = self._process.read_stderr(self._output)
            if not more:
                return


class _Call:
    """One waiting `generate`."""

    __slots__ = ("again", "completion", "refusal", "settled")

    def __init__(self) -> None:
        self.settled = anyio.Event()
        self.completion: Completion | None = None
        self.refusal: str | None = None
        self.again: str | None = None
        """Why it failed, where it may be sent again."""


class Worker:
    """One worker process from its start to its end: the requests that it was given, its answers, and why it ended.

    `run` must run while it is used. It is started once; after its end `WorkerEngine` starts another one.
    """

    def __init__(self, setup: Setup, program: Program, listener: Listener) -> None:
        self.role, self._listener = setup.role, listener
        self.statistics = NO_STATISTICS
        """The statistics that the worker last reported; they include every request whose completion has arrived."""
        self._model_name = setup.spec.get("model", setup.model)
        self._startup_timeout_s = setup.startup_timeout_s
        self._process = WorkerProcess(structs.replace(program, environment=_QUIET | program.environment))
        self._ends_slowly = program.shutdown_s > 0
        self._connection = Connection(self._process, partial(listener.output, setup.role))
        self._connection.send(setup)
        self._answer: Ready | Failed | None = None
        self._answered, self._ended, self._cache_answered = anyio.Event(), anyio.Event(), anyio.Event()
        self._cache_flaw: str | None = None
        self._calls: dict[int, _Call] = {}
        self._numbers = count()
        self._exit_reason: str | None = None

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    async def run(self) -> None:
        """Listen to the worker until it is gone."""
        await self._connection.listen(self._take)
        self._fail_calls(await self._why_it_ended())
        self._ended.set()

    async def ready(self) -> Ready:
        """Wait until the worker has loaded the model.

        Raises `GraphError` when the model cannot be loaded here, `EngineDead` when the worker dies while loading or takes too long.
        """
        with anyio.move_on_after(self._startup_timeout_s) as patience:
            await self._answered.wait()
        if patience.cancelled_caught:
            self.kill(_too_slow("start", self._startup_timeout_s))
        if isinstance(self._answer, Failed):
            why = self._answer.what or await self._why_it_ended()
            raise GraphError(f"engine {self.role!r}", f"cannot load the model {self._model_name!r}: {why}")
        self._check_alive()
        assert self._answer is not None
        return self._answer

    async def generate(self, request: Request) -> Completion:
        """`request` must have been validated."""
        self._check_alive()
        number, call = next(self._numbers), _Call()
        self._calls[number] = call
        self._connection.send(Submit(number, structs.replace(request, content=None)))
        try:
            await call.settled.wait()
        finally:
            if self._calls.pop(number, None) is not None:
                self._connection.send(Abort(number))
        if call.refusal is not None:
            raise RequestRefused(f"request {request.request_id!r}: {call.refusal}")
        if call.again is not None:
            raise EngineUnavailable(self.role, f"failed in request {request.request_id!r}: {call.again}")
        if call.completion is None:
            raise EngineDead(self.role, self._exit_reason or "it was closed")
        return call.completion

    async def reset_prefix_cache(self) -> None:
        self._check_alive()
        self._cache_answered, self._cache_flaw = anyio.Event(), None
        self._connection.send(ResetPrefixCache())
        await self._cache_answered.wait()
        self._check_alive()
        if self._cache_flaw is not None:
            raise EngineUnavailable(self.role, self._cache_flaw)

    def kill(self, exit_reason: str) -> None:
        """End the process, and those that it started, at once; waiting requests raise `EngineDead` with `exit_reason`."""
        self._fail_calls(exit_reason)
        self._process.kill()

    async def end(self) -> None:
        """End the process, after the time that its program allows for a shutdown. A second call does nothing."""
        self._fail_calls("it was closed")
        if self._ends_slowly:
            await anyio.to_thread.run_sync(self._process.end)
        else:
            self._process.end()

    async def ended(self) -> None:
        """Wait until the process has ended and `run` is over; then close its files."""
        await self._ended.wait()
        self._process.close_files()

    def close_files(self) -> None:
        """Close the socket and the pipe, once `run` is over."""
        self._process.close_files()

    def _fail_calls(self, exit_reason: str) -> None:
        """Make every call raise `EngineDead` from now on, the waiting ones first. Only the first `exit_reason` counts."""
        if self._exit_reason is None:
            self._exit_reason = exit_reason
        self._answered.set()
        self._cache_answered.set()
        self.statistics = structs.replace(self.statistics, running=0, waiting=0, kv_cache_usage=0.0)
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.settled.set()

    async def _why_it_ended(self) -> str:
        if self._process.exit_status is None:
            await anyio.to_thread.run_sync(self._process.wait, _EXIT_S)
        return self._process.exit_reason()

    def _take(self, message: FromWorker) -> None:
        if isinstance(message, CacheReset):
            self._cache_flaw = message.flaw
            self._cache_answered.set()
            return
        if isinstance(message, Loading):
            self._listener.phase(self.role, message.phase)
            return
        if not isinstance(message, Report):
            self._answer = message
            self._answered.set()
            return
        self.statistics = message.statistics
        for outcome, answered in (("completion", message.done), ("refusal", message.refused), ("again", message.again)):
            for number, what in answered:
                if (call := self._calls.pop(number, None)) is not None:
                    setattr(call, outcome, what)
                    call.settled.set()

    def _check_alive(self) -> None:
        if self._exit_reason is not None:
            raise EngineDead(self.role, self._exit_reason)


class WorkerEngine:
    """The `Engine` contract over one worker process after another; open it with `open_workers`.

    `load_tokenizer` is called once, in a thread, while the worker loads its model; it raises `GraphError`. `has_room` says, in a thread,
    whether the memory that a worker needs is free: some processes of a dead worker may hold theirs a while longer.
    """

    def __init__(
        self, setup: Setup, program: Program, load_tokenizer: Callable[[], Tokenizer], has_room: Callable[[], bool] = lambda: True
    ) -> None:
        self.role = setup.role
        self.tokenizer: Tokenizer
        self.max_model_len = self.vocab_size = 0
        self.facts: dict[str, Fact] = {}
        self.startup_timeout_s = setup.startup_timeout_s
        self._setup, self._program, self._load_tokenizer, self._has_room = setup, program, load_tokenizer, has_room
        self._listener = current_listener()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._adapters = setup.spec.get("adapters", {})
        self._worker: Worker | None = None
        self._former = NO_STATISTICS
        """The totals of the workers that ended before this one was started."""
        self._closed = False

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._current().pid

    async def generate(self, request: Request) -> Completion:
        validate_request(request, self.max_model_len, self.vocab_size, self._adapters)
        return await self._current().generate(request)

    def statistics(self) -> EngineStatistics:
        return self._former if self._worker is None else totals(self._former, self._worker.statistics)

    async def aclose(self) -> None:
        self._closed = True
        if self._worker is not None:
            await self._worker.end()

    def close_files(self) -> None:
        """Close the worker's socket and pipe, once it has ended."""
        if self._worker is not None:
            self._worker.close_files()

    async def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the first worker, and wait until it has loaded the model; workers are listened to in `tasks`.

        Raises `GraphError` when the model cannot be loaded here, `EngineDead` when the worker dies while loading.
        """
        self._tasks = tasks
        ready = await self._start_worker()
        self.max_model_len, self.vocab_size, self.facts = ready.max_model_len, ready.vocab_size, ready.facts

    def kill(self, exit_reason: str) -> None:
        self._current().kill(exit_reason)

    async def restart(self) -> None:
        former = self._current()
        former.kill("it was restarted")
        await former.ended()
        if self._closed:
            raise EngineDead(self.role, "it was closed")
        self._former = structs.replace(self.statistics(), restarts=self._former.restarts + 1)
        for _ in range(ROOM_LOOKS):  # after the last one the start itself says what is missing
            if await anyio.to_thread.run_sync(self._has_room):
                break
            await anyio.sleep(ROOM_AGAIN_S)
        try:
            await self._start_worker()
        except GraphError as error:
            raise EngineDead(self.role, error.what) from error

    async def reset_prefix_cache(self) -> None:
        await self._current().reset_prefix_cache()

    def load_tokenizer(self) -> None:
        """Load the tokenizer, which takes a while; raises `GraphError`."""
        with boundary(GraphError, f"engine {self.role!r}", foreign=GraphError):
            self.tokenizer = self._load_tokenizer()

    async def _start_worker(self) -> Ready:
        """Start a worker, the first one or the next, and wait until it has loaded the model."""
        assert self._tasks is not None
        self._listener.phase(self.role, "starting its process")
        with boundary(EngineDead, self.role, foreign=OSError):
            self._worker = Worker(self._setup, self._program, self._listener)
        self._tasks.start_soon(self._worker.run)
        ready = await self._worker.ready()
        self._listener.phase(self.role, READY)
        return ready

    def _current(self) -> Worker:
        assert self._worker is not None, "it is not open"
        return self._worker


def totals(former: EngineStatistics, now: EngineStatistics) -> EngineStatistics:
    """The statistics `now` of a worker with the totals of the `former` workers of its engine added."""
    if former is NO_STATISTICS:
        return now
    speculation = [each.speculation for each in (former, now) if each.speculation is not None]
    return structs.replace(
        EngineStatistics.together([former, now]),
        kv_cache_usage=now.kv_cache_usage,
        written_tokens=None if now.written_tokens is None else now.written_tokens + (former.written_tokens or 0),
        speculation=reduce(Speculation.plus, speculation) if speculation else None,
    )


@asynccontextmanager
async def open_workers(queues: Sequence[Sequence[WorkerEngine]]) -> AsyncIterator[Mapping[str, WorkerEngine]]:
    """Open all engines, by role: the queues side by side, the engines of one queue one after the other.

    Raises `GraphError` when a model cannot be loaded here, `EngineDead` when a worker dies while loading.
    """
    engines = {engine.role: engine for queue in queues for engine in queue}
    try:
        async with background_tasks() as tasks:
            try:
                await _all_ready(queues, tasks)
                yield engines
            finally:
                with anyio.CancelScope(shield=True):
                    async with anyio.create_task_group() as closing:
                        for engine in engines.values():
                            closing.start_soon(engine.aclose)
    finally:
        for engine in engines.values():
            engine.close_files()


def _too_slow(what: str, startup_timeout_s: float) -> str:
    return f"it did not {what} within startup_timeout_s={startup_timeout_s:g}; increase it if more is needed"


async def _all_ready(queues: Sequence[Sequence[WorkerEngine]], tasks: anyio.abc.TaskGroup) -> None:
    """Load all tokenizers, one after the other (importing transformers is not thread-safe), while the workers load."""

    async def load_tokenizers() -> None:
        for engine in (engine for queue in queues for engine in queue):
            with anyio.move_on_after(engine.startup_timeout_s) as patience:
                await anyio.to_thread.run_sync(engine.load_tokenizer, abandon_on_cancel=True)
            if patience.cancelled_caught:
                raise EngineDead(engine.role, _too_slow("load its tokenizer", engine.startup_timeout_s))

    async def start_one_by_one(queue: Sequence[WorkerEngine]) -> None:
        for engine in queue:
            await engine.start(tasks)

    starts: list[Callable[[], Awaitable[None]]] = [partial(start_one_by_one, queue) for queue in queues]
    await gather([load_tokenizers, *starts])
