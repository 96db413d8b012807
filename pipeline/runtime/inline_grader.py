"""Between the executor and the recorder: calls and steps pass through, the row of a chain waits here for its verdict.

In real time verdicts that take a worker process are waited for in threads, so that no chain ever waits for one; in virtual
time, where the clock would jump, they are given inline. Dropping a row never waits; only `room`, before a new chain, may.
"""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.to_thread
from msgspec import Struct, structs

from pipeline.grading.answers import as_kind
from pipeline.grading.grader import Grade, Grader
from pipeline.runtime.rows import RowSink
from pipeline.trace.events import UNFINISHED, CallRow, ChainRow, StepRow

MOST_WAITING = 1024
"""From this many ungraded rows on `room` waits."""
NOT_GRADED = "the run ended before"


class GradingStatistics(Struct, frozen=True):
    """A moment's view of the grading."""

    waiting: int
    """Chains that are over and have no verdict yet."""
    graded: int
    correct: int


class InlineGrader:
    """What the executor records into. Use it through `open_inline_grader`."""

    def __init__(self, recorder: RowSink, grader: Grader, virtual: bool) -> None:
        self._recorder, self._grader, self._virtual = recorder, grader, virtual
        # Bounded by `room` and the chains that are live, of which none may be made to wait.
        self._rows, self._due = anyio.create_memory_object_stream[ChainRow](math.inf)
        self._at_work = self._graded = self._correct = 0
        self._fewer = anyio.Event()
        self._limiter = anyio.CapacityLimiter(len(grader.workers))

    def call(self, row: CallRow) -> None:
        """Record one engine request."""
        self._recorder.call(row)

    def step(self, row: StepRow) -> None:
        """Record one committed step."""
        self._recorder.step(row)

    def chain(self, row: ChainRow) -> None:
        """Record one finished chain, as soon as it is graded."""
        grade = self._at_once(row)
        if grade is None:
            self._rows.send_nowait(row)
        else:
            self._record(row, grade)

    async def room(self) -> None:
        """Wait until few enough rows are ungraded and unwritten; raises as `Recorder.room` does."""
        while self.statistics().waiting >= MOST_WAITING:
            await self._fewer.wait()
        await self._recorder.room()

    def statistics(self) -> GradingStatistics:
        """Chains waiting for a verdict and verdicts since the start."""
        waiting = self._due.statistics().current_buffer_used + self._at_work
        return GradingStatistics(waiting, self._graded, self._correct)

    async def work(self) -> None:
        """Grade rows as they come, until `finish` was called and none is left."""
        async for row in self._due:
            await self._grade(row)

    def finish(self) -> None:
        """No more rows will come."""
        self._rows.close()

    def give_up(self) -> None:
        """Record what is not graded yet as it is: `pipeline grade` can make up for it."""
        self._rows.close()
        with suppress(anyio.EndOfStream):
            while True:
                self._record(self._due.receive_nowait(), Grade(None, NOT_GRADED))
        self._due.close()

    def _at_once(self, row: ChainRow) -> Grade | None:
        if row.stop_reason in UNFINISHED or row.reference_answer is None:
            return Grade(None)
        if row.answer is None:
            return Grade(False)
        judge = self._grader.grade if self._virtual else self._grader.quick_grade
        return judge(as_kind(row.grader), row.answer, row.reference_answer)

    async def _grade(self, row: ChainRow) -> None:
        assert row.answer is not None
        assert row.reference_answer is not None
        question = as_kind(row.grader), row.answer, row.reference_answer
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
        self._graded += grade.correct is not None
        self._correct += bool(grade.correct)
        self._recorder.chain(structs.replace(row, correct=grade.correct, grading_error=grade.why))


@asynccontextmanager
async def open_inline_grader(recorder: RowSink, grader: Grader, virtual: bool) -> AsyncIterator[InlineGrader]:
    """A `InlineGrader` over `recorder`. At the end what still waits is graded; after an error it is recorded without a verdict."""
    inline_grader = InlineGrader(recorder, grader, virtual)
    error: BaseException | None = None
    try:
        async with anyio.create_task_group() as markers:
            for _ in grader.workers:
                markers.start_soon(inline_grader.work)
            try:
                yield inline_grader
            except BaseException:
                markers.cancel_scope.cancel()
                raise
            inline_grader.finish()
    except BaseExceptionGroup as group:
        error = group.exceptions[0] if len(group.exceptions) == 1 else group
    finally:
        inline_grader.give_up()
    if error is not None:
        raise error
