"""A worker process and the socket to it: frames go out, messages come in, and what it said before it died is kept.

Works on asyncio and trio alike. Sending never waits: what the socket does not take at once is kept and sent later.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio

import pipeline
from pipeline.engines.torch_wire import FromWorker, ToWorker, Unframer, frame

_RECEIVE_BYTES = 1 << 18
_SPOKEN_BYTES = 8192
_LAST_WORDS_CHARACTERS = 300
_EXIT_S = 0.5
"""A worker whose socket is closed has this long to leave its exit status; then it is killed."""


class WorkerProcess:
    """One worker, started at once; `listen` must run while it is used."""

    def __init__(self, threads: int) -> None:
        self._socket, theirs = socket.socketpair()
        stderr, their_stderr = os.pipe()
        try:
            # A process group of its own: an interrupt at the terminal reaches only the main process.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipeline.engines.torch_worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=their_stderr,
                stderr=their_stderr,
                env=_environment(threads),
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

    async def last_words(self) -> str:
        """Why the worker is gone: the last line of its stderr, and how it ended."""
        with suppress(subprocess.TimeoutExpired):
            await anyio.to_thread.run_sync(self._process.wait, _EXIT_S)
        self.end()
        self._hear_stderr()
        lines = self._spoken.decode(errors="replace").strip().splitlines()
        said = lines[-1].strip()[-_LAST_WORDS_CHARACTERS:] if lines else ""
        status = self._process.returncode
        end = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        return f"{said} ({end})" if said else end

    def close_files(self) -> None:
        """Free socket and pipe, once nobody listens. A second call does nothing."""
        self._socket.close()
        self._stderr.close()

    def end(self) -> None:
        """Kill the process: it has nothing to save. A second call does nothing."""
        if self._process.poll() is None:
            self._process.kill()
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


def _environment(threads: int) -> dict[str, str]:
    home = str(Path(pipeline.__file__).parent.parent)
    path = os.environ.get("PYTHONPATH")
    # Memory that one iteration frees is kept for the next, not given back to the system: some percent faster on a CPU.
    keep_memory = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_TOP_PAD_": str(1 << 26)}
    return (
        keep_memory
        | dict(os.environ)
        | {
            "PYTHONPATH": f"{home}{os.pathsep}{path}" if path else home,
            "OMP_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
            "TRANSFORMERS_VERBOSITY": "error",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
    )
