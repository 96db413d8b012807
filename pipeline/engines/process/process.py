"""A worker process and the socket to it: frames go out, messages come in, and what it said before it died is kept.

Works on asyncio and trio alike. Sending never waits: what the socket does not take at once is kept and sent later.
"""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio
from msgspec import Struct

import pipeline
from pipeline.engines.process.wire import FromWorker, ToWorker, Unframer, frame

_RECEIVE_BYTES = 1 << 18
_SPOKEN_BYTES = 1 << 16
_LAST_WORDS_CHARACTERS = 300
_EXIT_S = 0.5
"""A worker whose socket is closed has this long to leave its exit status; then it is killed."""
_ERROR = re.compile(r"(?:^|[\]\s])((?:\w+\.)*\w*(?:Error|Exception)): (.*\S)")
_POINTERS = ("root cause", "initialization failed", "failed to start")
"""An error that says one of these only points at another one."""


class Program(Struct, frozen=True, kw_only=True):
    """What a worker runs."""

    module: str
    """Its main module; the socket's file descriptor is the argument."""
    environment: dict[str, str] = {}
    """Variables it needs so."""
    defaults: dict[str, str] = {}
    """Variables that the user's own replace."""
    shutdown_s: float
    """Once its socket is closed it has this long to end by itself; then it is killed, with all processes it started."""


class WorkerProcess:
    """One worker, started at once; `listen` must run while it is used."""

    def __init__(self, program: Program) -> None:
        self._farewell_s = program.shutdown_s
        self._socket, theirs = socket.socketpair()
        stderr, their_stderr = os.pipe()
        try:
            # A process group of its own: an interrupt at the terminal reaches only the main process.
            self._process = subprocess.Popen(
                [sys.executable, "-m", program.module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=their_stderr,
                stderr=their_stderr,
                env=_environment(program),
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        finally:
            theirs.close()
            os.close(their_stderr)
        self._stderr = open(stderr, "rb", buffering=0)  # noqa: SIM115 - closed with the socket
        os.set_blocking(stderr, False)
        self._socket.setblocking(False)
        self._unframer = Unframer("parent")
        self._unsent = bytearray()
        self._must_send = anyio.Event()
        self._spoken = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: ToWorker) -> None:
        """Send now, or as soon as the worker takes it; nothing happens if it is gone."""
        data = frame(message)
        if not self._unsent:
            data = data[self._offer(data) :]
        if data:
            self._unsent += data
            self._must_send.set()

    async def listen(self, hear: Callable[[FromWorker], None]) -> None:
        """Pass on every message until the worker is gone."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_rest)
            tasks.start_soon(self._listen_to_stderr)
            while True:
                await anyio.wait_readable(self._socket)
                received = self._receive()
                if received is None:
                    continue
                if not received:
                    break
                for message in self._unframer.feed(received):
                    hear(message)
            tasks.cancel_scope.cancel()

    async def exit_reason(self) -> str:
        """Why the worker is gone: the error it died of, or the last line of its stderr, and how it ended."""
        await self._wait(_EXIT_S)
        self._finish()
        self._hear_stderr()
        said = cause(self._spoken.decode(errors="replace"))
        status = self._process.returncode
        end = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        return f"{said} ({end})" if said else end

    def close_files(self) -> None:
        """Free socket and pipe, once nobody listens. A second call does nothing."""
        self._socket.close()
        self._stderr.close()

    async def end(self) -> None:
        """Let the process end, or end it: it has nothing to save. A second call does nothing."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        if self._farewell_s:
            await self._wait(self._farewell_s)
        self._finish()

    def kill(self) -> None:
        """Send the signal that ends it and what it started; its process group outlives it as long as one of them lives."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _wait(self, seconds: float) -> None:
        if self._process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                await anyio.to_thread.run_sync(self._process.wait, seconds)

    def _finish(self) -> None:
        self.kill()
        self._process.wait()

    def _offer(self, data: bytes | bytearray) -> int:
        """How many bytes the socket took."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # it is gone, which `listen` finds out

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

    async def _listen_to_stderr(self) -> None:
        while True:
            await anyio.wait_readable(self._stderr)
            if not self._hear_stderr():
                return

    def _hear_stderr(self) -> bool:
        """Keep the end of what was said; False when nothing more will come."""
        while True:
            said = self._stderr.read(_SPOKEN_BYTES)
            if not said:
                return said is None
            self._spoken = (self._spoken + said)[-_SPOKEN_BYTES:]


def cause(spoken: str) -> str:
    """The error that a process died of, out of what it said: the last one that does not only point at another."""
    lines = spoken.strip().splitlines()
    errors = [f"{found[1]}: {found[2]}" for line in lines if (found := _ERROR.search(line))]
    causes = [error for error in errors if not any(pointer in error for pointer in _POINTERS)]
    return (causes or errors or [line.strip() for line in lines[-1:]] or [""])[-1][:_LAST_WORDS_CHARACTERS]


def _environment(program: Program) -> dict[str, str]:
    home = str(Path(pipeline.__file__).parent.parent)
    path = os.environ.get("PYTHONPATH")
    ours = {
        "PYTHONPATH": f"{home}{os.pathsep}{path}" if path else home,
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    return program.defaults | dict(os.environ) | ours | program.environment
