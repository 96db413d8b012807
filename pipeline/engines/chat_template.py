"""Chat templates rendered in a worker process with limits: messages enter, the prompt as text leaves.

A template is a program that comes with a model; it may compute for ever or fill the memory. One worker renders for all models of
this process; it starts when it is first needed, and again after a template went beyond its limits.
"""

import atexit
import json
import signal
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from pipeline.errors import GraphError
from pipeline.worker_process import Program, WorkerProcess

LIMIT_S = 2.0
"""Most seconds of computing for one prompt; templates take less than a millisecond."""
MEMORY_BYTES = 1 << 29
"""Most address space of the worker, which needs a tenth of it."""
MOST_CHARACTERS = 1 << 22
"""Longest prompt that is taken from a template, in characters."""
_RECEIVE_BYTES = 1 << 16


class ChatTemplate:
    """The chat template of one model."""

    def __init__(self, model: str, source: str, variables: Mapping[str, Any]) -> None:
        """`source` is the template in Jinja; `variables` are what it may use in addition to the messages, such as `bos_token`."""
        self._model, self._source, self._variables = model, source, dict(variables)

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """The prompt of `messages`, ending where the assistant starts to write. Raises `GraphError` where the template fails, or takes
        more time or memory than it may."""
        try:
            text, flaw = _RENDERER.ask([self._source, list(messages), self._variables])
        except _Lost as error:
            text, flaw = None, str(error)
        if text is None:
            raise GraphError(f"{self._model}: its chat template fails", " ".join((flaw or "it says nothing").split()))
        return text


class _Lost(Exception):
    """The worker gave no answer; the text is a clause that says why."""


class _Renderer:
    """The worker process that renders, for one thread at a time."""

    def __init__(self) -> None:
        arguments = (str(LIMIT_S), str(MEMORY_BYTES), str(MOST_CHARACTERS))
        self._program = Program(module="pipeline.engines.template_worker", arguments=arguments, with_secrets=False)
        self._process: WorkerProcess | None = None
        self._lock = Lock()

    def ask(self, question: list[object]) -> tuple[str | None, str | None]:
        """The text that is rendered, or what is wrong with the template. Raises `_Lost`."""
        with self._lock:
            try:
                if self._process is None:
                    self._process = WorkerProcess(self._program)
                self._process.socket.sendall(json.dumps(question).encode() + b"\n")
                text, flaw = json.loads(_line(self._process))
            except OSError as error:
                raise _Lost(self._why_lost(error)) from None
        return text, flaw

    def end(self) -> None:
        """End the worker, in the middle of an answer too; the next question starts another one."""
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            if self._process is not None:
                self._process.end()
                self._process.close_files()
                self._process = None

    def _why_lost(self, error: OSError) -> str:
        process, self._process = self._process, None
        if process is None:
            return f"its worker cannot start: {error}"
        process.wait(1.0)
        status = process.exit_status
        process.end()
        said = process.last_error()
        process.close_files()
        if status == -signal.SIGPROF:
            return f"it runs for more than {LIMIT_S:g} s"
        return f"its worker was lost ({said or process.ending()})"


def _line(process: WorkerProcess) -> bytes:
    """The next line that the worker says; raises `OSError` if it ends before."""
    said = bytearray()
    while not said.endswith(b"\n"):
        more = process.socket.recv(_RECEIVE_BYTES)
        if not more:
            raise OSError("nothing more was said")
        said += more
    return bytes(said)


_RENDERER = _Renderer()
atexit.register(_RENDERER.end)


def end_rendering() -> None:
    """End the worker, once no template is to be rendered for a while. A thread that waits for it gets an error."""
    _RENDERER.end()
