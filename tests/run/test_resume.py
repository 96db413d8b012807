"""Runs that go on: what a run holds at any moment of its life is enough to end it as if it had never stopped."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from pipeline.analysis.figures import read_sums
from pipeline.analysis.headline import headline
from pipeline.analysis.summary import summarize
from pipeline.cli.live import restored_handlers, stop_on_signal
from pipeline.engines.meter import Listener
from pipeline.errors import RunError
from pipeline.run.prepare import resume_options
from pipeline.run.run import Observer, run
from pipeline.run.stream import MemoryRows
from pipeline.store.folder import LOCK
from pipeline.store.query import Query
from pipeline.store.rows import ChainRow
from pipeline.store.run_file import RunFile
from pipeline.store.store import write_part
from tests.run.conftest import Recorded
from tests.support.killed import cut
from tests.support.runs import options_of, rows, said, solve, solve_short, write_problems

pytestmark = pytest.mark.slow  # whole runs

GRAPHS = ("speccot", "scot", "target", "gated", "specreason")
GIVEN: dict[str, Any] = {"batch_size": 4, "samples": 2}


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of each graph, over eight problems and a bad row; the thoughts of the last one end where they are sure."""
    folder = tmp_path_factory.mktemp("whole")
    problems, sure = write_problems(folder, 8, (b'{"problem_id": "bad"}',)), {"specreason": ("answer_confident=0.95",)}
    return {graph: solve(folder, graph, graph, input=problems, settings=sure.get(graph, ()), **GIVEN).folder for graph in GRAPHS}


@pytest.mark.parametrize("graph", GRAPHS)
@settings(max_examples=6, deadline=None, derandomize=True)
@given(shares=st.lists(st.floats(0, 1), min_size=1, max_size=2))
def test_a_run_that_was_killed_at_any_moment_ends_as_if_it_had_not_been(
    wholes: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, graph: str, shares: list[float]
) -> None:
    place = tmp_path_factory.mktemp(graph)
    last = wholes[graph]
    for number, share in enumerate(shares):
        cut(last, folder := place / f"{number}", share)
        result = run(resume_options(folder))
        last = folder
    assert result.exit_code == 3  # the bad row
    assert said(last) == said(wholes[graph])
    assert len(rows(last, "chains")) == len({row["chain_id"] for row in rows(last, "chains")})
    assert result.run.totals == RunFile.read(wholes[graph]).totals
    assert [session.status for session in result.run.sessions] == ["killed"] * len(shares) + ["finished"]


def test_a_finished_run_is_left_as_it_is(wholes: dict[str, Path]) -> None:
    folder = wholes["speccot"]

    def stamps() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != LOCK}

    before = stamps()
    result = run(resume_options(folder))
    assert result.nothing_to_do
    assert (result.exit_code, result.done, result.failed) == (3, 16, 2)
    assert stamps() == before


def test_failed_chains_are_tried_again_when_asked(wholes: dict[str, Path], tmp_path: Path) -> None:
    problems = wholes["speccot"].parent / "problems.jsonl"
    failed = solve(tmp_path, input=problems, settings=("engines.target.timeout_s=0.5",), **GIVEN)
    assert failed.failed > 2
    given = structs.replace(resume_options(failed.folder), retry_failed=True, settings=())
    assert run(given).failed == 2
    assert said(failed.folder) == said(wholes["speccot"])


def test_a_run_goes_on_from_any_folder_and_with_the_texts_that_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text("system: Be brief.")
    (tmp_path / "values.yaml").write_text("set: {temperature: 0.5}")
    monkeypatch.chdir(tmp_path)
    whole = solve_short(tmp_path, "whole", settings=("prompts=mine.yaml", "preset=values.yaml"))
    cut(whole.folder, tmp_path / "run", 0.5)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "mine.yaml").write_text("system: Be verbose.")
    assert said(run(resume_options(tmp_path / "run"), plan=RunFile.read(tmp_path / "run").plan)) == said(whole)


def test_the_time_between_sessions_is_in_no_figure(wholes: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains live through up to four sessions, an hour apart."""
    hour, last = time.time_ns(), wholes["speccot"]
    for number, share in enumerate((0.1, 0.3, 0.5)):
        cut(last, last := tmp_path / f"{number}", share)
        monkeypatch.setattr(time, "time_ns", lambda hours=number + 1: hour + hours * 3600 * 10**9)
        result = run(resume_options(last))
    summary, sessions = summarize(result.folder), result.run.sessions
    assert len(sessions) == 4
    assert all(since + 1000 * 10**9 < until for since, until in result.run.pauses)
    assert summary.wall_time_s == pytest.approx(sum(session.wall_time_s or 0 for session in sessions))
    for chain in rows(result.folder, "chains"):
        assert chain["chain_time_s"] <= summary.wall_time_s + 1e-6  # type: ignore[operator]
    with Query(result.folder) as db:
        assert all(0 < seconds <= summary.wall_time_s for seconds in read_sums([db])["thinking_s"])  # type: ignore[operator]


def test_a_clock_that_was_set_back_turns_no_time_around(wholes: dict[str, Path], tmp_path: Path) -> None:
    cut(wholes["target"], tmp_path / "run", 0.5)
    record = RunFile.read(tmp_path / "run")
    [session], tomorrow = record.sessions, record.started_unix_ns + 86_400 * 10**9
    ended = structs.replace(session, status="failed", ended_unix_ns=tomorrow)
    structs.replace(record, sessions=(ended,)).write(tmp_path / "run")
    result = run(resume_options(tmp_path / "run"))
    assert result.run.sessions[1].started_unix_ns > tomorrow
    assert all(row["chain_time_s"] >= 0 for row in rows(result.folder, "chains"))
    assert (summarize(result.folder).wall_time_s or 0) > 0
    assert said(result) == said(wholes["target"])


def test_a_finished_run_goes_on_when_its_limit_is_raised(wholes: dict[str, Path], tmp_path: Path) -> None:
    part = solve(tmp_path, input=wholes["speccot"].parent / "problems.jsonl", limit=3, **GIVEN)
    assert part.done == 6
    told: list[str] = []
    more = run(structs.replace(resume_options(part.folder), limit=None, batch_size=3), Observer(tell=told.append))
    assert (more.nothing_to_do, more.done) == (False, 16)
    assert [each for each in told if ", was " in each] == ["limit is None, was 3", f"batch_size is 3, was {GIVEN['batch_size']}"]
    assert said(more) == said(wholes["speccot"])


def test_a_run_over_a_sample_goes_on_over_the_same_one(wholes: dict[str, Path], tmp_path: Path) -> None:
    whole = said(solve(tmp_path, "whole", input=wholes["speccot"].parent / "problems.jsonl", random="4", **GIVEN))
    cut(tmp_path / "whole", tmp_path / "run", 0.5)
    of_all = said(wholes["speccot"])
    assert said(run(resume_options(tmp_path / "run"))) == whole == {chain: of_all[chain] for chain in whole}
    assert len(whole) == 8


def test_an_answer_to_another_prompt_is_asked_for_again(wholes: dict[str, Path], tmp_path: Path) -> None:
    cut(wholes["speccot"], tmp_path / "run", 0.5)
    [part] = (tmp_path / "run/calls").glob("*.parquet")
    calls = pq.read_table(part)
    place = calls.column_names.index("prompt_digest")
    others = pc.add(calls.column(place), 1)
    write_part(part, calls.set_column(place, calls.schema.field(place), others))
    over = {row["chain_id"] for row in rows(tmp_path / "run", "chains")}
    result = run(resume_options(tmp_path / "run"))
    names = [row["request_id"] for row in rows(result.folder, "calls") if row["chain_id"] not in over]
    asked = [row["request_id"] for row in rows(wholes["speccot"], "calls") if row["chain_id"] not in over]
    begun = [row["request_id"] for row in calls.to_pylist() if row["chain_id"] not in over]
    assert begun
    assert sorted(names) == sorted(asked + begun)
    assert said(result) == said(wholes["speccot"])


class Signals(MemoryRows):
    """Sends this process a signal as each of the next chains ends, after four have."""

    def __init__(self, count: int) -> None:
        super().__init__(trace=False)
        self.ended, self.count = 0, count

    def chain(self, row: ChainRow) -> None:
        self.ended += 1
        if 4 < self.ended <= 4 + self.count:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("count", [1, 2], ids=["drained", "aborted"])
def test_a_run_that_is_interrupted_says_what_is_left_and_goes_on(recorded: Recorded, tmp_path: Path, count: int) -> None:
    whole = recorded(samples=2)
    options = options_of(tmp_path, batch_size=4, samples=2, settings=("engines.*.text.steps_mean=3",))
    with restored_handlers():
        result = run(options, Observer(sink=Signals(count)), attend=stop_on_signal)
    assert (result.exit_code, result.run.status) == (130, "interrupted")
    assert 4 < result.done < 24
    found = summarize(result.folder)
    left = next(row for row in headline(found).rows if row.name == "left")
    assert left.figure == str(24 - result.done)
    total, more = sum(row["output_tokens"] for row in rows(whole, "calls")), left.text.replace(",", "").partition("about ")[2].split()[0]
    assert int(more) + found.output_tokens == pytest.approx(total, rel=0.3)
    result = run(resume_options(tmp_path / "run"))
    assert (result.exit_code, said(result)) == (0, said(whole))


def test_nothing_is_left_of_a_run_whose_engines_do_not_open(tmp_path: Path) -> None:
    def starting() -> Listener:
        assert (tmp_path / "runs/run").exists()
        raise RunError("engine 'target' could not start")

    with pytest.raises(RunError, match="could not start"):
        run(options_of(tmp_path, "runs/run"), Observer(starting=starting))
    assert not (tmp_path / "runs").exists()
