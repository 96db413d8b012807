"""A run whose reader goes away: it ends, the process ends, and until it has ended nobody else gets its folder."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline import api
from pipeline.errors import UsageError
from pipeline.store.run_file import RunFile
from tests.support.paths import ROOT

PROBLEMS = [{"problem": f"What is {i} + 2?", "answer": str(i + 2)} for i in range(60)]


async def left(how: str, **given: Any) -> None:
    async for _ in pipeline.solve_async("target", PROBLEMS, **given):
        if how == "raise":
            raise ValueError("of the reader's own")
        break


@pytest.mark.slow
@pytest.mark.parametrize("how", ["break", "raise"])
def test_a_run_ends_with_the_loop_that_read_it(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `aclosing`: the iterator is closed by an event loop that ends, and can no longer wait."""
    monkeypatch.setattr(api, "UNREAD", 4)
    given: dict[str, Any] = {"engines": "sim-2xh100", "batch_size": 2, "output": tmp_path / "run"}
    if how == "raise":
        with pytest.raises(ValueError, match="of the reader's own"):
            asyncio.run(left(how, **given))
    else:
        asyncio.run(left(how, **given))
    assert RunFile.read(tmp_path / "run").status == "interrupted"
    assert not [thread for thread in threading.enumerate() if thread.name == "pipeline run"]
    result = pipeline.solve("target", PROBLEMS, **given, resume=True)
    assert (len(result), result.run.status) == (60, "finished"), "one writer at a time: no chain twice"


@pytest.mark.slow
def test_a_run_that_has_not_ended_keeps_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "UNREAD", 4)
    given: dict[str, Any] = {"engines": "sim-2xh100", "batch_size": 2, "output": tmp_path / "run"}
    loop = asyncio.new_event_loop()
    loop.run_until_complete(left("break", **given))
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


@pytest.mark.slow
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
