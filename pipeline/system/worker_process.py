"""A worker: a Python program in a process of its own, the socket to it, and why it ended.

Engines, the grader and replicas compute in workers. They are started here, ended together with all processes that they started, and asked
what they died of. Nothing here reads from the socket or writes to it. Every method blocks, and only `wait` and `end` for longer than a
moment. A worker's own program begins with `leave_signals`.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

LEFT_TO_MAIN = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a terminal, a batch system or a service manager sends to all processes of a job to let it end in order."""
_STDERR_BYTES = 1 << 16
"""Bytes kept of the end of a worker's stderr."""
_REASON_CHARACTERS = 300
_ERROR = re.compile(r"(?:^|[\]\s])((?:\w+\.)*\w*(?:Error|Exception)): (.*\S)")
_POINTERS = ("root cause", "initialization failed", "failed to start")
"""An error that says one of these only points at another one."""


class Program(Struct, frozen=True, kw_only=True):
    """The program of a worker: a module, its arguments and its environment variables."""

    module: str
    """Its main module, as `python -m` takes it; the first argument is the file descriptor of its end of the socket."""
    arguments: tuple[str, ...] = ()
    """Arguments after the file descriptor."""
    environment: dict[str, str] = {}
    """Variables with these values, whatever the user has set."""
    shutdown_s: float = 0.0
    """How long it may take to end once its socket is closed; then it is killed, with all processes it started."""


class WorkerProcess:
    """One worker, started at once; raises `OSError` where it cannot be. The worker is to end when its socket is closed."""

    def __init__(self, program: Program) -> None:
        self._shutdown_s, self._said, self._line = program.shutdown_s, b"", b""
        self.socket, theirs = socket.socketpair()
        """The main process's end of the socket; it blocks unless `setblocking(False)` is called on it."""
        stderr, their_stderr = os.pipe()
        os.set_blocking(stderr, False)
        self.stderr = open(stderr, "rb", buffering=0)  # noqa: SIM115 - closed with the socket
        """The worker's stdout and stderr; call `read_stderr` whenever this is readable, or a full pipe stops the worker."""
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", program.module, str(theirs.fileno()), *program.arguments],
                stdin=subprocess.DEVNULL,
                stdout=their_stderr,
                stderr=their_stderr,
                env=_environment(program),
                pass_fds=[theirs.fileno()],
                process_group=0,  # an interrupt at the terminal reaches only the main process
            )
        except OSError:
            self.close_files()
            raise
        finally:
            theirs.close()
            os.close(their_stderr)

    @property
    def pid(self) -> int:
        """Process id, and the id of the process group of all that it starts."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs, negative the number of the signal that killed it."""
        return self._process.poll()

    def read_stderr(self, output: Callable[[str], object] = lambda line: None) -> bool:
        """Read what the worker has written by now and keep the end of it; False when nothing more will come. `output` gets every line."""
        while True:
            said = self.stderr.read(_STDERR_BYTES)
            if not said:
                return said is None
            self._said = (self._said + said)[-_STDERR_BYTES:]
            *lines, self._line = (self._line + said).split(b"\n")
            self._line = self._line[-_STDERR_BYTES:]
            for line in lines:
                output(line.decode(errors="replace").rsplit("\r", 1)[-1])

    def wait(self, seconds: float) -> None:
        """Wait until it has ended, not longer than `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def kill(self) -> None:
        """Send the signal that ends it and what it started; its process group outlives it as long as one of them lives."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Close the socket to it, give it the time that its program may take, then kill what is left. A second call does nothing."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
        if self._shutdown_s:
            self.wait(self._shutdown_s)
        self.kill()
        self._process.wait()

    def ending(self) -> str:
        """How it ended, for the user: `killed by SIGKILL`, `exit status 1`."""
        status = self._process.poll()
        if status is None:
            return "it still runs"
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"

    def last_error(self) -> str:
        """The error that the worker died of: the last one in its stderr that does not only point at another; else the last line."""
        self.read_stderr()
        lines = self._said.decode(errors="replace").strip().splitlines()
        errors = [f"{found[1]}: {found[2]}" for line in lines if (found := _ERROR.search(line))]
        causes = [error for error in errors if not any(pointer in error for pointer in _POINTERS)]
        return (causes or errors or [line.strip() for line in lines[-1:]] or [""])[-1][:_REASON_CHARACTERS]

    def exit_reason(self) -> str:
        """Why the worker ended: its last error, and its exit status or signal. Kills it and its processes where they still run."""
        self.kill()
        self._process.wait()
        said, ending = self.last_error(), self.ending()
        return f"{said} ({ending})" if said else ending

    def close_files(self) -> None:
        """Close the socket and the pipe, once nothing reads from them. A second call does nothing."""
        self.socket.close()
        self.stderr.close()


def leave_signals() -> None:
    """Ignore what asks a run to stop: the main process decides when a worker ends."""
    for number in LEFT_TO_MAIN:
        signal.signal(number, signal.SIG_IGN)


def end_with_parent(shutdown_s: float = 0.0) -> None:
    """Have this process, with its process group if it leads one, end within a second and `shutdown_s` of its parent, however that ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        time.sleep(shutdown_s)
        if os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _environment(program: Program) -> dict[str, str]:
    """This process's variables, those of `program`, and this package on `PYTHONPATH`.

    `PYTHONSAFEPATH`, like `-P`, keeps modules of the working folder out of all Python programs that the worker starts.
    """
    path = filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1", **program.environment}
