"""A run whose problems are requests: options and bounds enter, chains are solved as clients ask for them, and the run leaves as any other.

The server is a task in the event loop of the run. Simulated engines take the time that they simulate: a clock that jumps when nothing is
left to do would jump over what is still on its way to the server.
"""

import resource
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import anyio
import uvicorn
from msgspec import structs

from pipeline.graph.plan import Plan
from pipeline.local_web import listening
from pipeline.options import RunOptions
from pipeline.run.loop import Attend, Stop, attended, in_loop
from pipeline.run.prepare import Prepared, load_plan, prepare
from pipeline.run.run import Observer, SessionResult, solve
from pipeline.runtime.admission.feed import Arrivals
from pipeline.runtime.executor import Executor
from pipeline.runtime.rows import Tee
from pipeline.serve.app import Address, Phase, new_app
from pipeline.serve.completions import ChatEndpoint
from pipeline.serve.desk import Desk, ServeLimits
from pipeline.store.kept_problems import Problems
from pipeline.tasks import unwrapped

MOST_FILES = 65_536
"""Connections and other files that may be open, as far as the system allows."""
IDLE_S = 10
"""Most seconds between two requests of a connection."""
LEAVE_S = 5
"""Most seconds in which connections end when the server does."""
STOPPING = "the server is being stopped"
Metrics = Callable[[Plan, Executor | None, Desk], tuple[bytes, str]]
"""What Prometheus reads of a run and its requests, and its media type; there is no work while the engines start."""


class GraphServer:
    """One server over one run, from its start to its end."""

    def __init__(self, run: Prepared, limits: ServeLimits, address: Address, listener: socket.socket, metrics: Metrics) -> None:
        self._arrivals, self._listener, self._run = Arrivals(), listener, run
        self._work: Executor | None = None
        self.desk = Desk(self._arrivals, limits, run.plan.prompts.thought.close)
        chat = ChatEndpoint(self.desk, run.plan.name)
        app = new_app(chat, address, lambda: self.phase, lambda: metrics(run.plan, self._work, self.desk))
        quiet: dict[str, Any] = {"lifespan": "off", "log_config": None, "access_log": False, "ws": "none", "server_header": False}
        config = uvicorn.Config(app, timeout_keep_alive=IDLE_S, timeout_graceful_shutdown=LEAVE_S, **quiet)
        self._uvicorn = _QuietServer(config)

    @property
    def phase(self) -> Phase:
        """Whether requests are taken, or why not."""
        if self.desk.closed is not None:
            return "stopping"
        return "starting" if self._work is None else "serving"

    async def solve(self, observer: Observer, attend: Attend) -> SessionResult:
        """Answer clients until the run is stopped; raises what keeps its engines from opening."""
        sink = self.desk if observer.sink is None else Tee(observer.sink, self.desk)
        watched = structs.replace(observer, sink=sink, watch=partial(self._watching, observer))
        result: SessionResult | None = None
        with unwrapped():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._answer)
                try:
                    result = await attended(partial(solve, self._run, watched, feed=self._arrivals), attend, _ServerStop(self))
                finally:
                    self.desk.close(STOPPING)
                    self._uvicorn.should_exit = True
        assert result is not None, "nothing here cancels the run"
        return result

    def drain(self) -> bool:
        """Take no more requests, and let the run end with the chains that are live; False where none could begin."""
        if self._work is None:
            return False
        self.desk.close(STOPPING)
        self._arrivals.close()
        return True

    async def _answer(self) -> None:
        """Answer clients, until a moment after the run has ended, however that was."""
        with anyio.CancelScope(shield=True):
            await self._uvicorn.serve(sockets=[self._listener])

    @contextmanager
    def _watching(self, observer: Observer, run: Prepared, work: Executor) -> Iterator[None]:
        """Take requests while the body runs, which `observer` watches."""
        self._work = work
        host, port = self._listener.getsockname()[:2]
        observer.tell(f"serving {run.plan.name} at http://{f'[{host}]' if ':' in host else host}:{port}/v1")
        with observer.watch(run, work):
            yield


class _ServerStop(Stop):
    """Stops the run of a server: its clients first."""

    def __init__(self, server: GraphServer) -> None:
        super().__init__()
        self._server = server

    def drain(self) -> bool:
        return self._server.drain()

    def abort(self) -> None:
        self._server.desk.close(STOPPING)
        super().abort()


class _QuietServer(uvicorn.Server):
    """A server that leaves signals to the run."""

    def capture_signals(self) -> Any:
        return nullcontext()


def serve(
    options: RunOptions,
    limits: ServeLimits,
    address: Address,
    observer: Observer,
    *,
    attend: Attend,
    metrics: Metrics,
    command: Sequence[str] = (),
) -> SessionResult:
    """Serve the graph of `options` at `address` until `attend` stops it, or an engine is lost. Raises `UsageError` before an engine starts.

    Not for use in a running event loop.
    """
    plan = load_plan(options.graph, options.bound_engines, options.settings)
    allow_files()
    with (
        listening(address.host, address.port) as listener,
        prepare(options, plan, Problems(None, "requests", ""), virtual=False, command=command) as run,
    ):
        observer.ready(run)
        for sentence in run.told:
            observer.tell(sentence)
        server = GraphServer(run, limits, address, listener, metrics)
        return in_loop(partial(server.solve, observer, attend), virtual=False)


def allow_files() -> None:
    """Let as many connections and other files be open as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
