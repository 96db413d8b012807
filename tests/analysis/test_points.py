"""Points of sweeps: they come back from their file, make curves, and say where a curve crosses the target alone."""

import math
from pathlib import Path

import pytest

from pipeline.analysis.facts import EngineFacts, stated
from pipeline.analysis.points import (
    Coordinates,
    Point,
    baselines,
    crossing,
    curves,
    point_of_run,
    read_points,
    spread,
    write_points,
)
from pipeline.analysis.sweep_tables import crossings, sweep_tables
from pipeline.errors import InputError
from pipeline.options import RunOptions
from pipeline.run.run import run
from tests.support.points import alone, point
from tests.support.runs import write_problems

pytestmark = pytest.mark.slow  # whole runs

ROOT = Path(__file__).parent.parent.parent


def test_points_come_back_from_their_file(tmp_path: Path) -> None:
    points = [
        point(3.0, params={"candidates": 5, "method": "greedy"}, accuracy=0.5),
        *alone((8, 4.0)),
    ]
    write_points(tmp_path / "points.parquet", points)
    assert read_points(tmp_path / "points.parquet") == points
    write_points(tmp_path / "points.parquet", points[1:])
    assert read_points(tmp_path / "points.parquet") == points[1:]


def test_facts_come_back_from_the_file_and_are_none_in_earlier_ones(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    facts = {"target": EngineFacts(answers="simulated", devices=("d",), flops_per_s=math.inf, kv_cache_tokens=9)}
    write_points(tmp_path / "points.parquet", [point(3.0, facts=facts)])
    [found] = read_points(tmp_path / "points.parquet")
    assert found.facts == facts
    table = pq.read_table(tmp_path / "points.parquet")
    pq.write_table(table.drop_columns(["facts", "engines"]), tmp_path / "points.parquet")
    [earlier] = read_points(tmp_path / "points.parquet")
    assert (earlier.facts, earlier.engines) == ({}, "")


def test_a_run_with_failed_chains_has_no_speed_and_is_not_compared(tmp_path: Path, faulty: Path) -> None:
    problems = write_problems(tmp_path, 8, (b'{"problem_id": "no problem"}',))  # which fails at once, on both sides
    garbage = ("engines.target.faults.garbage_share=0.02", "engines.target.max_retries=0")
    for name, settings in (("target", ()), ("speccot", garbage)):
        run(
            RunOptions(
                graph=ROOT / f"graphs/{name}.yaml",
                engines=faulty,
                input=(str(problems),),
                settings=settings,
                output=tmp_path / name / "run",
            )
        )
    made = [
        point_of_run(
            tmp_path / name / "run",
            Coordinates(system=name, graph=name, schedule="pipelined", batch_size=8, baseline=name == "target"),
            simulated=True,
            cache_kept=False,
        )
        for name in ("target", "speccot")
    ]
    whole, lost = made
    speeds = ("problems_per_s", "steady_problems_per_s", "output_tokens_per_s", "kept_tokens_per_s", "chain_p50_s")
    assert (whole.failed, whole.problems) == (1, 9)
    assert 1 < lost.failed < 9
    assert {getattr(lost, name) for name in speeds} == {None}
    assert None not in {getattr(whole, name) for name in speeds if not name.startswith("steady")}
    write_points(tmp_path / "points.parquet", made)
    assert read_points(tmp_path / "points.parquet") == made
    assert crossings(made)[0] == f"speccot, pipelined: chains failed, {lost.failed} at batch size 8: it is not compared there."
    assert crossings(made)[-1] == stated([])
    cells = [dict(zip(table.columns, table.rows[0], strict=True)) for table in sweep_tables(made)]
    assert (cells[1]["problems/s"], cells[1]["of target alone"]) == ("-", "-")
    assert cells[1]["accuracy"].endswith(f" of simulated answers ({lost.failed} chains failed)")


def test_another_file_is_no_file_of_points(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"params": ["{}"], "speed": [1.0]}), tmp_path / "other.parquet")
    with pytest.raises(InputError, match=r"other\.parquet: holds no points of a sweep"):
        read_points(tmp_path / "other.parquet")
    with pytest.raises(InputError, match="cannot be read"):
        read_points(tmp_path / "none.parquet")


def test_the_crossing_lies_between_the_sizes_around_it() -> None:
    ours = [point(4.0, 1), point(8.0, 4), point(10.0, 16)]
    found = curves([*ours, *alone((1, 2.0), (4, 4.0), (16, 20.0))])
    assert list(found) == ["target", "speccot, pipelined"]
    where = crossing(found["speccot, pipelined"], found["target"])
    assert where is not None
    assert {size: ratio.median for size, ratio in where.ratios.items()} == {1: 2.0, 4: 2.0, 16: 0.5}
    assert (where.faster, where.slower) == ((1, 4), (16,))
    assert where.at == pytest.approx(8.0)  # halfway between 4 and 16 on a logarithmic axis
    assert where.sentence() == (
        "faster than the target alone at batch sizes 1, 4, slower than the target alone at batch size 16; "
        "the curves cross near batch size 8"
    )


def test_repeats_that_overlap_tell_nothing_apart() -> None:
    ours = [point(3.0, 8, repeat=0), point(5.0, 8, repeat=1)]
    found = curves([*ours, *alone((8, 4.0))])
    where = crossing(found["speccot, pipelined"], found["target"])
    assert where is not None
    assert (where.faster, where.slower, where.at) == ((), (), None)
    assert where.sentence() == "not told apart from the target alone at batch size 8"
    assert where.ratios[8].median == 1.0


def test_sizes_that_the_target_lacks_and_runs_without_an_answer_are_left_out() -> None:
    found = curves([point(3.0, 8), point(3.0, 16), point(0.0001, 32, problems=0), *alone((8, 1.0), (32, 1.0))])
    where = crossing(found["speccot, pipelined"], found["target"])
    assert where is not None
    assert list(where.ratios) == [8, 32]
    assert crossing({4: [point(1.0, 4)]}, found["target"]) is None


def test_spread_is_over_what_is_known() -> None:
    assert spread([None, None]) is None
    found = spread([3.0, None, 1.0, 2.0])
    assert found is not None
    assert (found.median, found.low, found.high) == (2.0, 1.0, 3.0)


def test_the_tables_say_what_the_points_do() -> None:
    points = [point(4.0, 1), point(6.0, 1, repeat=1), point(8.0, 8), *alone((1, 2.5), (8, 16.0))]
    target, ours = sweep_tables(points)
    assert (target.title, ours.title) == ("target", "speccot, pipelined")
    assert ours.rows[0][:3] == ("1", "5 [4, 6]", "2 [1.6, 2.4]")
    assert ours.rows[1][:3] == ("8", "8", "0.5")
    assert crossings(points) == [
        "speccot, pipelined: faster than the target alone at batch size 1, slower than the target alone at batch size 8; "
        "the curves cross near batch size 2.83."
    ]


def on(name: str, rate: float, *, system: str = "speccot", device: str = "card") -> Point:
    facts = {role: EngineFacts(answers="simulated", devices=(device,), flops_per_s=1e12) for role in {system.partition(" ")[0], "target"}}
    return point(rate, system=f"{system} on {name}", engines=name, baseline=system == "target", facts=facts)


def test_each_engines_file_has_the_baseline_on_it_and_all_are_compared() -> None:
    points = [on("slices", 4.0), on("own", 6.0, device="two"), on("slices", 4.0, system="target"), on("own", 2.0, system="target")]
    assert baselines(curves(points)) == {
        "speccot on slices, pipelined": "target on slices",
        "speccot on own, pipelined": "target on own",
    }
    placements = sweep_tables(points)[-1]
    assert placements.title == "The same system on different engines"
    assert placements.rows == (
        ("speccot, pipelined", "8", "slices", "4", "1.00", "1.00"),
        ("speccot, pipelined", "8", "own", "6", "3.00", "1.50"),
    )
    assert crossings(points) == [
        "speccot on slices, pipelined: not told apart from the target alone at batch size 8.",
        "speccot on own, pipelined: faster than the target alone at batch size 8.",
    ]


def test_one_baseline_may_stand_against_all_engines_files() -> None:
    points = [on("slices", 4.0), on("own", 6.0), on("both", 8.0, system="target")]
    assert set(baselines(curves(points)).values()) == {"target on both"}
    assert [row[-2:] for row in sweep_tables(points)[-1].rows] == [("0.50", "0.50"), ("0.75", "0.75")]


def test_the_target_alone_on_other_engines_is_compared_with_the_first_one() -> None:
    here = [point(4.0, 8), point(2.0, 8, system="target", baseline=True)]
    points = [*here, on("eagle", 3.0, system="target")]
    assert baselines(curves(points)) == {"speccot, pipelined": "target", "target on eagle": "target"}
    assert crossings(points)[:2] == [
        "target on eagle: faster than the target alone at batch size 8.",
        "speccot, pipelined: faster than the target alone at batch size 8.",
    ]


def test_a_ratio_of_throughputs_is_shorter_text_times_tokens_per_second() -> None:
    """Of two repeats one keeps 25 tokens a problem and one 20, the target alone 50."""
    ours = [point(4.0, 8, kept_tokens_per_s=100.0), point(5.0, 8, repeat=1, kept_tokens_per_s=100.0)]
    rows = sweep_tables([*ours, point(1.0, 8, system="target", kept_tokens_per_s=50.0)])[1].rows
    assert rows[0][2:5] == ("4.5 [4, 5]", "2.22 [2, 2.5]", "2")
    unknown = [*ours, point(1.0, 8, system="target", kept_tokens_per_s=None)]
    assert sweep_tables(unknown)[1].rows[0][2:5] == ("4.5 [4, 5]", "-", "-")


def test_a_baseline_with_other_hardware_is_said() -> None:
    two = {role: EngineFacts(answers="simulated", devices=(role,), flops_per_s=1e12) for role in ("draft", "target")}
    baseline = point(1.0, 1, system="target", facts={"target": two["target"]})
    said = "scot, pipelined had 2 TFLOP/s, simulated (draft, target), the target alone 1 TFLOP/s, simulated (target)."
    assert crossings([point(3.0, 1, system="scot", facts=two), baseline])[1:2] == [said]


def test_a_point_is_what_its_run_was(tmp_path: Path) -> None:
    (tmp_path / "problems.csv").write_text("problem\n" + "".join(f"What is {i} and {i}?\n" for i in range(12)))
    done = run(
        RunOptions(
            graph=ROOT / "graphs/speccot.yaml",
            engines=ROOT / "graphs/engines/sim-2xh100.yaml",
            input=(str(tmp_path / "problems.csv"),),
            batch_size=4,
            output=tmp_path / "run",
        )
    )
    place = Coordinates(system="speccot", graph="speccot", schedule="pipelined", batch_size=4)
    found = point_of_run(tmp_path / "run", place, simulated=True, cache_kept=False)
    assert found.wall_s == done.run.wall_time_s
    assert (found.chains, found.problems, found.failed) == (12, 12, 0)
    assert found.problems_per_s == pytest.approx(12 / found.wall_s)
    assert 0 < found.tail_s < found.wall_s
    before = 12 - 3  # when the tail begins, three chains are live: the fourth has just ended
    assert found.steady_problems_per_s == pytest.approx(before / (found.wall_s - found.tail_s))
    assert found.chain_p50_s is not None
    assert found.chain_p90_s is not None
    assert found.chain_p50_s <= found.chain_p90_s
