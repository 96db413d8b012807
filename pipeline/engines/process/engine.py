"""The main process's side of an engine whose model is computed in a worker process.

Requests enter and completions leave; nothing is computed here. The main process shares the cores with the engines, so a call must cost it
little. A backend says by a `Worker` what to start for each role, and opens them all with `open_workers`;
`pipeline.engines.process.worker` is the other side. Lives on asyncio.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from math import inf
from typing import Any, NamedTuple

import anyio
import anyio.abc
from msgspec import structs

from pipeline.engine import Completion, EngineStatistics, Request, Tokenizer
from pipeline.engines.meter import LISTENER, READY, Listener
from pipeline.engines.process import wire
from pipeline.engines.validate import validate_request
from pipeline.errors import EngineDead, EngineUnavailable, GraphError, RequestRefused, boundary
from pipeline.system.worker_process import Program, WorkerProcess
from pipeline.tasks import background_tasks, gather

_QUIET = {"TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
"""Environment variables of every worker, which keep its stderr free of anything but errors."""


class Worker(NamedTuple):
    """What to start for one role."""

    setup: wire.Setup
    program: Program
    load_tokenizer: Callable[[], Tokenizer]
    """Called in a thread, while the worker loads its model; raises `GraphError`."""


class _Running(asyncio.Protocol):
    """One worker process and the calls that wait for it. Sending never waits: what the socket does not take at once is sent later."""

    def __init__(self, worker: Worker, listener: Listener) -> None:
        """Start the process, which `watch` sees to its end; raises `EngineDead` where it cannot be started."""
        self.exit_reason: str | None = None
        """Why it answers no more; None while it may."""
        self.reported = EngineStatistics()
        self.calls: dict[int, asyncio.Future[Completion]] = {}
        self.loaded: asyncio.Future[wire.Ready] = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()
        self.listener, self._setup, self._role = listener, worker.setup, worker.setup.role
        self._hung_up, self._received = asyncio.Event(), bytearray()
        self._transport: Any = None
        with boundary(EngineDead, self._role, foreign=OSError):
            self.process = WorkerProcess(structs.replace(worker.program, environment=_QUIET | worker.program.environment))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._hung_up.set()

    def data_received(self, data: bytes) -> None:
        self._received += data
        for message in wire.cut(self._received, wire.FROM_WORKER):
            self._take(message)

    def send(self, message: wire.ToWorker) -> None:
        """Send `message`; does nothing if the worker is gone."""
        if not self._hung_up.is_set():
            self._transport.write(wire.frame(message))

    async def watch(self) -> None:
        """Read what the process prints until it is gone or closed, or this is cancelled; then end what is left of it and its calls."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self.process.stderr, self._read_stderr)
        try:
            await self._hung_up.wait()
        except asyncio.CancelledError:
            self.end_calls("it was closed")
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self.process.end)
            loop.remove_reader(self.process.stderr)
            self.end_calls(self.process.exit_reason())
            self._transport.abort()
            self.process.close_files()
            self.gone.set()

    async def close(self, exit_reason: str) -> None:
        """End it in order, and wait until it is gone."""
        self.end_calls(exit_reason)
        self._hung_up.set()
        await self.gone.wait()

    def end_calls(self, exit_reason: str) -> None:
        """Raise `EngineDead` in the calls that wait, and in all later ones. Only the first `exit_reason` counts."""
        if self.exit_reason is None:
            self.exit_reason = exit_reason
            for number in [*self.calls]:
                self._fail(number, EngineDead(self._role, exit_reason))
            if not self.loaded.done():
                self.loaded.set_exception(EngineDead(self._role, exit_reason))

    def _read_stderr(self) -> None:
        if not self.process.read_stderr(partial(self.listener.output, self._role)):
            asyncio.get_running_loop().remove_reader(self.process.stderr)

    def _take(self, message: wire.Loading | wire.Ready | wire.Failed | wire.Report) -> None:
        if isinstance(message, wire.Report):
            self.reported = message.statistics
            for number, completion in message.done:
                if (answer := self.calls.pop(number, None)) and not answer.done():
                    answer.set_result(completion)
            for number, why, again in message.failed:
                self._fail(number, EngineUnavailable(self._role, why) if again else RequestRefused(why))
        elif isinstance(message, wire.Loading):
            self.listener.phase(self._role, message.phase)
        elif not self.loaded.done():
            if isinstance(message, wire.Ready):
                self.loaded.set_result(message)
            else:
                what = f"cannot load the model {self._setup.spec.get('model', self._setup.model)!r}: {message.what}"
                self.loaded.set_exception(GraphError(f"engine {self._role!r}", what))

    def _fail(self, number: int, error: Exception) -> None:
        """Raise `error` in the call of that number, unless its caller has given it up."""
        if (answer := self.calls.pop(number, None)) and not answer.done():
            answer.set_exception(error)


async def _started(worker: Worker, listener: Listener, tasks: anyio.abc.TaskGroup) -> tuple[_Running, wire.Ready, Tokenizer]:
    """Start a worker, which `tasks` watch, and wait until it has loaded its model; meanwhile its tokenizer is loaded here.

    Raises `GraphError` when one of them cannot be loaded, `EngineDead` when the process dies while loading or takes too long.
    """
    setup = worker.setup
    limit_s = float(setup.spec.get("startup_timeout_s", inf))
    listener.phase(setup.role, "starting its process")
    running = _Running(worker, listener)
    await asyncio.get_running_loop().create_unix_connection(lambda: running, sock=running.process.socket)
    tasks.start_soon(running.watch)
    running.send(setup)
    try:
        with anyio.move_on_after(limit_s):
            with boundary(GraphError, f"engine {setup.role!r}", foreign=GraphError):
                tokenizer = await anyio.to_thread.run_sync(worker.load_tokenizer, abandon_on_cancel=True)
            ready = await running.loaded
            listener.phase(setup.role, READY)
            return running, ready, tokenizer
        raise EngineDead(setup.role, f"it did not start within startup_timeout_s={limit_s:g}; increase it if more is needed")
    except BaseException:
        running.process.kill()
        with anyio.CancelScope(shield=True):
            await running.gone.wait()
        raise


class WorkerEngine:
    """The `Engine` contract over a worker process, which `restart` replaces by another one; `open_workers` makes it."""

    def __init__(self, worker: Worker, tasks: anyio.abc.TaskGroup, running: _Running, ready: wire.Ready, tokenizer: Tokenizer) -> None:
        """`running` has said that it is `ready`; `tasks` watch the processes that follow."""
        self.role, self.tokenizer = worker.setup.role, tokenizer
        self.max_model_len, self.vocab_size, self.facts = ready.max_model_len, ready.vocab_size, ready.facts
        self._worker, self._running, self._tasks = worker, running, tasks
        self._adapters = worker.setup.spec.get("adapters", {})
        self._earlier = EngineStatistics()
        """The totals of the processes before this one."""
        self._numbers = count()
        self._closed = False

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._running.process.pid

    async def generate(self, request: Request) -> Completion:
        validate_request(request, self.max_model_len, self.vocab_size, self._adapters)
        self._check_alive()
        running, number = self._running, next(self._numbers)
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        running.calls[number] = answer
        running.send(wire.Submit(number, structs.replace(request, content=None)))
        try:
            return await answer
        finally:
            if running.calls.pop(number, None) is not None:
                running.send(wire.Abort(number))

    def statistics(self) -> EngineStatistics:
        return self._running.reported.plus(self._earlier)

    async def reset_prefix_cache(self) -> None:
        self._check_alive()
        self._running.send(wire.ResetPrefixCache())

    def kill(self, exit_reason: str) -> None:
        self._running.end_calls(exit_reason)
        self._running.process.kill()

    async def restart(self) -> None:
        self.kill("it was restarted")
        await self._running.gone.wait()
        if self._closed:
            raise EngineDead(self.role, "it was closed")
        self._earlier, self._running.reported = self.statistics().plus(EngineStatistics(restarts=1)), EngineStatistics()
        try:
            self._running, *_ = await _started(self._worker, self._running.listener, self._tasks)
        except GraphError as error:
            raise EngineDead(self.role, error.what) from error

    async def aclose(self) -> None:
        self._closed = True
        await self._running.close("it was closed")

    def _check_alive(self) -> None:
        if self._running.exit_reason is not None:
            raise EngineDead(self.role, self._running.exit_reason)


def share_cores(specs: Mapping[str, Any], cores: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The cores of each role that computes on the CPU, out of `cores`: the `threads` of its spec from its `core` on, counted from 0, else
    some that no other role has; empty, which means any core, where there are not enough.

    Raises `GraphError` for a core that is not here.
    """
    shares: dict[str, tuple[int, ...]] = {}
    for role, spec in specs.items():
        if spec.core is not None:
            shares[role] = tuple(cores[spec.core : spec.core + spec.threads])
            if len(shares[role]) < spec.threads:
                what = f"core {spec.core} with {spec.threads} threads: this process has {len(cores)} CPU cores, counted from 0"
                raise GraphError(f"engine {role!r}", f"{what}; name others, or leave out `core`")
    free = [core for core in cores if not any(core in share for share in shares.values())]
    others = {role: spec.threads for role, spec in specs.items() if role not in shares}
    enough = sum(others.values()) <= len(free)
    for role, threads in others.items():
        shares[role] = tuple(free[:threads]) if enough else ()
        free = free[threads:]
    return shares


@asynccontextmanager
async def open_workers(queues: Sequence[Sequence[Worker]]) -> AsyncIterator[Mapping[str, WorkerEngine]]:
    """Open an engine for each worker, by role, as they are ready: the queues side by side, the workers of one queue one after the other.

    Raises `GraphError` when a model cannot be loaded here, `EngineDead` when a worker dies while loading.
    """
    engines: dict[str, WorkerEngine] = {}

    async def start(queue: Sequence[Worker]) -> None:
        for worker in queue:
            engines[worker.setup.role] = WorkerEngine(worker, tasks, *await _started(worker, LISTENER.get(), tasks))

    async with background_tasks() as tasks:
        await gather([partial(start, queue) for queue in queues])
        yield engines
