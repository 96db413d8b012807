"""Runs side by side: pooled seeds, the baseline, refusals, flags and tables."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import structs

from pipeline.analysis.compare import Ends, brief, compare, read_runs, speeds
from pipeline.analysis.figures import NOTHING
from pipeline.analysis.tables import Table, as_json
from pipeline.errors import UsageError
from tests.analysis.conftest import run_of
from tests.support.runs import solve_short, write_problems

BASE = [8.0, 4.0, 6.0, 2.0]
ONES = [1.0, 1.0, 1.0, 1.0]
ALONE: dict[str, Any] = {"target": {}}


def test_a_speed_up_is_shorter_text_times_speed() -> None:
    """Of half as many tokens in a quarter of the time each token takes half as long, on every problem."""
    fast = run_of("speccot", [latency / 4 for latency in BASE], sums={"thought_tokens": np.full(4, 15.0)})
    found = compare([run_of("target", BASE), fast])
    over = found.over_baseline(fast)
    assert [over[name].value for name in ("speed_up", "token_factor", "rate_factor")] == [4.0, 2.0, 2.0]
    assert found.over_baseline(found.runs[0])["speed_up"].value == 1.0
    assert (fast.figures["fallback_rate"].value, fast.figures["draft_step_share"].value, fast.kept_tokens_per_s) == (0.25, 0.75, 10.0)
    assert run_of("target", BASE, engines=ALONE).figures["draft_step_share"] == NOTHING


def test_a_failed_chain_is_wrong_and_in_no_other_figure() -> None:
    """The third problem's only chain failed."""
    sums = {"chains": [1, 1, 0, 1], "right": [1, 1, 0, 1], "thought_tokens": [40, 40, 0, 40], "answer_tokens": [10, 10, 0, 10]}
    run = run_of("speccot", [4.0, 2.0, 0.0, 1.0], sums=sums, ends=Ends(finished=3, failed=1, lost=1))
    over = compare([run_of("target", BASE), run]).over_baseline(run)
    assert (run.figures["accuracy"].value, over["accuracy_gain"].value, run.problems) == (0.75, -0.25, 3)
    assert (run.figures["tokens"].value, run.figures["latency_s"].value) == (50.0, pytest.approx(7 / 3))
    assert (over["speed_up"].value, over["problems"], run.wall_time_s) == (2.0, 3, None)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"seed": 3}, "seed is 3, the baseline's 0"),
        ({"batch_size": 1}, "batch_size is 1, the baseline's 8"),
        ({"status": "interrupted"}, "it is interrupted: only finished chains count"),
        ({"ends": Ends(4, 2)}, "failed chains: 2; they count as wrong and are in no other figure"),
        ({"virtual_time": True}, "one of the two is simulated, the other measured"),
        ({"admission": "batch"}, "admission is batch, the baseline's cache"),
        ({"engines": {"draft": {"model": "small"}, "target": {"model": "other"}}}, "engines.target.model is other, the baseline's large"),
        ({"more": {"prompts": {"system": "Think."}}}, "`prompts.system` differs from the baseline's"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_else_differs_is_said(fields: dict[str, Any], says: str) -> None:
    assert compare([run_of("target", BASE), run_of("other", ONES, **fields)]).flags == {"target": (), "other": (says,)}


def test_runs_over_several_data_sets_are_compared_within_each() -> None:
    other: dict[str, Any] = {"sha256": "another", "read": "folder/test.parquet"}
    runs = [
        run_of("target", BASE),
        run_of("fast", [4.0] * 4),
        run_of("t2", [9.0] * 4, graph="target", **other),
        run_of("f2", [3.0] * 4, **other),
    ]
    found = compare(runs)
    assert found.baselines == {"data": "target", "folder": "t2"} == compare(runs, "t2").baselines
    assert [found.over_baseline(run)["speed_up"].value for run in found.runs] == [1.0, 1.25, 1.0, 3.0]
    assert "data" in speeds(found).columns
    with pytest.raises(UsageError, match="--baseline fast: no such run or graph here over folder"):
        compare(runs, "fast")
    with pytest.raises(UsageError, match="no finished problem in common"):
        compare([runs[0], run_of("other", [1.0], sums={"problem": [99]})])


def test_the_baseline_is_named_or_the_target_alone_or_drafts_nothing() -> None:
    base, other, alone = run_of("target", BASE), run_of("speccot", ONES), run_of("large-alone", BASE, engines=ALONE)
    again, one = (structs.replace(other, name=name) for name in ("again", "one"))

    def baseline(runs: list[Any], named: str | None = None) -> str:
        return next(iter(compare(runs, named).baselines.values()))

    assert baseline([other, base]) == "target"
    assert baseline([other, alone]) == "large-alone"
    assert baseline([other]) == baseline([other, base], "speccot") == "speccot"
    assert baseline([base, other, again], "again") == "again"
    with pytest.raises(UsageError, match="--baseline scot: no such run or graph here; there are speccot, target"):
        compare([other, base], "scot")
    with pytest.raises(UsageError, match="--baseline speccot: again, one are all of that graph; name one of them"):
        compare([again, one, base], "speccot")


def test_a_comparison_is_a_table_sentences_and_json() -> None:
    part = run_of("part", [4.0, 2.0], sums={"problem": [1, 3], "right": [1, 0]})
    found = compare([run_of("target", BASE), part])
    table, said, flags = brief(found)
    assert isinstance(table, Table)
    assert [row[4] for row in table.rows] == ["100.0% (too few)", "50.0% (too few)"]
    assert table.rows[1][-4:] == ("0.50", "1 (too few)", "1 (too few)", "1 (too few)")
    assert said == "part is 0.50 times as fast as target, accuracy -50.0 points"
    assert "2 of its 2 problems are also the baseline's" in str(flags)
    simulated: dict[str, Any] = {"engine_facts": {"target": {"answers": "simulated"}}, "engines": ALONE}
    runs = [run_of("none", BASE, sums={"right": [0] * 4}, **simulated), run_of("some", BASE, **simulated)]
    assert [row[4] for row in speeds(compare(runs)).rows] == ["-", "100.0% (too few) of simulated answers"], "none right: made up"
    written = json.loads(as_json(found.as_dict()))
    assert (written["baselines"], written["runs"][1]["over_baseline"]["speed_up"]["value"]) == ({"data": "target"}, 1.0)


@pytest.mark.slow
def test_runs_that_differ_in_the_seed_alone_are_one(tmp_path: Path) -> None:
    problems = write_problems(tmp_path, 5)
    for seed, name in enumerate("ab"):
        solve_short(tmp_path, name, input=problems, samples=2, seed=seed)
    for name in ("again", "larger"):
        shutil.copytree(tmp_path / "b", tmp_path / name)
    card = msgspec.json.decode((tmp_path / "larger/run.json").read_bytes())
    (tmp_path / "larger/run.json").write_bytes(msgspec.json.encode(card | {"options": card["options"] | {"batch_size": 99}}))
    folders = [tmp_path / name for name in ("a", "b", "again", "larger")]
    a, b, *_ = read_runs(folders)
    pooled = read_runs(folders, pooled=True)
    assert [(run.name, run.seeds) for run in pooled] == [("a (+1 seeds)", (0, 1)), ("again", (1,)), ("larger", (1,))]
    assert [run.pooled for run in pooled] == [("a", "b"), (), ()]
    one = pooled[0]
    assert one.sums["chains"].sum() == a.sums["chains"].sum() + b.sums["chains"].sum() == one.ends.finished
    assert one.sums["latency_s"] == pytest.approx((a.sums["latency_s"] + b.sums["latency_s"]) / 2)
    assert one.wall_time_s == pytest.approx((a.mean_wall_time_s + b.mean_wall_time_s) / 2)
    with pytest.raises(UsageError, match="is given twice"):
        read_runs([tmp_path / "a", tmp_path / "a"])
