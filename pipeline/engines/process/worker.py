"""The worker's side of an engine in a separate process.

As a program, `python -m pipeline.engines.process.worker FD MODULE:FUNCTION`, this computes the requests of a `BatchedModel`, which the
function makes of a `Setup`. A coroutine function gets the `ParentConnection` and the `Setup`, and answers until the socket closes. Neither
anyio nor anything that takes long to import is loaded before the connection is there.
"""

import asyncio
import gc
import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any, Protocol

from pipeline.engine import Completion, EngineStatistics, Fact, Request
from pipeline.engines.process import wire
from pipeline.errors import PipelineError, RequestRefused
from pipeline.system.worker_process import end_with_parent, leave_signals

REPORT_EVERY_S = 0.25
"""Statistics are sent at least this often, in seconds, while anything is computed: the main process kills a silent worker."""
SHUTDOWN_S = 2.0
"""How long a worker whose main process is gone may take to shut down, in seconds; then it is killed with all that it started."""
_RECEIVE_BYTES = 1 << 20


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

    `closed` is set once the main process has closed its end or is gone; once it is gone this process has `SHUTDOWN_S` to end.
    """

    def __init__(self) -> None:
        leave_signals()
        self.socket = socket.socket(fileno=int(sys.argv[1]))
        end_with_parent(SHUTDOWN_S)  # loading may take minutes, in which nothing reads the socket
        self.closed = False
        self._received = bytearray()

    def setup(self) -> wire.Setup:
        """Wait for the first message; ends this process where the main process is gone before it. No second message comes before an
        answer."""
        while not self.closed:
            for message in self.receive(wait=True):
                assert isinstance(message, wire.Setup)
                return message
        sys.exit()

    def receive(self, *, wait: bool) -> list[wire.ToWorker]:
        """The messages that have arrived; with `wait`, waits until something arrives."""
        if not wait and not select.select([self.socket], [], [], 0)[0]:
            return []
        try:
            received = self.socket.recv(_RECEIVE_BYTES)
        except ConnectionError:
            received = b""
        self.closed = not received
        self._received += received
        return wire.cut(self._received, wire.TO_WORKER)

    def send(self, message: wire.Loading | wire.Ready | wire.Failed | wire.Report) -> None:
        """Send `message` to the main process, waiting until the socket takes it."""
        try:
            self.socket.sendall(wire.frame(message))
        except OSError:
            self.closed = True


def serve(connection: ParentConnection, model: BatchedModel) -> None:
    """Compute requests until the main process closes the socket."""
    reported_s, done, failed = 0.0, list[tuple[int, Completion]](), list[tuple[int, str, bool]]()
    while not connection.closed:
        for message in connection.receive(wait=model.idle):
            if isinstance(message, wire.Submit):
                try:
                    model.add(message.number, message.request)
                except RequestRefused as refusal:
                    failed.append((message.number, f"request {message.request.request_id!r}: {refusal}", False))
            elif isinstance(message, wire.Abort):
                model.abort(message.number)
            elif isinstance(message, wire.ResetPrefixCache):
                model.reset_prefix_cache()
        if not model.idle:
            done += model.step()
        now_s = time.monotonic()
        if done or failed or now_s - reported_s > REPORT_EVERY_S:
            connection.send(wire.Report(model.statistics(), done, failed))
            reported_s, done, failed = now_s, [], []


def main() -> None:
    """Have the function of the second argument load the model, and compute requests until the socket closes."""
    connection = ParentConnection()
    setup = connection.setup()
    module, _, name = sys.argv[2].partition(":")
    gc.disable()  # collections would walk again and again over what stays: a fifth of the time of importing torch and transformers
    try:
        connection.send(wire.Loading("importing"))
        load_model: Callable[..., Any] = getattr(import_module(module), name)
        connection.send(wire.Loading(f"loading {setup.model}"))
        if iscoroutinefunction(load_model):
            asyncio.run(load_model(connection, setup))
            return
        model: BatchedModel = load_model(setup)
    except PipelineError as refusal:
        return connection.send(wire.Failed(str(refusal)))
    gc.collect()
    gc.freeze()
    gc.enable()
    connection.send(wire.Ready(model.max_model_len, model.vocab_size, model.facts))
    serve(connection, model)


if __name__ == "__mp_main__":  # one of the processes that an engine spawns; they load this module first
    end_with_parent()
if __name__ == "__main__":
    try:
        main()
    except Exception:  # the last of what it prints is the engine's `exit_reason`
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
