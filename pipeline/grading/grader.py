"""Grading of answers: a kind, an answer and a reference enter, a `Grade` leaves, in bounded time, whatever the texts are.

What is decided at once (`grading.answers.ruling`) starts no process. The rest is asked of worker processes, which alone load
math-verify; each starts when it is first needed. A worker that computes for too long, crashes or is killed is replaced, and
its question is answered all the same. A `Grader` blocks, and may be used from several threads at once.
"""

import json
import signal
import time
from collections import OrderedDict
from collections.abc import Mapping
from queue import LifoQueue
from threading import Lock
from typing import Any

import msgspec
from msgspec import Struct

from pipeline.errors import with_place
from pipeline.grading.answers import BROKEN, Kind, Ruling, ruling, taken
from pipeline.graph.plugins import GRADER_KINDS, Same, registered_grader, takes_problem
from pipeline.system.machine import core_count
from pipeline.system.worker_process import Program, WorkerProcess
from pipeline.text import storable

LIMIT_S = 5.0
"""Most seconds of computing for one grade."""
PATIENCE_S = 120.0
"""Seconds by the clock after which a worker without an answer is taken for dead; far above `LIMIT_S`, because a busy machine is slow."""
START_S = 120.0
"""Most seconds for a worker to start, on a machine that is busy with engines."""
MEMORY_BYTES = 4 << 30
"""Most address space of a worker."""
BESIDE_ENGINES = 10
"""The nice value of workers that share cores with engines."""
LONGEST = 2000
"""Texts of more characters that `ruling` does not find equal are taken to differ."""
CACHED = 4096
"""Most grades kept in memory: the samples of a problem tend to give the same answer."""


def default_workers() -> int:
    """How many workers to use next to engines: a quarter of the cores, at least 1 and at most 4."""
    return max(1, min(4, core_count() // 4))


class Grade(Struct, frozen=True):
    """Whether an answer is right, and why it could not be said if it could not."""

    correct: bool | None
    """None where there was nothing to compare, or the grader itself failed."""
    why: str | None = None
    """What kept the answers from being compared to the end (a time limit, a lost grader); None where nothing did."""
    rule: str | None = None
    """What decided it; None where they were not compared to the end."""


class Grader:
    """Grades answers with up to `workers` worker processes, of the nice value `nice`. Close it, or use it as a context manager."""

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
        self._grades: OrderedDict[tuple[Kind, str, str], Grade] = OrderedDict()
        self._broken: str | None = None

    def __enter__(self) -> "Grader":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def cached(self) -> int:
        """How many grades are remembered now."""
        return len(self._grades)

    def quick_grade(self, kind: Kind, answer: str, reference: str) -> Grade | None:
        """The grade of `answer` if it is known or takes no worker, else None. Never waits."""
        if takes_problem(kind):
            return None
        return self._at_once((kind, taken(kind, answer), taken(kind, reference)))

    def grade(self, kind: Kind, answer: str, reference: str, problem: Mapping[str, Any] | None = None) -> Grade:
        """The grade of `answer` to a `problem`, a row. Waits for a worker where one is needed; raises nothing."""
        if takes_problem(kind) and (same := registered_grader(kind)) is not None:
            if problem is None:
                return Grade(None, f"the grader {kind!r} needs the problem, which only its run has")
            return _called(kind, same, answer, reference, problem)
        question = kind, taken(kind, answer), taken(kind, reference)
        found = self._at_once(question)
        if found is None:
            found = self._ask(*question)
            if found.correct is not None:
                self._remember(question, found)
        return found

    def close(self) -> None:
        """End the workers; a thread that waits for one gets a grade whose `correct` is None. A second call does nothing."""
        self._broken = self._broken or "grading was stopped"
        for worker in self.workers:
            worker.kill()
        for worker in [self._free.get() for _ in self.workers]:  # each is put back by the thread that used it
            worker.clear()
            self._free.put(worker)

    def _at_once(self, question: tuple[Kind, str, str]) -> Grade | None:
        kind, answer, reference = question
        quick = ruling(kind, answer, reference)
        if quick is not None:
            return Grade(quick.correct, rule=quick.rule)
        if kind in GRADER_KINDS and max(len(answer), len(reference)) > LONGEST:
            return Grade(False, f"longer than {LONGEST:,} characters")
        with self._lock:
            known = self._grades.get(question)
            if known is not None:
                self._grades.move_to_end(question)
        return known

    def _ask(self, kind: Kind, answer: str, reference: str) -> Grade:
        """Ask a function of this process, or a worker; that once more, of a new process, if it was lost for another reason than the time
        limit."""
        if (same := registered_grader(kind)) is not None:
            return _called(kind, same, answer, reference)
        worker = self._free.get()
        lost = None
        try:
            for _ in range(2):
                if self._broken:
                    return Grade(None, self._broken)
                try:
                    said = worker.ask(kind, answer, reference)
                    if said.startswith(BROKEN):
                        return Grade(None, f"the grader {kind!r} cannot be loaded: {said.removeprefix(BROKEN)}")
                    if not said.startswith("{"):
                        return Grade(False, f"the comparison ended with {said}")
                    found = msgspec.json.decode(said, type=Ruling)
                    return Grade(found.correct, rule=found.rule)
                except TooLong:
                    return Grade(False, f"not compared within {self.limit_s:g} s of CPU time")
                except WorkerLost as error:
                    lost = str(error)
            return Grade(None if self._broken else False, self._broken or f"the grader {lost}")
        except CannotStart as error:
            self._broken = self._broken or f"the grader {error}"
            return Grade(None, self._broken)
        finally:
            self._free.put(worker)

    def _remember(self, question: tuple[Kind, str, str], grade: Grade) -> None:
        with self._lock:
            self._grades[question] = grade
            if len(self._grades) > self._most:
                self._grades.popitem(last=False)


def _called(name: str, same: Same, answer: str, reference: str, *problem: Mapping[str, Any]) -> Grade:
    """The grade by a function of this process."""
    try:
        return Grade(bool(same(answer, reference, *problem)), rule=f"the grader {name}")
    except Exception as error:
        return Grade(False, storable(f"the grader {name!r} raised {type(error).__name__}: {with_place(error)}"))


class TooLong(Exception):
    """A question took more seconds of computing than the limit."""


class WorkerLost(Exception):
    """A worker process ended or does not answer; the text is a clause that says how."""


class CannotStart(Exception):
    """No worker process can be started; the text is a clause that says why."""


class _Worker:
    """One worker process, started with its first question, and again with the first one after it was lost."""

    def __init__(self, limit_s: float, patience_s: float, nice: int) -> None:
        # A worker parses what models wrote, so it is started without keys and passwords.
        arguments = (str(limit_s), str(MEMORY_BYTES), str(nice))
        self._program = Program(module="pipeline.grading.worker", arguments=arguments)
        self._patience_s = patience_s
        self._process: WorkerProcess | None = None
        self._closed = False
        self._starting = Lock()

    @property
    def pid(self) -> int | None:
        """The process id; None while there is no process."""
        return self._process.pid if self._process else None

    def ask(self, kind: Kind, answer: str, reference: str) -> str:
        """The worker's reply: a ruling as JSON, or the name of an error. Raises `TooLong`, `WorkerLost` or `CannotStart`."""
        process = self._process or self._start()
        try:
            process.socket.sendall(json.dumps([kind, answer, reference]).encode() + b"\n")
            return _line(process, self._patience_s)
        except OSError:
            raise self._why_lost(process) from None

    def kill(self) -> None:
        """End the process and start no other; a thread that waits for its reply gets an error."""
        with self._starting:
            self._closed = True
        if (process := self._process) is not None:
            process.kill()

    def clear(self) -> None:
        """Wait for the end of the process and close its files; to be called while nobody waits for its reply."""
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
        """Close a process that gave no answer; the error that says why it gave none."""
        process.wait(0.2)
        status, ending = process.exit_status, process.ending()
        self.clear()
        if status == -signal.SIGPROF:
            return TooLong()
        if status is None:
            return WorkerLost(f"did not answer for {self._patience_s:g} s")
        return WorkerLost(f"was lost ({ending})")


def _line(process: WorkerProcess, wait_s: float) -> str:
    """The next line that the worker says; raises `OSError` if there is none in time."""
    deadline, said = time.monotonic() + wait_s, b""
    while not said.endswith(b"\n"):
        process.socket.settimeout(max(1e-3, deadline - time.monotonic()))
        more = process.socket.recv(4096)
        if not more:
            raise OSError("nothing more was said")
        said += more
    return said.decode().strip()
