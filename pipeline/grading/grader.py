"""Verdicts on answers: a kind, an answer and a reference enter, a `Verdict` leaves, in bounded time, whatever the texts are.

What a glance decides (`grading.quick_verdict`) starts no process. The rest is asked of worker processes, which alone load
math-verify; each starts when it is first needed. A worker that computes for too long, crashes or is killed is replaced, and
its question is answered all the same. A `Grader` blocks, and may be used from several threads at once.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from queue import LifoQueue
from threading import Lock

from msgspec import Struct

import pipeline
from pipeline.grading.answers import Kind, quick_verdict
from pipeline.redaction import is_secret

LIMIT_S = 5.0
"""Most seconds of computing for one verdict."""
PATIENCE_S = 120.0
"""A worker that has not answered after so long by the clock is taken for dead: on a busy machine it computes slowly."""
START_S = 120.0
"""Longest time for a worker to load, on a machine that is busy with engines."""
MEMORY_BYTES = 4 << 30
"""Most address space of a worker."""
BESIDE_ENGINES = 10
"""How nice workers are to engines on the same cores."""
LONGEST = 2000
"""Longer texts, in characters, that are not equal at a glance are taken to differ."""
CACHED = 4096
"""Verdicts kept: the samples of a problem tend to say the same."""


def default_workers() -> int:
    """A quarter of the cores: the others have engines to serve."""
    return max(1, min(4, (os.cpu_count() or 1) // 4))


class Verdict(Struct, frozen=True):
    """Whether an answer is right."""

    correct: bool | None
    """None where the grader itself failed."""
    why: str | None = None
    """Where the answers were not compared to the end: what was in the way."""


class Grader:
    """Up to `workers` worker processes, so and so `nice`, and a bounded memory of verdicts. Close it, or use it as a context."""

    def __init__(
        self, workers: int = 1, limit_s: float = LIMIT_S, *, nice: int = 0, patience_s: float = PATIENCE_S, cached: int = CACHED
    ) -> None:
        self.limit_s = limit_s
        self.workers = [_Worker(limit_s, max(patience_s, limit_s), nice) for _ in range(workers)]
        # Last in, first out: while one at a time is enough, the others need not start.
        self._free: LifoQueue[_Worker] = LifoQueue()
        for worker in self.workers:
            self._free.put(worker)
        self._most, self._lock = cached, Lock()
        self._verdicts: OrderedDict[tuple[Kind, str, str], Verdict] = OrderedDict()
        self._broken: str | None = None

    def __enter__(self) -> "Grader":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def cached(self) -> int:
        """How many verdicts are remembered now."""
        return len(self._verdicts)

    def glance(self, kind: Kind, answer: str, reference: str) -> Verdict | None:
        """The verdict if it takes no worker, else None. Never waits."""
        quick = quick_verdict(kind, answer, reference)
        if quick is not None:
            return Verdict(quick)
        if max(len(answer), len(reference)) > LONGEST:
            return Verdict(False, f"longer than {LONGEST:,} characters")
        with self._lock:
            known = self._verdicts.get((kind, answer, reference))
            if known is not None:
                self._verdicts.move_to_end((kind, answer, reference))
        return known

    def verdict(self, kind: Kind, answer: str, reference: str) -> Verdict:
        """Whether `answer` is right. Waits for a worker where it takes one; raises nothing."""
        found = self.glance(kind, answer, reference)
        if found is None:
            found = self._ask(answer, reference)
            if found.correct is not None:
                self._remember((kind, answer, reference), found)
        return found

    def close(self) -> None:
        """End the workers; whoever waits for one gets no verdict. A second call does nothing."""
        self._broken = self._broken or "grading was stopped"
        for worker in self.workers:
            worker.kill()
        for worker in [self._free.get() for _ in self.workers]:  # each comes back as soon as nobody asks it any more
            worker.clear()
            self._free.put(worker)

    def _ask(self, answer: str, reference: str) -> Verdict:
        """Ask a worker, and once more if it is lost by no fault of the question."""
        worker = self._free.get()
        lost = None
        try:
            for _ in range(2):
                if self._broken:
                    return Verdict(None, self._broken)
                try:
                    said = worker.ask(answer, reference)
                    return Verdict(said == "true", None if said in ("true", "false") else f"the comparison ended with {said}")
                except TooLong:
                    return Verdict(False, f"not compared within {self.limit_s:g} s of computing")
                except WorkerLost as error:
                    lost = str(error)
            return Verdict(None if self._broken else False, self._broken or f"the grader {lost}")
        except CannotStart as error:
            self._broken = self._broken or f"the grader {error}"
            return Verdict(None, self._broken)
        finally:
            self._free.put(worker)

    def _remember(self, question: tuple[Kind, str, str], verdict: Verdict) -> None:
        with self._lock:
            self._verdicts[question] = verdict
            if len(self._verdicts) > self._most:
                self._verdicts.popitem(last=False)


class TooLong(Exception):
    """A question took more computing than it may."""


class WorkerLost(Exception):
    """A worker is gone or does not answer; how, as a clause."""


class CannotStart(Exception):
    """No worker can be started here; why, as a clause."""


class _Worker:
    """One worker process, started with its first question, and again with the first one after it was lost."""

    def __init__(self, limit_s: float, patience_s: float, nice: int) -> None:
        self._arguments, self._patience_s = (str(limit_s), str(MEMORY_BYTES), str(nice)), patience_s
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._starting = Lock()

    @property
    def pid(self) -> int | None:
        """Process id, while there is one."""
        return self._process.pid if self._process else None

    def ask(self, answer: str, reference: str) -> str:
        """What the worker says; raises `TooLong`, `WorkerLost` or `CannotStart`."""
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps([answer, reference]).encode() + b"\n")
            process.stdin.flush()
            return self._line(process, self._patience_s)
        except OSError:
            raise self._lost(process) from None

    def kill(self) -> None:
        """End the process, and start no other; whoever waits for it finds it gone."""
        with self._starting:
            self._closed = True
        if (process := self._process) is not None:
            process.kill()

    def clear(self) -> None:
        """Free what belongs to the process, once nobody asks."""
        if self._process is not None:
            self._bury(self._process)

    def _start(self) -> subprocess.Popen[bytes]:
        with self._starting:
            if self._closed:
                raise CannotStart("was closed")
            command = [sys.executable, "-m", "pipeline.grading.worker", *self._arguments]
            try:
                # A process group of its own: an interrupt at the terminal reaches only the main process.
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment(), process_group=0
                )
            except OSError as error:
                raise CannotStart(f"cannot start: {error}") from error
            self._process = process
        try:
            self._line(process, START_S)
        except OSError:
            raise CannotStart(f"cannot start: {self._last_words(process)}") from None
        return process

    def _line(self, process: subprocess.Popen[bytes], wait_s: float) -> str:
        """The next line the worker says; raises `OSError` if there is none in time."""
        assert process.stdout is not None
        deadline, said = time.monotonic() + wait_s, b""
        while not said.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(process.stdout.fileno(), 64) if ready else b""
            if not more:
                raise OSError("nothing more was said")
            said += more
        return said.decode().strip()

    def _lost(self, process: subprocess.Popen[bytes]) -> TooLong | WorkerLost:
        """Clear away a process that gave no answer, and say why it did not."""
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
        status = process.poll()
        self._bury(process)
        if status == -signal.SIGPROF:
            return TooLong()
        if status is None:
            return WorkerLost(f"did not answer for {self._patience_s:g} s")
        return WorkerLost(f"was lost ({signal.Signals(-status).name if status < 0 else f'exit status {status}'})")

    def _last_words(self, process: subprocess.Popen[bytes]) -> str:
        process.kill()
        assert process.stderr is not None
        said = process.stderr.read().decode(errors="replace").strip().splitlines()
        self._bury(process)
        return said[-1][:300] if said else "it said nothing"

    def _bury(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._process = None


def _environment() -> dict[str, str]:
    home = str(Path(pipeline.__file__).parent.parent)
    path = os.environ.get("PYTHONPATH")
    own = {name: value for name, value in os.environ.items() if not is_secret(name)}  # a worker reads what models wrote
    return own | {"PYTHONPATH": f"{home}{os.pathsep}{path}" if path else home}
