"""The worker's side of an engine in a separate process: what the worker programs of `WorkerEngine` are made of.

A program that computes its requests iteration by iteration implements a `BatchedModel` and calls `run_worker`; the rest, from the first
message to the end of the process, is done here. One whose engine has its own event loop uses a `ParentConnection` directly. Neither anyio
nor anything that takes long to import is loaded here.
"""

import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Protocol

from pipeline.engine import Completion, EngineStatistics, Fact, Request
from pipeline.engines.process.wire import (
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
    Unframer,
    frame,
)
from pipeline.engines.startup import Listener, listening
from pipeline.errors import RequestRefused
from pipeline.system.worker_process import leave_signals

REPORT_EVERY_S = 0.25
"""Statistics are sent at least this often, in seconds, while anything is computed: the main process kills a silent worker."""
SHUTDOWN_S = 2.0
"""How long a worker whose main process is gone may take to shut down, in seconds; then it is killed with all that it started."""
_PARENT_S = 0.5
_RECEIVE_BYTES = 1 << 20


class CannotLoad(Exception):
    """The model cannot be served here; the text says why, in one clause."""


class BatchedModel(Protocol):
    """A loaded model, and the requests that it computes. A request is known by its number from `add` until it is finished or aborted."""

    max_model_len: int
    vocab_size: int
    facts: dict[str, Fact]
    """See `Engine.facts`."""

    @property
    def idle(self) -> bool:
        """Whether nothing is left to compute."""

    def add(self, number: int, request: Request) -> None:
        """Queue a validated request; raises `RequestRefused` for one that this model cannot compute."""

    def abort(self, number: int) -> None:
        """Drop a request, waiting or running; does nothing where it is finished."""

    def step(self) -> list[tuple[int, Completion]]:
        """Compute one iteration; returns the requests that it finished. Called only while not `idle`."""

    def reset_prefix_cache(self) -> None:
        """Empty the prefix cache. Called only while `idle`."""

    def statistics(self) -> EngineStatistics:
        """The statistics of the engine, as `Engine.statistics` states them."""


class ParentConnection:
    """The worker's end of the socket to the main process, whose file descriptor is the program's first argument.

    When the main process has closed its own end, or is gone, this process ends at once; with `exit_on_close=False` only
    `closed` is set, for programs that must shut something down, and they have `SHUTDOWN_S` for it once the main process is gone.
    """

    def __init__(self, *, exit_on_close: bool = True) -> None:
        leave_signals()
        self.socket = socket.socket(fileno=int(sys.argv[1]))
        # Whatever this process is at then, loading for minutes or waiting for one of its own: the socket is read in between alone.
        end_with_main_process(self.socket.fileno(), 0.0 if exit_on_close else SHUTDOWN_S)
        self.closed = False
        self._unframer, self._exit_on_close = Unframer("worker"), exit_on_close

    def setup(self) -> Setup | None:
        """Wait for the first message; None where the main process is gone before it. There is no second one before it is answered."""
        messages: list[object] = []
        while not messages and not self.closed:
            messages += self.receive(wait=True)
        if not messages:
            return None
        assert isinstance(messages[0], Setup)
        return messages[0]

    def receive(self, *, wait: bool) -> Iterator[object]:
        """The messages that have arrived; with `wait`, waits until something arrives."""
        if not wait and not select.select([self.socket], [], [], 0)[0]:
            return iter(())
        try:
            received = self.socket.recv(_RECEIVE_BYTES)
        except ConnectionError:
            received = b""
        if not received:
            self._close()
        return self._unframer.feed(received)

    def send(self, message: FromWorker) -> None:
        """Send `message` to the main process, waiting until the socket takes it."""
        try:
            self.socket.sendall(frame(message))
        except OSError:
            self._close()

    def _close(self) -> None:
        if self._exit_on_close:
            os._exit(0)
        self.closed = True


def end_with_main_process(descriptor: int, shutdown_s: float = 0.0) -> None:
    """Have this process group be killed `shutdown_s` after the main process has its end of the socket `descriptor` no more."""

    def watch() -> None:
        hang_up = select.poll()
        hang_up.register(descriptor, 0)  # no more than POLLHUP, which both directions must be closed for, and errors
        hang_up.poll()
        time.sleep(shutdown_s)
        if os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="main process", daemon=True).start()


def end_with_parent() -> None:
    """Have this process, which a worker started, end within a second of that worker, however that ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


class WorkerServer:
    """Passes the requests of the main process on to a model, and the model's completions back."""

    def __init__(self, connection: ParentConnection, model: BatchedModel) -> None:
        self._connection, self._model = connection, model
        self._done: list[tuple[int, Completion]] = []
        """Requests that are finished and not reported yet."""
        self._refused: list[tuple[int, str]] = []

    def serve(self) -> None:
        """Compute requests until the main process closes the socket, which ends this process; never returns."""
        reported_s = 0.0
        while True:
            aborted = [self._take(message) for message in self._connection.receive(wait=self._model.idle)]
            if not self._model.idle:
                self._done += self._model.step()
            now_s = time.monotonic()
            if self._done or self._refused or any(aborted) or now_s - reported_s > REPORT_EVERY_S:
                reported_s = now_s
                self._connection.send(Report(self._model.statistics(), self._done, self._refused))
                self._done, self._refused = [], []

    def _take(self, message: object) -> bool:
        """Carry out one message; returns whether it was an abort, after which the main process wants new statistics."""
        if isinstance(message, Submit):
            try:
                self._model.add(message.number, message.request)
            except RequestRefused as refusal:
                self._refused.append((message.number, str(refusal)))
        elif isinstance(message, Abort):
            self._model.abort(message.number)
        elif isinstance(message, ResetPrefixCache):
            self._model.reset_prefix_cache()
            self._connection.send(CacheReset())
        return isinstance(message, Abort)


class _ToParent(Listener):
    """Passes the phases of a start on to the main process."""

    def __init__(self, connection: ParentConnection) -> None:
        self._connection = connection

    def phase(self, role: str, phase: str) -> None:
        self._connection.send(Loading(phase))


def run_worker(load: Callable[[Setup], BatchedModel]) -> None:
    """The main function of a worker program: load a model, then compute requests until the main process closes the socket.

    `load` may say by `tell_phase` what it does; it raises `CannotLoad` where the model cannot be served here; any other error of it or of
    the model ends the process, and is the `exit_reason` of its engine. Call this before importing anything that takes long: until then an
    interrupt at the terminal ends the process.
    """
    try:
        connection = ParentConnection()
        setup = connection.setup()
        assert setup is not None
        try:
            with listening(_ToParent(connection)):
                model = load(setup)
        except CannotLoad as refusal:
            connection.send(Failed(str(refusal)))
            return
        connection.send(Ready(model.max_model_len, model.vocab_size, model.facts))
        WorkerServer(connection, model).serve()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
