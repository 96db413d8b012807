"""Whole runs on simulated engines that die, hang, and answer with what is no answer, or without memory: nothing is lost.

Processes that are killed, full disks and servers that misbehave: `tests/tools/test_drills.py`.
"""

import json
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
from msgspec import structs

from pipeline.analysis.summary import summarize
from pipeline.engines.registry import open_engines
from pipeline.run.loop import Stop, attended, in_loop
from pipeline.run.prepare import load_plan, prepare, resume_options
from pipeline.run.run import Observer, SessionResult, run
from pipeline.run.run import solve as solve_run
from tests.run.conftest import Recorded
from tests.support.runs import options_of, rows, said, solve_short

pytestmark = pytest.mark.slow  # whole runs


@pytest.fixture
def calm(recorded: Recorded) -> SessionResult:
    """12 problems on engines that do not fail."""
    return recorded()


def attempts(result: SessionResult, engine: str) -> Iterator[list[dict[str, Any]]]:
    """The rows of each call to `engine`, in the order of its attempts."""
    calls: dict[str, list[dict[str, Any]]] = {}
    for row in rows(result, "calls"):
        if row["engine"] == engine:
            calls.setdefault(row["request_id"], []).append(row)
    return (sorted(call, key=lambda row: row["attempt"]) for call in calls.values())


def statistics(result: SessionResult, engine: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((result.folder / "run.json").read_text())["sessions"][-1]["engine_statistics"][engine]
    return found


@pytest.mark.parametrize("schedule", ["pipelined", "lockstep", "sequential"])
@pytest.mark.parametrize(("fault", "words"), [("dies", "as configured"), ("hangs", "it computed nothing for")])
def test_an_engine_that_fails_is_restarted_and_no_answer_changes(
    tmp_path: Path, faulty: Path, calm: SessionResult, schedule: Any, fault: str, words: str
) -> None:
    settings = (f"engines.draft.faults.{fault}_after_calls=12", "engines.draft.max_restarts=100", "engines.draft.hang_s=10")
    result = solve_short(tmp_path, engines=faulty, schedule=schedule, settings=settings)
    assert result.exit_code == 0
    assert said(result) == said(calm)
    restarts = summarize(result.folder).engines["draft"].restarts
    assert restarts == statistics(result, "draft")["restarts"] > 1
    assert summarize(result.folder).engines["target"].restarts == 0
    answered = 0
    for call in attempts(result, "draft"):
        assert [row["attempt"] for row in call] == list(range(len(call)))
        assert [row["error_type"] for row in call] == ["EngineDead"] * (len(call) - 1) + [None]
        assert all(row["error_message"].startswith(f"engine 'draft' died: {words}") for row in call[:-1])
        assert all(after["submit_unix_ns"] > before["end_unix_ns"] for before, after in pairwise(call))
        assert all(row["e2e_latency_s"] < 20 for row in call)
        answered += 1
    assert statistics(result, "draft")["requests"] == answered


def test_an_engine_that_dies_too_often_ends_the_run_with_its_last_words(tmp_path: Path, faulty: Path) -> None:
    settings = ("engines.draft.faults.dies_after_calls=10", "engines.draft.max_restarts=2")
    result = solve_short(tmp_path, engines=faulty, settings=settings)
    words = "engine 'draft' died: as configured by dies_after_calls=10; it was restarted 2 times, and max_restarts=2 allows no more"
    assert (result.exit_code, str(result.error)) == (1, words)
    assert result.run.error == words
    assert statistics(result, "draft")["restarts"] == 2
    assert statistics(result, "draft")["requests"] == sum(row["error_type"] is None for call in attempts(result, "draft") for row in call)
    assert {row["stop_reason"] for row in rows(result, "chains")} <= {"cancelled", "thought_closed"}


def test_what_is_no_answer_is_asked_for_again(tmp_path: Path, faulty: Path, calm: SessionResult) -> None:
    settings = tuple(f"engines.{role}.{field}" for role in ("draft", "target") for field in ("faults.garbage_share=0.2", "max_retries=20"))
    result = solve_short(tmp_path, engines=faulty, settings=settings)
    assert result.exit_code == 0
    assert said(result) == said(calm)
    flawed = [row for row in rows(result, "calls") if row["error_type"]]
    assert {row["error_type"] for row in flawed} == {"BadCompletion"}
    assert {row["kind"] for row in flawed} == {row["kind"] for row in rows(calm, "calls")}
    assert all(row["error_message"].startswith(f"engine '{row['engine']}' gave no valid answer to request '") for row in flawed)
    assert sum(engine.retried_calls for engine in summarize(result.folder).engines.values()) == len(flawed)
    assert 0.1 < len(flawed) / len(rows(result, "calls")) < 0.3


def test_a_chain_that_gets_no_answer_fails_alone_and_the_others_say_what_they_would_have(
    tmp_path: Path, faulty: Path, calm: SessionResult
) -> None:
    result = solve_short(tmp_path, engines=faulty, settings=("engines.target.faults.garbage_share=0.1",))
    assert result.exit_code == 3
    failed = {row["chain_id"]: row["error_type"] for row in rows(result, "chains") if row["stop_reason"] == "error"}
    assert 0 < len(failed) < 12
    again = resume_options(tmp_path / "run")
    assert [run(structs.replace(again, fail_on_error=share)).exit_code for share in (0.0, 0.05, 0.9)] == [3, 3, 0]
    assert set(failed.values()) == {"BadCompletion"}
    assert {key: words for key, words in said(result).items() if key not in failed} == {
        key: words for key, words in said(calm).items() if key not in failed
    }


class Hoard:
    """A sink of rows that has no more memory after some of them."""

    def __init__(self, rows: int) -> None:
        self._left = rows

    def call(self, row: object) -> None:
        self._left -= 1
        if self._left < 0:
            raise MemoryError

    step = chain = call

    async def room(self) -> None: ...


def test_a_run_that_has_no_more_memory_ends_in_a_sentence_and_goes_on_later(tmp_path: Path, calm: SessionResult) -> None:
    options = options_of(tmp_path, settings=("engines.*.text.steps_mean=3",))
    result = run(options, Observer(sink=Hoard(40)))
    assert result.exit_code == 1
    assert str(result.error).startswith("out of memory; ")
    kept = json.loads((tmp_path / "run/run.json").read_text())
    assert (kept["status"], kept["error"]) == ("failed", str(result.error))
    resumed = run(structs.replace(options, resume=True))
    assert resumed.exit_code == 0
    assert said(resumed) == said(calm)


def test_an_abort_while_the_engines_close_loses_no_result(tmp_path: Path) -> None:
    options = options_of(tmp_path)

    async def abort_late(stop: Stop, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        task_status.started()
        await anyio.sleep(5_000)
        stop.abort()

    async def closing_slowly(stop: Stop) -> SessionResult:
        async with open_engines(found.plan.engines) as engines:
            result = await solve_run(found, Observer(), stop, engines=engines)
            await anyio.sleep(10_000)
            return result

    with prepare(options, load_plan(options.graph, options.engines, ())) as found:
        result = in_loop(partial(attended, closing_slowly, abort_late), virtual=True)
    assert (result.exit_code, result.done) == (0, 12)
