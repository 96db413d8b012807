"""Curves over the batch size: which baseline a system is compared with, where curves cross, what the table marks, and a point's figures."""

from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from pipeline.analysis.compare import Ends
from pipeline.analysis.curves import (
    TAIL,
    Label,
    Measured,
    advice,
    best_baseline,
    crossing,
    curves,
    ratios,
    read_points,
    sweep_table,
    unlike,
    verdict,
)
from pipeline.errors import InputError
from pipeline.store.query import Query
from tests.analysis.conftest import run_of
from tests.support.sweeps import sweep
from tests.support.traces import chain, write

ALONE = {"target": {}}


def point(rate: float, size: int = 8, *, system: str = "speccot", engines: str = "", repeat: int = 0, failed: int = 0) -> Measured:
    """A point of ten problems, with this many problems a second."""
    label = Label(system=system, engines=engines, batch_size=size, repeat=repeat, baseline=system == "target")
    ends = Ends(finished=10, failed=failed, lost=failed)
    made = {"draft": {"model": "small"}, "target": {}} if system != "target" else ALONE
    run = run_of(system, [1.0] * 10, engines=made, batch_size=size, mean_wall_time_s=10 / rate, ends=ends)
    return Measured(label=label, run=run, tail_s=1.0, steady_problems_per_s=None)


def alone(*rates: tuple[int, float], engines: str = "") -> list[Measured]:
    return [point(rate, size, system="target", engines=engines) for size, rate in rates]


def test_a_sentence_says_where_a_curve_is_faster_and_where_the_curves_cross() -> None:
    points = [point(2.0, 1), point(6.0, 8), point(10.0, 8, repeat=1), point(9.0, 32), *alone((1, 1.0), (8, 16.0), (32, 8.0))]
    points.append(point(10.0, 32, system="target", repeat=1))
    found = curves(points)
    assert list(found) == ["target", "speccot"]
    over = ratios("speccot", found)
    assert [(each.median, each.low, each.high) for each in over.values()] == [(2.0, 2.0, 2.0), (0.5, 0.375, 0.625), (1.0, 0.9, 1.125)]
    assert crossing(over) == pytest.approx(8**0.5)
    said = "faster at batch size 1 (2.00 times), slower at batch size 8 (0.50 times), not told apart at batch size 32 (1.00 times)"
    assert advice(points) == [f"speccot against the target alone: {said}; the curves cross near batch size 2.83."]
    assert verdict("target", found) == ""
    assert crossing({1: over[1], 8: over[32]}) is None, "it is not slower anywhere for certain"


def test_sizes_that_the_baseline_lacks_and_points_with_failed_chains_are_not_compared() -> None:
    points = [point(3.0, 8), point(3.0, 16), point(3.0, 32, failed=2), *alone((8, 1.0), (32, 1.0))]
    assert list(ratios("speccot", curves(points))) == [8]
    rows = {row[:2]: row[2:] for row in sweep_table(points).rows}
    assert rows["32", "speccot"] == ("-", "-", "-", "-", "100.0% (2 chains failed)")
    assert rows["16", "speccot"][:2] == ("3", "-")
    facts = {"target": {"answers": "simulated"}}
    made = [
        structs.replace(each, run=structs.replace(each.run, file=structs.replace(each.run.file, engine_facts=facts))) for each in points
    ]
    assert [row[-1] for row in sweep_table(made).rows][-1] == "100.0% of simulated answers (2 chains failed)"
    assert "; failed chains: 2; they count as wrong and are in no other figure; because chains failed, it has no" in next(unlike(points))


def test_the_fastest_of_a_batch_size_is_bold_and_its_best_baseline_marked() -> None:
    points = [point(4.0, 1), point(6.0, 1, repeat=1), point(8.0, 8), *alone((1, 2.5), (8, 16.0))]
    table = sweep_table([*points, *alone((1, 3.0), (8, 2.0), engines="eagle")])
    assert [row[:4] for row in table.rows] == [
        ("1", "target", "2.5", "0.83"),
        ("1", "target on eagle *", "3", "-"),
        ("1", "speccot", "5 [4, 6]", "1.67"),
        ("8", "target *", "16", "-"),
        ("8", "target on eagle", "2", "0.12"),
        ("8", "speccot", "8", "0.50"),
    ]
    assert table.bold == (2, 3)
    assert [row[1] for row in sweep_table(points).rows[:2]] == ["target *", "speccot"]


def test_a_system_is_compared_with_the_best_baseline_that_it_could_be_replaced_by() -> None:
    """That on its engines, and those on engines on which no other system runs."""
    places = [point(4.0, engines="slices"), point(6.0, engines="own"), *alone((8, 5.0), engines="slices"), *alone((8, 2.0), engines="own")]
    found = curves(places)
    assert [best_baseline(f"speccot on {name}", found, 8) for name in ("slices", "own")] == ["target on slices", "target on own"]
    assert best_baseline("target on own", found, 8) is None, "another machine"
    more = curves([*places, *alone((8, 3.0), engines="eagle")])
    assert best_baseline("speccot on own", more, 8) == "target on eagle"
    assert [said.partition(":")[0] for said in advice([*places, *alone((8, 3.0), engines="eagle")])] == [
        "speccot on own against target on eagle",
        "speccot on slices against target on slices",
        "target on own against target on eagle",
        "target on eagle against target on slices",
    ]


@pytest.mark.parametrize(("lives", "size", "tail_s"), [("05 08 5a", 2, 2), ("05 08 6a", 2, 2), ("03 04 05", 64, 2), ("04 44", 2, 0)])
def test_the_tail(tmp_path: Path, lives: str, size: int, tail_s: float) -> None:
    """Lives by their start and end."""
    rows = [chain(life, int(life[0], 16), int(life[1], 16)) for life in lives.split()]
    with Query(write(tmp_path, chains=rows)) as db:
        assert next(db.stream(TAIL, batch_size=size))[0] == tail_s


@pytest.mark.slow
def test_a_point_is_what_its_run_was(tmp_path: Path) -> None:
    """Before its tail as many chains lived as the batch size."""
    folder = sweep(tmp_path, batch_sizes=(4,)).folder
    [points] = read_points(folder).values()
    for each in points:
        before = 12 - 3  # when the tail begins, three chains are live: the fourth has just ended
        assert each.run.wall_time_s is not None
        assert each.run.problems_per_s == pytest.approx(12 / each.run.wall_time_s)
        assert each.steady_problems_per_s == pytest.approx(before / (each.run.wall_time_s - each.tail_s))
    assert np.array_equal(points[0].run.sums["problem"], points[1].run.sums["problem"])
    (folder / "runs/speccot_b4_r0/run.json").unlink()
    assert [[each.label.system for each in points] for points in read_points(folder).values()] == [["target"]]
    (folder / "runs/target_b4_r0/run.json").unlink()
    with pytest.raises(InputError, match="has no finished point: there is nothing to show"):
        read_points(folder)
