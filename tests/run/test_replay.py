"""Recorded runs that are run again without their models: what was recorded comes back, what was never generated is counted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from msgspec import structs

from pipeline.cli.show import failures
from pipeline.run.prepare import resume_options
from pipeline.run.run import SessionResult, run
from pipeline.store.run_file import RunFile
from tests.support import runs
from tests.support.runs import write_problems

pytestmark = pytest.mark.slow  # whole runs

GRAPHS = ("speccot", "specreason", "scot", "best-of-n", "target", "gated", "routed", "triggered")
PROBLEMS = 6
CHAINS = 2 * PROBLEMS


def solve(folder: Path, graph: str, **other: Any) -> SessionResult:
    return runs.solve(folder, graph, graph, **{"batch_size": 4, "samples": 2, "input": folder / "problems.jsonl"} | other)


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    """A table without the name and the moment of the run, by chain and order."""
    start = json.loads((folder / "run.json").read_bytes())["sessions"][0]["started_unix_ns"]
    found = []
    for row in pq.read_table(folder / table).to_pylist():
        row = {key: value - start if key.endswith("_unix_ns") else value for key, value in row.items() if key != "run_id"}
        found.append(row)
    return sorted(found, key=lambda row: (row["chain_id"], row.get("step_index", 0), row.get("call_index", 0)))


def said(folder: Path) -> dict[str, Any]:
    """What the chains said, and how they came to it."""
    keys = ("answer_text", "stop_reason", "steps", "accepted_steps", "output_tokens", "calls")
    return {row["chain_id"]: [row[key] for key in keys] for row in rows(folder, "chains") if row["error_type"] is None}


def unanswered(folder: Path) -> dict[str, str]:
    return {row["chain_id"]: row["error_stage"] for row in rows(folder, "chains") if row["error_type"] == "NeverGenerated"}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run folder of a graph, simulated once."""
    folder = tmp_path_factory.mktemp("recorded")
    write_problems(folder, PROBLEMS)

    def of(graph: str) -> Path:
        if not (folder / graph).exists():
            assert solve(folder, graph).exit_code == 0
        return folder / graph

    return of


def replay(run_folder: Path, output: Path, **other: Any) -> SessionResult:
    return solve(run_folder.parent, run_folder.name, engines=Path(f"replay:{run_folder}"), output=output, **other)


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_simulated_run_comes_back_to_the_last_bit(recorded: Callable[[str], Path], tmp_path: Path, graph: str) -> None:
    before = recorded(graph)
    result = replay(before, tmp_path / "again")
    assert result.exit_code == 0
    for table in ("chains", "steps", "calls"):
        assert rows(result.folder, table) == rows(before, table)
    old, other = RunFile.read(before), result.run
    assert (other.totals, other.wall_time_s) == (old.totals, old.wall_time_s)
    assert other.engine_statistics == old.engine_statistics
    assert {facts["replay"] for facts in other.engine_facts.values()} == {str(before)}


@pytest.mark.parametrize(("graph", "schedule", "batch_size"), [("speccot", "lockstep", CHAINS), ("specreason", "pipelined", 1)])
def test_another_schedule_and_batch_size_are_predicted_exactly(
    recorded: Callable[[str], Path], tmp_path: Path, graph: str, schedule: str, batch_size: int
) -> None:
    before = recorded(graph)
    truth = solve(before.parent, graph, schedule=schedule, batch_size=batch_size, output=tmp_path / "truth")
    guess = replay(before, tmp_path / "guess", schedule=schedule, batch_size=batch_size)
    assert said(guess.folder) == said(truth.folder) == said(before)
    assert guess.run.wall_time_s == truth.run.wall_time_s != RunFile.read(before).wall_time_s


@pytest.mark.parametrize("threshold", [3, 9])
def test_another_threshold_answers_the_chains_that_go_the_recorded_way(
    recorded: Callable[[str], Path], tmp_path: Path, threshold: int
) -> None:
    before, settings = recorded("specreason"), (f"threshold={threshold}",)
    truth = solve(before.parent, "specreason", settings=settings, output=tmp_path / "truth")
    result = replay(before, tmp_path / "guess", settings=settings)
    answered, missing = said(result.folder), unanswered(result.folder)
    assert missing
    assert len(answered) + len(missing) == CHAINS
    assert {chain: said(truth.folder)[chain] for chain in answered} == answered
    assert all(said(truth.folder)[chain] != said(before)[chain] for chain in missing)
    assert result.exit_code == 3
    stages = {stage: list(missing.values()).count(stage) for stage in missing.values()}
    assert result.run.totals.errors == {"NeverGenerated": stages}
    found = failures(result.folder)
    assert sum(failure["count"] for failure in found) == len(missing)
    assert {(failure["stage"], failure["message"].partition(": ")[0]) for failure in found} == {
        (stage, "needs text that was never generated") for stage in stages
    }


def test_fewer_problems_samples_and_candidates_need_no_new_text_as_far_as_they_go(recorded: Callable[[str], Path], tmp_path: Path) -> None:
    before = recorded("speccot")
    few = replay(before, tmp_path / "few", limit=4, samples=1)
    assert few.exit_code == 0
    assert said(few.folder) == {chain: told for chain, told in said(before).items() if chain in {f"p{i}#0" for i in range(4)}}
    three = replay(before, tmp_path / "three", settings=("candidates=3",))
    firsts = {(row["chain_id"], row["step_index"]): row for row in rows(before, "steps")}
    drafted = [row for row in rows(three.folder, "calls") if row["stage"] == "draft"]
    assert drafted
    assert {row["choice_count"] for row in drafted} == {3}
    for row in drafted:
        assert [len(ids) for ids in row["output_token_ids"]] == firsts[row["chain_id"], row["step_index"]]["candidate_tokens"][:3]
    assert set(unanswered(three.folder).values()) == {"verify"}  # other candidates to choose from are another question
    more = replay(before, tmp_path / "more", settings=("candidates=7",))
    assert set(unanswered(more.folder).values()) == {"draft"}
    assert "the call asks for 7 candidates, but 5 were recorded" in failures(more.folder)[0]["message"]


def test_a_replay_goes_on_after_it_was_stopped(recorded: Callable[[str], Path], tmp_path: Path) -> None:
    settings = ("threshold=9",)
    whole = replay(recorded("specreason"), tmp_path / "whole", settings=settings)
    part = replay(recorded("specreason"), tmp_path / "part", settings=settings, limit=3)
    assert part.run.options.engines == Path(f"replay:{recorded('specreason')}")
    result = run(structs.replace(resume_options(part.folder), limit=None))
    assert said(result.folder) == said(whole.folder)
    assert result.run.totals == whole.run.totals
    assert run(resume_options(whole.folder)).nothing_to_do
