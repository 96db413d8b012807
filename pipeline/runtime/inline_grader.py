"""A `RowSink` that grades chains on their way to another one: calls and steps pass through, the row of a chain waits for its grade.

In real time grades that need a worker process are waited for in threads, so that no chain ever waits for one; in virtual
time, where the clock would jump, they are computed at once. Adding a row never waits; only `room`, before a new chain, may.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from msgspec import structs

from pipeline.grading.answers import Grade, as_kind, quick_grade
from pipeline.grading.grader import Grader
from pipeline.runtime.rows import RowSink
from pipeline.store.rows import UNFINISHED, CallRow, ChainRow, StepRow
from pipeline.tasks import unwrapped

MAX_WAITING = 1024
"""Number of ungraded rows from which on `room` waits."""
NOT_GRADED = "the run ended before"
"""The grading error of a chain that the run left without a grade."""


def at_once(grader: str | None, answer: str | None, reference: str | None, stop_reason: str) -> Grade | None:
    """The grade of a chain where no worker process has to compare, else None."""
    if stop_reason in UNFINISHED or reference is None:
        return Grade(None)
    return Grade(False) if answer is None else quick_grade(as_kind(grader), answer, reference)


class InlineGrader:
    """The `RowSink` that grades, in tasks of the group `tasks`; use it through `open_inline_grader`."""

    def __init__(self, recorder: RowSink, grader: Grader, virtual: bool, tasks: TaskGroup) -> None:
        self._recorder, self._grader, self._virtual, self._tasks = recorder, grader, virtual, tasks
        self.waiting = 0
        """Chains that are over and have no grade yet; bounded by `room` and the chains that are live, of which none may be made to wait."""
        self._fewer = anyio.Event()
        self._limiter = anyio.CapacityLimiter(grader.workers)

    def call(self, row: CallRow) -> None:
        self._recorder.call(row)

    def step(self, row: StepRow) -> None:
        self._recorder.step(row)

    def chain(self, row: ChainRow) -> None:
        """The row is passed on as soon as the chain is graded."""
        grade = self._at_once(row)
        if grade is None:
            self.waiting += 1
            self._tasks.start_soon(self._grade, row)
        else:
            self._record(row, grade)

    async def room(self) -> None:
        """Also waits until few enough rows are ungraded."""
        while self.waiting >= MAX_WAITING:
            await self._fewer.wait()
        await self._recorder.room()

    def _at_once(self, row: ChainRow) -> Grade | None:
        """The grade where it can be had at once, else None; in virtual time always."""
        quick = at_once(row.grader, row.answer, row.reference_answer, row.stop_reason)
        return self._graded(row) if quick is None and self._virtual else quick

    def _graded(self, row: ChainRow) -> Grade:
        assert row.answer is not None
        assert row.reference_answer is not None
        return self._grader.grade(as_kind(row.grader), row.answer, row.reference_answer)

    async def _grade(self, row: ChainRow) -> None:
        """Grade a row, first come, first served; one that is cancelled meanwhile is passed on without a grade."""
        grade = Grade(None, why=NOT_GRADED)
        try:
            grade = await anyio.to_thread.run_sync(self._graded, row, abandon_on_cancel=True, limiter=self._limiter)
        finally:
            self.waiting -= 1
            self._record(row, grade)
            self._fewer.set()
            self._fewer = anyio.Event()

    def _record(self, row: ChainRow, grade: Grade) -> None:
        self._recorder.chain(structs.replace(row, correct=grade.correct, grading_error=grade.why))


@asynccontextmanager
async def open_inline_grader(recorder: RowSink, grader: Grader, virtual: bool) -> AsyncIterator[InlineGrader]:
    """An `InlineGrader` that passes rows on to `recorder`. At the end it grades all rows that still wait; after an error they are
    recorded without a grade, and `pipeline grade` can grade them later. `virtual`: time is simulated."""
    with unwrapped():
        async with anyio.create_task_group() as tasks:
            yield InlineGrader(recorder, grader, virtual, tasks)
