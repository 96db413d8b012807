"""Rows of chains on their way through the graders, on real time and on virtual time."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import pyarrow.parquet as pq
import pytest
from anyio.lowlevel import checkpoint

from pipeline.errors import EngineDead
from pipeline.grading.grader import Grader
from pipeline.runtime.inline_grader import MAX_WAITING, open_inline_grader
from pipeline.store.events import ChainRow
from pipeline.store.recorder import open_recorder
from pipeline.store.run_store import RunStore

Blank = Callable[..., Any]
TOWER = "9^{9^{9^9}}"
asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])


def chain(blank: Blank, number: int, answer: str | None, reference: str | None, **more: Any) -> Any:
    fields = {"chain_id": f"c{number}", "answer": answer, "reference_answer": reference, "stop_reason": "answer_boxed", "grader": "math"}
    return blank(ChainRow, **fields | more)


def verdicts(folder: Path) -> dict[str, tuple[bool | None, str | None]]:
    rows = pq.read_table(folder / "chains").to_pylist()
    return {row["chain_id"]: (row["correct"], row["grading_error"]) for row in rows}


def mixed(blank: Blank) -> list[Any]:
    return [
        chain(blank, 1, r"\sqrt{8}", r"2\sqrt{2}"),
        chain(blank, 2, "3", r"2\sqrt{2}"),
        chain(blank, 3, "5", "5.0", grader="of an earlier version"),
        chain(blank, 4, None, "5"),
        chain(blank, 5, "5", None),
        chain(blank, 6, "5", "5", stop_reason="error"),
        chain(blank, 7, None, "5", stop_reason="cancelled"),
        chain(blank, 8, "(b)", "B", grader="letter"),
        chain(blank, 9, "about 12 apples", "12", grader="numeric"),
    ]


EXPECTED = {
    "c1": (True, None),
    "c2": (False, None),
    "c3": (True, None),
    "c4": (False, None),
    "c5": (None, None),
    "c6": (None, None),
    "c7": (None, None),
    "c8": (True, None),
    "c9": (True, None),
}


@pytest.mark.slow
@pytest.mark.anyio
@asyncio
async def test_every_row_gets_its_verdict_and_nobody_waits(tmp_path: Path, blank: Blank) -> None:
    with Grader() as grader:
        async with (
            open_recorder(RunStore(tmp_path), virtual=False) as recorder,
            open_inline_grader(recorder, grader, False) as inline_grader,
        ):
            for row in mixed(blank):
                inline_grader.chain(row)
            assert inline_grader.waiting == 2, "the worker is not even started"
            assert recorder.statistics().waiting == 7
            await inline_grader.room()
    assert verdicts(tmp_path) == EXPECTED


@pytest.mark.slow
@pytest.mark.anyio
async def test_on_virtual_time_verdicts_are_given_inline(tmp_path: Path, blank: Blank) -> None:
    with Grader() as grader:
        async with (
            open_recorder(RunStore(tmp_path), virtual=True) as recorder,
            open_inline_grader(recorder, grader, True) as inline_grader,
        ):
            started = anyio.current_time()
            for row in mixed(blank):
                inline_grader.chain(row)
            assert inline_grader.waiting == 0
            await anyio.sleep(1)
            assert anyio.current_time() == started + 1
    assert verdicts(tmp_path) == EXPECTED


@pytest.mark.slow
@pytest.mark.anyio
@asyncio
@pytest.mark.parametrize("error", [EngineDead("draft", "out of breath"), None], ids=["error", "interrupt"])
async def test_after_an_error_or_interrupt_what_is_not_graded_is_kept_without_a_verdict(
    tmp_path: Path, blank: Blank, error: Exception | None
) -> None:
    with anyio.CancelScope() as scope, pytest.raises(EngineDead) if error else nullcontext():
        await end_with(error, tmp_path, blank, None if error else scope)
    assert scope.cancelled_caught == (error is None)
    assert verdicts(tmp_path) == {f"c{i}": (None, "the run ended before") for i in range(3)} | {"c9": (True, None)}


async def end_with(error: Exception | None, folder: Path, blank: Blank, scope: anyio.CancelScope | None = None) -> None:
    """Drop three chains that take an hour to grade and one that takes nothing, then end."""
    with Grader(limit_s=3600) as grader:
        async with (
            open_recorder(RunStore(folder), virtual=False) as recorder,
            open_inline_grader(recorder, grader, False) as inline_grader,
        ):
            for number in range(3):
                inline_grader.chain(chain(blank, number, TOWER, f"x+{number}"))
            inline_grader.chain(chain(blank, 9, "2", "2"))
            for _ in range(3):
                await checkpoint()  # the first one is at work then
            if scope is not None:
                scope.cancel()
                await checkpoint()
            if error is not None:
                raise error


@pytest.mark.slow
@pytest.mark.anyio
@asyncio
async def test_new_chains_wait_while_too_many_are_ungraded(tmp_path: Path, blank: Blank) -> None:
    with Grader() as grader:
        async with (
            open_recorder(RunStore(tmp_path), virtual=False) as recorder,
            open_inline_grader(recorder, grader, False) as inline_grader,
        ):
            for number in range(MAX_WAITING):
                inline_grader.chain(chain(blank, number, r"\sqrt{8}", r"2\sqrt{2}"))
            assert inline_grader.waiting == MAX_WAITING
            await inline_grader.room()
            assert inline_grader.waiting < MAX_WAITING
    assert set(verdicts(tmp_path).values()) == {(True, None)}
