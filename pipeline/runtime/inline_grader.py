"""A `RowSink` that grades chains on their way to another one: calls and steps pass through, the row of a chain waits for its grade.

In real time grades that need a worker process are waited for in threads, so that no chain ever waits for one; in virtual
time, where the clock would jump, they are computed at once. Adding a row never waits; only `room`, before a new chain, may.
"""

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.to_thread
from msgspec import Struct, structs

from pipeline.grading.answers import as_kind
from pipeline.grading.grader import Grade, Grader
from pipeline.runtime.rows import RowSink
from pipeline.store.events import UNFINISHED, CallRow, ChainRow, StepRow, counted

MAX_WAITING = 1024
"""Number of ungraded rows from which on `room` waits."""
NOT_GRADED = "the run ended before"
"""The grading error of a chain that the run left without a grade."""


ProblemRows = Mapping[int, Mapping[str, Any]]
"""The rows of problems by their numbers."""


class GradingStatistics(Struct, frozen=True):
    """The state of the grading at one moment, in chains."""

    waiting: int
    """Chains that are over and have no grade yet."""
    graded: int
    """Chains that count as right or wrong; see `events.counted`."""
    correct: int
    """Chains whose answer is right."""


class InlineGrader:
    """The `RowSink` that grades; use it through `open_inline_grader`."""

    def __init__(self, recorder: RowSink, grader: Grader, virtual: bool, problems: ProblemRows) -> None:
        self._recorder, self._grader, self._virtual, self._problems = recorder, grader, virtual, problems
        # Bounded by `room` and the chains that are live, of which none may be made to wait.
        self._rows, self._due = anyio.create_memory_object_stream[ChainRow](math.inf)
        self._at_work = self._graded = self._correct = 0
        self._fewer = anyio.Event()
        self._limiter = anyio.CapacityLimiter(len(grader.workers))

    def call(self, row: CallRow) -> None:
        self._recorder.call(row)

    def step(self, row: StepRow) -> None:
        self._recorder.step(row)

    def chain(self, row: ChainRow) -> None:
        """The row is passed on as soon as the chain is graded."""
        grade = self._at_once(row)
        if grade is None:
            self._rows.send_nowait(row)
        else:
            self._record(row, grade)

    async def room(self) -> None:
        """Also waits until few enough rows are ungraded."""
        while self.statistics().waiting >= MAX_WAITING:
            await self._fewer.wait()
        await self._recorder.room()

    def statistics(self) -> GradingStatistics:
        """The number of chains that wait for a grade, and the grades since the start."""
        waiting = self._due.statistics().current_buffer_used + self._at_work
        return GradingStatistics(waiting, self._graded, self._correct)

    async def work(self) -> None:
        """Grade rows as they come, until `finish` was called and none is left."""
        async for row in self._due:
            await self._grade(row)

    def finish(self) -> None:
        """Let `work` end once all rows are graded; no more rows may be added."""
        self._rows.close()

    def give_up(self) -> None:
        """Pass on the rows that are not graded yet without a grade; `pipeline grade` can grade them later."""
        self._rows.close()
        with suppress(anyio.EndOfStream):
            while True:
                self._record(self._due.receive_nowait(), Grade(None, NOT_GRADED))
        self._due.close()

    def _at_once(self, row: ChainRow) -> Grade | None:
        """The grade where it can be had without waiting for a worker process, else None."""
        if row.stop_reason in UNFINISHED or row.reference_answer is None:
            return Grade(None)
        if row.answer is None:
            return Grade(False)
        kind = as_kind(row.grader)
        if self._virtual:
            return self._grader.grade(kind, row.answer, row.reference_answer, self._problems.get(row.input_row))
        return self._grader.quick_grade(kind, row.answer, row.reference_answer)

    async def _grade(self, row: ChainRow) -> None:
        assert row.answer is not None
        assert row.reference_answer is not None
        question = as_kind(row.grader), row.answer, row.reference_answer, self._problems.get(row.input_row)
        grade = Grade(None, NOT_GRADED)
        self._at_work += 1
        try:
            grade = await anyio.to_thread.run_sync(self._grader.grade, *question, abandon_on_cancel=True, limiter=self._limiter)
        finally:
            self._at_work -= 1
            self._record(row, grade)
            self._fewer.set()
            self._fewer = anyio.Event()

    def _record(self, row: ChainRow, grade: Grade) -> None:
        verdict = counted(grade.correct, row.stop_reason, row.reference_answer)
        self._graded += verdict is not None
        self._correct += bool(verdict)
        self._recorder.chain(structs.replace(row, correct=grade.correct, grading_error=grade.why))


@asynccontextmanager
async def open_inline_grader(
    recorder: RowSink, grader: Grader, virtual: bool, problems: ProblemRows | None = None
) -> AsyncIterator[InlineGrader]:
    """An `InlineGrader` that passes rows on to `recorder`. At the end it grades all rows that still wait; after an error they are
    recorded without a grade. `virtual`: time is simulated; `problems`: for graders that want them."""
    inline_grader = InlineGrader(recorder, grader, virtual, problems or {})
    error: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            for _ in grader.workers:
                tasks.start_soon(inline_grader.work)
            try:
                yield inline_grader
            except BaseException:
                tasks.cancel_scope.cancel()
                raise
            inline_grader.finish()
    except BaseExceptionGroup as group:
        error = group.exceptions[0] if len(group.exceptions) == 1 else group
    finally:
        inline_grader.give_up()
    if error is not None:
        raise error
