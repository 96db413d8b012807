"""Verdicts on answers: a kind, an answer and a reference enter, a `Verdict` leaves, in bounded time, whatever the texts are.

What is decided at once (`grading.answers.quick_verdict`) starts no process. The rest is asked of worker processes, which alone load
math-verify; each starts when it is first needed. A worker that computes for too long, crashes or is killed is replaced, and
its question is answered all the same. A `Grader` blocks, and may be used from several threads at once.
"""

import json
import os
import signal
import time
from collections import OrderedDict
from queue import LifoQueue
from threading import Lock

from msgspec import Struct

from pipeline.grading.answers import Kind, quick_verdict
from pipeline.worker_process import Program, WorkerProcess, describe

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
"""Longer texts, in characters, that `quick_verdict` does not find equal are taken to differ."""
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

    def quick_verdict(self, kind: Kind, answer: str, reference: str) -> Verdict | None:
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
        found = self.quick_verdict(kind, answer, reference)
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
        # A worker reads what models wrote: keys and passwords are kept from it.
        arguments = (str(limit_s), str(MEMORY_BYTES), str(nice))
        self._program = Program(module="pipeline.grading.worker", arguments=arguments, with_secrets=False)
        self._patience_s = patience_s
        self._process: WorkerProcess | None = None
        self._closed = False
        self._starting = Lock()

    @property
    def pid(self) -> int | None:
        """Process id, while there is one."""
        return self._process.pid if self._process else None

    def ask(self, answer: str, reference: str) -> str:
        """What the worker says; raises `TooLong`, `WorkerLost` or `CannotStart`."""
        process = self._process or self._start()
        try:
            process.socket.sendall(json.dumps([answer, reference]).encode() + b"\n")
            return _line(process, self._patience_s)
        except OSError:
            raise self._why_lost(process) from None

    def kill(self) -> None:
        """End the process, and start no other; whoever waits for it finds it gone."""
        with self._starting:
            self._closed = True
        if (process := self._process) is not None:
            process.kill()

    def clear(self) -> None:
        """Free what belongs to the process, once nobody asks."""
        if self._process is not None:
            self._process.end()
            self._process.close_files()
            self._process = None

    def _start(self) -> WorkerProcess:
        with self._starting:
            if self._closed:
                raise CannotStart("was closed")
            try:
                process = WorkerProcess(self._program)
            except OSError as error:
                raise CannotStart(f"cannot start: {error}") from error
            self._process = process
        try:
            _line(process, START_S)
        except OSError:
            process.end()
            said = process.last_error()
            self.clear()
            raise CannotStart(f"cannot start: {said or 'it said nothing'}") from None
        return process

    def _why_lost(self, process: WorkerProcess) -> TooLong | WorkerLost:
        """Clear away a process that gave no answer, and say why it did not."""
        process.wait(0.2)
        status = process.exit_status
        self.clear()
        if status == -signal.SIGPROF:
            return TooLong()
        if status is None:
            return WorkerLost(f"did not answer for {self._patience_s:g} s")
        return WorkerLost(f"was lost ({describe(status)})")


def _line(process: WorkerProcess, wait_s: float) -> str:
    """The next line that the worker says; raises `OSError` if there is none in time."""
    deadline, said = time.monotonic() + wait_s, b""
    while not said.endswith(b"\n"):
        process.socket.settimeout(max(1e-3, deadline - time.monotonic()))
        more = process.socket.recv(64)
        if not more:
            raise OSError("nothing more was said")
        said += more
    return said.decode().strip()
