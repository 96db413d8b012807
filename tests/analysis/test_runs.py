"""Tables of runs against plain loops over their rows, and runs that differ in the seed alone as one run with the chains of all."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from pipeline.analysis.compare.figures import Compared
from pipeline.analysis.compare.runs import RunTable, read_run, read_runs
from pipeline.analysis.quality.samples import interval
from pipeline.store.run_file import RunFile
from tests.support.golden import whole
from tests.support.killed import cut
from tests.support.runs import solve, write_problems

pytestmark = pytest.mark.slow  # whole runs

MEANS = ("latency_s", "thought_tokens", "answer_tokens", "steps", "accepted", "fallbacks")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two samples of nine rows, of which one holds no problem and three have no reference: of two seeds, one of them twice, of
    whole responses, and with another batch size in its `run.json`."""
    place = tmp_path_factory.mktemp("runs")
    problems = write_problems(place, 5, extra=(*(b'{"problem": "Problem %d?"}' % number for number in range(3)), b"{"))
    for name, seed in (("a", 0), ("b", 1), ("response", 0)):
        solve(place, name, "target" if name == "response" else "speccot", input=problems, samples=2, seed=seed)
    for name in ("again", "larger"):
        shutil.copytree(place / "b", place / name)
    card = msgspec.json.decode((place / "larger/run.json").read_bytes())
    (place / "larger/run.json").write_bytes(msgspec.json.encode(card | {"options": card["options"] | {"batch_size": 99}}))
    return place


def by_hand(folder: Path) -> dict[str, Any]:
    """Figures by problem, from all rows of a run at once."""
    chains, calls, steps = (whole(folder, table).to_pylist() for table in ("chains", "calls", "steps"))
    finishing = RunFile.read(folder).plan.finishing
    done = {row["chain_id"]: row for row in chains if row["stop_reason"] not in ("error", "cancelled")}
    failed = [row for row in chains if row["stop_reason"] == "error"]
    found: dict[str, dict[str, float]] = {}
    for row in done.values():
        mine = found.setdefault(row["problem_id"], dict.fromkeys(("chains", "graded", "right", *MEANS), 0.0))
        values = {"chains": 1, "graded": row["correct"] is not None, "right": bool(row["correct"]), "latency_s": row["chain_time_s"]}
        values |= {"thought_tokens": row["thought_tokens"], "steps": row["steps"]}
        values |= {"accepted": row["accepted_steps"], "fallbacks": row["fallback_steps"]}
        values["answer_tokens"] = sum(
            call["output_tokens"] for call in calls if call["chain_id"] == row["chain_id"] and call["stage"] in finishing
        ) - sum(len(step["step_token_ids"]) for step in steps if step["chain_id"] == row["chain_id"] and step["stage"] in finishing)
        for name, value in values.items():
            mine[name] += value
    return {"problems": dict(sorted(found.items())), "failed": len(failed)}


def test_details_are_of_the_chains_that_were_over_when_a_run_was_read(runs: Path, tmp_path: Path) -> None:
    cut(runs / "a", tmp_path / "before", 0.6)
    shutil.copytree(tmp_path / "before", tmp_path / "running")
    expected, found = read_run(tmp_path / "before"), read_run(tmp_path / "running")
    shutil.rmtree(tmp_path / "running")
    shutil.copytree(runs / "a", tmp_path / "running")  # it went on
    assert 0 < found.chains.sum() < read_run(runs / "a").chains.sum()
    assert found.details.thinking_s.tolist() == expected.details.thinking_s.tolist()
    assert found.details.texts.keys() == expected.details.texts.keys()
    assert found.details.texts["drafted"].tokens.tolist() == expected.details.texts["drafted"].tokens.tolist()


@pytest.mark.parametrize("name", ["a", "response"])
def test_a_table_is_what_plain_loops_find(runs: Path, name: str) -> None:
    expected, found = by_hand(runs / name), read_run(runs / name)
    assert found.problem_ids == tuple(expected["problems"])
    assert (found.failed, found.cancelled, found.lost) == (expected["failed"], 0, 0)
    for column in ("chains", "graded", "right"):
        assert getattr(found, column).tolist() == [each[column] for each in expected["problems"].values()]
    for column in MEANS:
        assert getattr(found, column) == pytest.approx([each[column] / each["chains"] for each in expected["problems"].values()]), column


def test_runs_that_differ_in_the_seed_alone_are_one(runs: Path) -> None:
    names = ("a", "response", "b", "again", "larger")
    apart = {run.name: run for run in read_runs([runs / name for name in names])}
    found = read_runs([runs / name for name in names], pooled=True)
    assert [run.name for run in found] == ["a (+1 seeds)", "response", "again", "larger"]
    one, parts = found[0], [apart["a"], apart["b"]]
    assert (one.pooled, one.seeds, one.problem_ids) == (("a", "b"), (0, 1), apart["a"].problem_ids)
    assert one.wall_time_s == pytest.approx(np.mean([run.wall_time_s for run in parts]))
    assert (one.failed, one.lost) == (parts[0].failed * 2, 0)
    for column in ("chains", "graded", "right"):
        assert getattr(one, column).tolist() == sum(getattr(run, column) for run in parts).tolist()
    for column in MEANS:
        assert getattr(one, column) == pytest.approx(weighed(parts, [getattr(run, column) for run in parts]))
    assert one.details.thinking_s == pytest.approx(weighed(parts, [run.details.thinking_s for run in parts]))
    assert one.details.texts["drafted"].tokens.tolist() == sum(run.details.texts["drafted"].tokens for run in parts).tolist()
    problem = np.repeat(np.arange(len(one.graded)), one.graded.astype(int))
    correct = np.concatenate([np.arange(graded) < right for graded, right in zip(one.graded, one.right, strict=True)])
    bounds, accuracy = interval(problem, correct), Compared(one, one).accuracy
    assert bounds is not None
    assert (accuracy.low, accuracy.high) == (bounds.low, bounds.high)
    speeds = [Compared(run, run).kept_tokens_per_s for run in parts]
    assert min(map(float, filter(None, speeds))) <= (Compared(one, one).kept_tokens_per_s or 0) <= max(map(float, filter(None, speeds)))


def weighed(runs: list[RunTable], columns: list[Any]) -> Any:
    """The mean over all chains of a problem, from those of each run."""
    total = sum(run.chains for run in runs)
    return sum(column * run.chains for column, run in zip(columns, runs, strict=True)) / total
