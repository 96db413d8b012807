"""Grading of answers: a kind, an answer and a reference enter, a `Grade` leaves, in bounded time, whatever the texts are.

`answers.compare_texts` decides most grades. The rest goes to worker processes, which alone load math-verify and start on demand. A worker
that computes for too long, crashes or is killed is replaced, and its question is still answered.
A `Grader` blocks, and may be used from several threads at once.
"""

import json
import signal
from contextlib import suppress
from functools import lru_cache
from queue import LifoQueue

import msgspec

from pipeline.errors import with_place
from pipeline.files import storable
from pipeline.grading.answers import Grade, Kind, compare_texts, extract
from pipeline.grading.plugins import Same, graders
from pipeline.system.machine import core_count
from pipeline.system.worker_process import Program, WorkerProcess

LIMIT_S = 5.0
"""Most seconds of computing for one grade."""
PATIENCE_S = 120.0
"""Seconds by the clock after which a worker without an answer is taken for dead; far above `LIMIT_S`, because a busy machine is slow."""
BESIDE_ENGINES = 10
"""The nice value of workers that share cores with engines."""
CACHED = 4096
"""Most grades kept in memory: the samples of a problem tend to give the same answer."""


def default_workers() -> int:
    """How many workers to use next to engines: a quarter of the cores, at least 1 and at most 4."""
    return max(1, min(4, core_count() // 4))


class Grader:
    """Grades answers with up to `workers` worker processes, of the nice value `nice`. Close it, or use it as a context manager."""

    def __init__(self, workers: int = 1, limit_s: float = LIMIT_S, *, nice: int = 0) -> None:
        self.workers, self._limit_s = workers, limit_s
        self._program = Program(module="pipeline.grading.worker", arguments=(str(limit_s), str(nice)))
        self.processes: list[WorkerProcess] = []
        # Last in, first out: while one at a time is enough, the others need not start.
        self._free: LifoQueue[WorkerProcess | None] = LifoQueue()
        for _ in range(workers):
            self._free.put(None)
        self._broken: str | None = None
        self._compared = lru_cache(CACHED)(self._compare)

    def __enter__(self) -> "Grader":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def grade(self, kind: Kind, answer: str, reference: str) -> Grade:
        """The grade of `answer`. Waits for a worker where one is needed; raises nothing."""
        if (own := graders.get(kind)) is not None:
            return _called(kind, own, answer, reference)
        question = kind, extract(kind, answer), extract(kind, reference)
        try:
            return compare_texts(*question) or self._compared(*question)
        except OSError as error:
            return Grade(None, why=str(error))

    def close(self) -> None:
        """End the workers; a thread that waits for one gets a grade whose `correct` is None. A second call does nothing."""
        self._broken = self._broken or "grading was stopped"
        for process in [*self.processes]:
            process.kill()
        for process in filter(None, [self._free.get() for _ in range(self.workers)]):  # each is put back by the thread that used it
            self._end(process)
        for _ in range(self.workers):
            self._free.put(None)

    def _compare(self, *question: str) -> Grade:
        """The grade by a worker, and by a new one where that is lost. Raises `OSError` where none can be started any more."""
        process, ending = self._free.get(), ""
        try:
            for _ in range(2):
                process = process or self._start()
                with suppress(OSError, msgspec.DecodeError):
                    process.socket.sendall(json.dumps(question).encode() + b"\n")
                    with process.socket.makefile("rb") as replies:
                        return msgspec.json.decode(replies.readline(), type=Grade)
                process.wait(0.2)
                status, ending, said = process.exit_status or 0, process.ending(), process.last_error()
                self._end(process)
                process = None
                if status == -signal.SIGPROF:
                    return Grade(False, why=f"not compared within {self._limit_s:g} s of CPU time")
                if status > 0:
                    self._broken = self._broken or f"the grader cannot start: {said or ending}"
            return Grade(False, why=f"the grader was lost ({ending})")
        finally:
            self._free.put(process)

    def _start(self) -> WorkerProcess:
        if self._broken:
            raise ChildProcessError(self._broken)
        process = WorkerProcess(self._program)
        process.socket.settimeout(max(PATIENCE_S, self._limit_s))
        self.processes.append(process)
        return process

    def _end(self, process: WorkerProcess) -> None:
        process.end()
        process.close_files()
        self.processes.remove(process)


def _called(name: str, own: Same, answer: str, reference: str) -> Grade:
    """The grade by a function of this process."""
    try:
        return Grade(bool(own(answer, reference)))
    except Exception as error:
        return Grade(False, why=storable(f"the grader {name!r} raised {type(error).__name__}: {with_place(error)}"))
