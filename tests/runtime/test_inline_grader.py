"""Rows of chains on their way through the graders, on real time and on virtual time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import anyio
import pyarrow.parquet as pq
import pytest
from anyio.lowlevel import checkpoint

from pipeline.errors import EngineDead
from pipeline.grading.grader import Grader
from pipeline.runtime.inline_grader import MAX_WAITING, InlineGrader, open_inline_grader
from pipeline.runtime.virtual_loop import VirtualLoop
from pipeline.store.recorder import open_recorder
from pipeline.store.rows import ChainRow
from pipeline.store.store import RunStore
from tests.support.rows import blank
from tests.support.run_files import write_run_json

pytestmark = [pytest.mark.slow, pytest.mark.anyio]
TOWER = "9^{9^{9^9}}"
REAL = pytest.mark.parametrize("anyio_backend", ["asyncio"])
MIXED: list[tuple[str | None, str | None, dict[str, str], bool | None]] = [
    (r"\sqrt{8}", r"2\sqrt{2}", {}, True),
    ("3", r"2\sqrt{2}", {}, False),
    ("5", "5.0", {"grader": "of an earlier version"}, True),
    (None, "5", {}, False),
    ("5", None, {}, None),
    ("5", "5", {"stop_reason": "error"}, None),
    (None, "5", {"stop_reason": "cancelled"}, None),
    ("(b)", "B", {"grader": "letter"}, True),
    ("about 12 apples", "12", {"grader": "numeric"}, True),
]
"""Answers and references of rows, their other fields, and the verdicts."""


def chain(number: int, answer: str | None, reference: str | None, **more: Any) -> Any:
    fields = {"chain_id": f"c{number}", "answer": answer, "reference_answer": reference, "stop_reason": "answer_boxed", "grader": "math"}
    return blank(ChainRow, **fields | more)


def verdicts(folder: Path) -> dict[str, tuple[bool | None, str | None]]:
    rows = pq.read_table(folder / "chains").to_pylist()
    return {row["chain_id"]: (row["correct"], row["grading_error"]) for row in rows}


@asynccontextmanager
async def grading(folder: Path, *, virtual: bool = False, limit_s: float = 10) -> AsyncIterator[InlineGrader]:
    with Grader(limit_s=limit_s) as grader:
        async with (
            open_recorder(RunStore(write_run_json(folder)), virtual=virtual) as recorder,
            open_inline_grader(recorder, grader, virtual) as found,
        ):
            yield found


@pytest.mark.parametrize(
    ("virtual", "anyio_backend"), [pytest.param(False, "asyncio"), pytest.param(True, ("asyncio", {"loop_factory": VirtualLoop}))]
)
async def test_every_row_gets_its_verdict_and_nobody_waits(tmp_path: Path, virtual: bool) -> None:
    async with grading(tmp_path, virtual=virtual) as grader:
        started = anyio.current_time()
        for number, (answer, reference, more, _) in enumerate(MIXED):
            grader.chain(chain(number, answer, reference, **more))
        assert grader.waiting == (0 if virtual else 2), "the worker is not even started"
        await grader.room()
        if virtual:
            await anyio.sleep(1)
            assert anyio.current_time() == started + 1
    assert verdicts(tmp_path) == {f"c{number}": (verdict, None) for number, (*_, verdict) in enumerate(MIXED)}


@REAL
@pytest.mark.parametrize("error", [EngineDead("draft", "out of breath"), None], ids=["error", "interrupt"])
async def test_after_an_error_or_interrupt_what_is_not_graded_is_kept_without_a_verdict(tmp_path: Path, error: Exception | None) -> None:
    """Of three chains that take an hour to grade and one that takes nothing."""
    with anyio.CancelScope() as scope, pytest.raises(EngineDead) if error else nullcontext():
        async with grading(tmp_path, limit_s=3600) as grader:
            for number in range(3):
                grader.chain(chain(number, TOWER, f"x+{number}"))
            grader.chain(chain(9, "2", "2"))
            for _ in range(3):
                await checkpoint()  # the first one is at work then
            if error is not None:
                raise error
            scope.cancel()
            await checkpoint()
    assert scope.cancelled_caught == (error is None)
    assert verdicts(tmp_path) == {f"c{i}": (None, "the run ended before") for i in range(3)} | {"c9": (True, None)}


@REAL
async def test_new_chains_wait_while_too_many_are_ungraded(tmp_path: Path) -> None:
    async with grading(tmp_path) as grader:
        for number in range(MAX_WAITING):
            grader.chain(chain(number, r"\sqrt{8}", r"2\sqrt{2}"))
        assert grader.waiting == MAX_WAITING
        await grader.room()
        assert grader.waiting < MAX_WAITING
    assert set(verdicts(tmp_path).values()) == {(True, None)}
