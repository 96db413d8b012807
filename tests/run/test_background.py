"""Runs that are read while they go on: they end with their reader, keep their folder until then, and forget chains that are over."""

import asyncio
import gc
import subprocess
import sys
import threading
from contextlib import aclosing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from anyio import CancelScope

import pipeline
from pipeline import api
from pipeline.errors import UsageError
from pipeline.store.run_file import RunFile
from tests.support.echo import Echo
from tests.support.paths import ROOT
from tests.support.runs import write_problems

pytestmark = pytest.mark.slow  # processes, and whole runs

PROBLEMS = [{"problem": f"What is {i} + 2?", "answer": str(i + 2)} for i in range(60)]


async def left(given: dict[str, Any], how: str = "break") -> None:
    """Read one chain and leave: the iterator is closed by an event loop that ends, and can no longer wait, or it is closed or cancelled."""
    chains = pipeline.solve_async("target", PROBLEMS, **given)
    if how in ("break", "error"):
        async for _ in chains:
            if how == "error":
                raise ValueError
            break
        return
    with CancelScope() as scope:
        async with aclosing(chains):
            await anext(chains)
            if how == "cancel":
                scope.cancel()
                await anext(chains)
    assert scope.cancelled_caught == (how == "cancel")
    assert len(asyncio.all_tasks()) == 1


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options of a run that cannot be over before it is left."""
    monkeypatch.setattr(api, "UNREAD", 4)
    return {"engines": {"target": Echo()}, "batch_size": 2, "output": tmp_path / "run"}


@pytest.mark.parametrize("how", ["break", "error", "close", "cancel"])
def test_a_run_that_is_left_ends_and_goes_on_later(tmp_path: Path, given: dict[str, Any], how: str) -> None:
    with pytest.raises(ValueError) if how == "error" else nullcontext():  # noqa: PT011
        asyncio.run(left(given, how))
    card = RunFile.read(tmp_path / "run")
    assert (card.status, 1 <= card.totals.chains_done < 60) == ("interrupted", True)
    assert not [thread for thread in threading.enumerate() if thread.name == "pipeline run"]
    result = pipeline.solve("target", PROBLEMS, **given, resume=True)
    assert (len(result), result.run.status, len(result.run.sessions)) == (60, "finished", 2), "one writer at a time: no chain twice"


def test_a_run_that_has_not_ended_keeps_its_folder(given: dict[str, Any]) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(left(given))
    with pytest.raises(UsageError, match=r"run: this process is at work in it; .* \(contextlib\.aclosing\)"):
        pipeline.solve("target", PROBLEMS, **given, resume=True)
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


LEAVES = """
import asyncio, sys
import pipeline
async def main(leave):
    async for row in pipeline.solve_async("target", [{"problem": f"{i}?"} for i in range(3000)], engines="sim-2xh100", batch_size=2):
        leave()
        break
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("asyncio.run(main(int))", 0),
        ("asyncio.run(main(lambda: sys.exit(7)))", 7),
        ("loop = asyncio.new_event_loop(); loop.run_until_complete(main(int))", 0),
    ],
)
def test_the_process_ends(end: str, code: int) -> None:
    process = subprocess.run([sys.executable, "-c", LEAVES + end], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert process.returncode == code, process.stderr


def test_chains_that_are_over_are_forgotten(tmp_path: Path) -> None:
    """Of eight problems with many samples each: what is remembered about problems has its own bounds."""
    problems, held = write_problems(tmp_path, 8), list[int]()

    async def read() -> None:
        over, given = 0, {"engines": {"target": Echo()}, "samples": 250, "batch_size": 32}
        async with aclosing(pipeline.solve_async("target", problems, **given)) as chains:
            async for _ in chains:
                over += 1
                if over % 50 == 0:
                    gc.collect()
                    held.append(sys.getallocatedblocks())

    gc.freeze()  # what other tests hold
    try:
        asyncio.run(read())
    finally:
        gc.unfreeze()
    early, late = min(held[4:12]), min(held[24:32])  # before the last chains end
    assert (late - early) / 1000 < 3, held
