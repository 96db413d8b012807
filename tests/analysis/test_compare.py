"""Runs side by side: figures against hand-computed ones, intervals, refusals and flags, and tables that stay tables."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from pipeline.analysis.compare import Estimate, compare, estimate
from pipeline.analysis.compare_tables import as_csv, as_json, markdown, tables
from pipeline.analysis.runs import RunTable, Text, read_run
from pipeline.errors import InputError, UsageError
from pipeline.run import RunOptions, run

ROOT = Path(__file__).parent.parent.parent


def table(name: str, latency: list[float], **fields: Any) -> RunTable:
    count = len(latency)
    ones = np.ones(count)
    values: dict[str, Any] = {
        "name": name,
        "graph": name,
        "engines": {"draft": {"model": "org/small"}, "target": {"model": "org/large"}},
        "params": {"token_budget": 100},
        "schedule": "pipelined",
        "batch_size": 8,
        "samples": 1,
        "seed": 0,
        "simulated": False,
        "status": "finished",
        "input": {"sha256": "same", "file": "data.parquet"},
        "wall_time_s": 10.0,
        "output_tokens": {"draft": 30, "target": 10},
        "problem_ids": tuple(f"p{i}" for i in range(count)),
        "correct": ones,
        "latency_s": np.array(latency),
        "thought_tokens": 40 * ones,
        "answer_tokens": 10 * ones,
        "draft_tokens": 30 * ones,
        "target_tokens": 10 * ones,
        "steps": 4 * ones,
        "accepted": 3 * ones,
        "fallbacks": ones,
        "failed": 0,
        "texts": {"drafted": Text(10, 100, 50, 1), "fallback": Text(2, 20, 10, 2)},
    }
    return RunTable(**values | fields)


BASE = table("target", [8.0, 4.0, 6.0, 2.0])


def test_figures_are_those_of_the_definitions() -> None:
    fast = table("speccot", [4.0, 2.0, 3.0, 1.0], correct=np.array([1.0, 0.0, 1.0, 1.0]))
    base, ours = compare([BASE, fast]).runs
    assert ours.speed_up == Estimate(2.0, 2.0, 2.0)  # twice as fast on every problem: no draw of problems says otherwise
    assert (ours.accuracy.value, ours.accuracy_gain.value) == (0.75, -0.25)
    assert ours.accuracy_gain.low is not None
    assert ours.accuracy_gain.low < -0.25 <= ours.accuracy_gain.high <= 0.0  # type: ignore[operator]
    assert (ours.tokens.value, ours.fallback_rate.value, ours.draft_share.value) == (50.0, 0.25, 0.75)
    assert ours.tokens_per_s == 20.0
    assert ours.reflective == {"drafted": 20.0, "fallback": 200.0}
    assert base.speed_up.value == 1.0


def test_an_interval_holds_the_mean_in_about_95_of_100_cases() -> None:
    noise = np.random.default_rng(1)
    inside = 0
    for _ in range(200):
        found = estimate(lambda values: float(values.mean()), noise.normal(size=60))
        assert found.low is not None
        assert found.high is not None
        inside += found.low <= 0.0 <= found.high
    assert 175 <= inside <= 199


def test_differences_are_over_the_problems_both_have() -> None:
    part = table("part", [4.0, 2.0], problem_ids=("p1", "p3"))
    comparison = compare([BASE, part])
    assert comparison.runs[1].speed_up.value == pytest.approx((4.0 + 2.0) / (4.0 + 2.0))
    assert any("of its 2 problems 2 are the baseline's" in flag.what for flag in comparison.flags)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"seed": 3}, "seed is 3, the baseline's 0"),
        ({"batch_size": 1}, "batch_size is 1, the baseline's 8"),
        ({"status": "interrupted"}, "it is interrupted: only finished chains count"),
        ({"failed": 2}, "2 chains failed or were cancelled"),
        ({"simulated": True}, "one of the two is simulated, the other measured"),
        ({"params": {"token_budget": 50}}, "token_budget is 50, the baseline's 100"),
        ({"engines": {"target": {"model": "org/other"}}}, "its target is other, the baseline's large"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_else_differs_is_said(fields: dict[str, Any], says: str) -> None:
    flags = compare([BASE, table("other", [1.0, 1.0, 1.0, 1.0], **fields)]).flags
    assert [flag.what for flag in flags if says in flag.what], flags
    assert {flag.run for flag in flags} == {"other"}


def test_other_data_is_refused_by_name() -> None:
    other = table("other", [1.0], input={"sha256": "another", "file": "more.parquet"})
    with pytest.raises(UsageError, match=r"other solved more\.parquet and target data\.parquet, which differ"):
        compare([BASE, other])
    with pytest.raises(UsageError, match="no finished problem in common"):
        compare([BASE, table("other", [1.0], problem_ids=("q",))])


def test_the_baseline_is_named_or_the_target_alone() -> None:
    other = table("speccot", [1.0, 1.0, 1.0, 1.0])
    assert compare([other, BASE]).baseline == "target"
    assert compare([other, BASE], "speccot").baseline == "speccot"
    assert compare([other]).baseline == "speccot"
    with pytest.raises(UsageError, match="--baseline scot: no such run or graph here; there are speccot, target"):
        compare([other, BASE], "scot")
    with pytest.raises(UsageError, match="target is named twice"):
        compare([BASE, BASE])


def test_batch_sizes_and_thresholds_get_tables_of_their_own() -> None:
    runs = [table(f"s-{n}", [1.0] * 4, graph="speccot", batch_size=n, wall_time_s=100.0 / n) for n in (1, 8)]
    runs += [table(f"r-{t}", [1.0] * 4, graph="specreason", params={"threshold": t}) for t in (7, 5)]
    made = {one.title: one for one in tables(compare(runs))}
    batches = next(one for title, one in made.items() if title.startswith("speccot, pipelined"))
    assert [row[0] for row in batches.rows] == ["1", "8"]
    assert [row[3] for row in batches.rows] == ["1.00", "8.00"]
    thresholds = next(one for title, one in made.items() if title.startswith("specreason: by threshold"))
    assert [row[0] for row in thresholds.rows] == ["5", "7"]


def test_names_stay_in_their_cells() -> None:
    sly = structs.replace(table("=1+1|x", [1.0] * 4), graph="two\nlines")
    comparison = compare([BASE, sly])
    text = markdown(comparison)
    assert "=1+1\\|x" in text
    rows = [line for line in text.splitlines() if line.startswith("| =1")]
    assert all(len(line.replace("\\|", "").split("|")) == len(rows[0].replace("\\|", "").split("|")) for line in rows[:1])
    read = list(csv.DictReader(io.StringIO(as_csv(comparison))))
    assert read[1]["run"] == "'=1+1|x"
    assert float(read[1]["speed_up"]) == 5.0
    assert json.loads(as_json(comparison))["runs"][1]["speed_up"]["value"] == 5.0


def test_run_folders_alone_are_enough(tmp_path: Path) -> None:
    for graph, samples in (("target", 1), ("speccot", 2)):
        options = RunOptions(
            graph=ROOT / f"graphs/{graph}.yaml",
            input=ROOT / "datasets/arith/test.parquet",
            engines=ROOT / "graphs/engines/sim-2xh100.yaml",
            limit=20,
            samples=samples,
            output=tmp_path / graph,
        )
        assert run(options).exit_code == 0
    comparison = compare([read_run(tmp_path / name) for name in ("target", "speccot")])
    target, speccot = comparison.runs
    assert (target.problems, speccot.problems, speccot.samples) == (20, 20, 2)
    assert target.fallback_rate.value is None
    assert speccot.fallback_rate.value is not None
    assert speccot.draft_tokens.value is not None
    assert speccot.draft_tokens.value > 0
    assert {flag.what for flag in comparison.flags} >= {"samples is 2, the baseline's 1"}


def test_what_is_no_run_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"run\.json: cannot be read: no such file or directory; name a run folder"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text('{"a": 1}')
    with pytest.raises(InputError, match=r"is no run\.json of this program: it has no `graph`"):
        read_run(tmp_path)
