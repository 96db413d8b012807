"""Whole sweeps on simulated engines: which points are run, what is in them, and that a sweep goes on where it ended."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from pipeline.analysis.points import Point, read_points
from pipeline.analysis.summary import summarize
from pipeline.errors import GraphError, UsageError
from pipeline.options import RunOptions
from pipeline.run.observer import Observer
from pipeline.run.prepare import load_plan
from pipeline.run.run import run
from pipeline.store.run_file import RunFile
from pipeline.sweep.plan import SweepOptions, planned_points
from pipeline.sweep.points import prepare_sweep
from pipeline.sweep.sweep import SweepResult, start_or_resume, sweep
from pipeline.sweep.systems import plan_sweep, read_systems
from tests.support.paths import SIM
from tests.support.runs import write_problems

pytestmark = pytest.mark.slow  # whole runs

ROOT = Path(__file__).parent.parent.parent
SPECCOT, SPECREASON, TARGET = (ROOT / f"graphs/{name}.yaml" for name in ("speccot", "specreason", "target"))


def options(folder: Path, **changes: Any) -> SweepOptions:
    given: dict[str, Any] = {
        "graphs": (SPECCOT,),
        "input": changes.pop("input", None) or write_problems(folder),
        "engines": (SIM,),
        "batch_sizes": (1, 4),
        "output": folder / "sweep",
        "workers": 1,
    }
    return SweepOptions(**given | changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    folder = tmp_path_factory.mktemp("whole")
    return sweep(options(folder, vary={"candidates": ("1", "5")}, schedules=("pipelined", "lockstep"), repeats=2))


def by_curve(points: list[Point]) -> dict[tuple[str, int], Point]:
    return {(point.curve, point.batch_size): point for point in points}


def test_every_combination_is_a_point_and_the_target_alone_is_there(whole: SweepResult) -> None:
    found = by_curve(whole.points)
    curves = ["target"] + [f"speccot candidates={n}, {how}" for n in (1, 5) for how in ("pipelined", "lockstep")]
    assert sorted(found) == sorted((curve, size) for curve in curves for size in (1, 4))
    assert len(whole.points) == whole.planned == len(found)  # simulated: no repeats, they would be equal
    assert whole.exit_code == 0
    assert {(p.simulated, p.chains, p.cache_kept) for p in whole.points} == {(True, 12, False)}
    assert found["speccot candidates=5, pipelined", 4].params == {"candidates": 5}
    assert found["speccot candidates=5, pipelined", 4].accuracy == found["speccot candidates=5, lockstep", 4].accuracy
    assert read_points(whole.folder / "points.parquet") == whole.points


def test_a_point_is_the_run_that_the_same_options_make(whole: SweepResult, tmp_path: Path) -> None:
    alone = run(
        RunOptions(
            graph=SPECCOT,
            input=(str(write_problems(tmp_path)),),
            engines=SIM,
            settings=("candidates=5",),
            batch_size=4,
            output=tmp_path / "r",
        )
    )
    point = by_curve(whole.points)["speccot candidates=5, pipelined", 4]
    assert point.wall_s == pytest.approx(alone.run.wall_time_s, rel=1e-9)
    folder = whole.folder / "runs/speccot_candidates=5_pipelined_b4_r0"
    answers = [
        pq.read_table(each / "chains", columns=["chain_id", "answer"]).sort_by("chain_id").to_pylist() for each in (folder, alone.folder)
    ]
    assert answers[0] == answers[1]
    assert RunFile.read(folder).engine_statistics == alone.run.engine_statistics


def test_points_alternate_their_direction(tmp_path: Path) -> None:
    given = options(tmp_path, batch_sizes=(1, 2))
    systems = read_systems(given)
    names = [each.name for each in planned_points(systems, given, 2)]
    first = ["target_pipelined_b1", "speccot_pipelined_b1", "target_pipelined_b2", "speccot_pipelined_b2"]
    assert names == [f"{name}_r0" for name in first] + [f"{name}_r1" for name in reversed(first)]


def test_graphs_need_not_have_the_same_params(tmp_path: Path) -> None:
    given = options(tmp_path, graphs=(SPECCOT, SPECREASON), vary={"threshold": ("3", "7")}, settings=("candidates=2", "step_tokens=64"))
    found = {system.label: system.plan.params for system in read_systems(given)}
    assert list(found) == ["target", "speccot", "specreason threshold=3", "specreason threshold=7"]
    assert found["speccot"]["candidates"] == 2
    assert found["specreason threshold=3"]["step_tokens"] == 64


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"vary": {"candidatez": ("1",)}},
            UsageError,
            "--vary candidatez: speccot has no such param; there are adapter, answer_boxed, answer_confident",
        ),
        ({"vary": {"candidates": ("1", "1")}}, UsageError, "a value is named twice"),
        ({"vary": {"candidates": ("1", "x")}}, GraphError, "candidates"),
        ({"settings": ("tokens=1",)}, UsageError, "--set tokens=1: none of the graphs has such a param"),
        ({"graphs": (SPECCOT, SPECCOT)}, UsageError, "two of the graphs are named 'speccot'"),
        ({"baseline": Path("nowhere.yaml")}, GraphError, "nowhere.yaml"),
        ({"resume": True, "output": None}, UsageError, "--resume: name the sweep's folder with --output"),
    ],
)
def test_bad_options_start_nothing(tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sweep(options(tmp_path, **changes))
    assert not (tmp_path / "sweep").exists()


def test_the_baseline_is_the_target_beside_the_graph_else_the_bundled_one(tmp_path: Path) -> None:
    shutil.copy(SPECCOT, tmp_path / "mine.yaml")
    mine = options(tmp_path, graphs=(tmp_path / "mine.yaml",))
    assert read_systems(mine)[0].plan == load_plan(TARGET, SIM, read_systems(mine)[0].widened)
    (tmp_path / "target.yaml").write_text(TARGET.read_text().replace("name: target", "name: other"))
    assert [system.label for system in read_systems(mine)] == ["other", "speccot"]
    assert [system.label for system in read_systems(msgspec.structs.replace(mine, baseline=TARGET))] == ["target", "speccot"]


def test_a_sweep_goes_on_where_it_ended(tmp_path: Path) -> None:
    first = options(tmp_path, batch_sizes=(1,))
    done = sweep(first)
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "sweep/runs").rglob("*.parquet")}
    with pytest.raises(UsageError, match="already exists"):
        sweep(first)
    (tmp_path / "sweep/runs/speccot_pipelined_b4_r0").mkdir()  # what a killed session leaves
    (tmp_path / "sweep/runs/speccot_pipelined_b4_r0/run.json").write_text("{}")
    more = sweep(options(tmp_path, input=first.input, resume=True))
    assert [point.batch_size for point in more.points] == [1, 1, 4, 4]
    assert [point for point in more.points if point.batch_size == 1] == done.points
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    with pytest.raises(UsageError, match=r"cannot be resumed: seed is 7, was 0 for .*; start anew in another folder"):
        sweep(options(tmp_path, input=first.input, resume=True, seed=7))
    with pytest.raises(UsageError, match=r"param repeated is 3, was 0 for 'speccot'; start anew in another folder"):
        sweep(options(tmp_path, input=first.input, resume=True, graphs=(_edited(tmp_path),), baseline=TARGET))


def _edited(folder: Path) -> Path:
    path = folder / "speccot.yaml"
    path.write_text(SPECCOT.read_text().replace("repeated: 0", "repeated: 3").replace("engines: engines/tiny.yaml", f"engines: {SIM}"))
    return path


def test_failed_chains_are_in_the_points(tmp_path: Path) -> None:
    given = options(tmp_path, input=write_problems(tmp_path, 3, (b'{"problem": 7}',)), batch_sizes=(2,))
    result = sweep(given)
    assert result.exit_code == 3
    allowed = msgspec.structs.replace(given, fail_on_error=0.25, resume=True)
    assert sweep(allowed).exit_code == 0
    assert {(point.chains, point.failed) for point in result.points} == {(4, 1)}


def test_a_dead_engine_ends_the_sweep_and_leaves_its_points(tmp_path: Path, faulty: Path) -> None:
    settings = ("engines.draft.faults.dies_after_calls=100", "engines.draft.max_restarts=0")
    result = sweep(msgspec.structs.replace(options(tmp_path, batch_sizes=(1, 4), settings=settings), engines=(faulty,)))
    assert [point.curve for point in result.points] == ["target"]
    assert result.exit_code == 1
    assert "draft" in str(result.error)


@pytest.mark.torch
@pytest.mark.usefixtures("torch_here")
def test_real_engines_are_started_once_and_forget_between_points(tmp_path: Path) -> None:
    given = SweepOptions(
        graphs=(SPECCOT,),
        input=ROOT / "datasets/arith/test.parquet",
        batch_sizes=(8,),
        repeats=2,
        random="8",
        output=tmp_path / "sweep",
    )
    said: list[str] = []
    result = sweep(given, Observer(tell=said.append))
    assert result.exit_code == 0
    assert [sentence for sentence in said if "warming" in sentence] == ["warming up with 32 problems"]
    assert len(result.points) == 4

    def cached(point: Point) -> float:
        return summarize(tmp_path / "sweep/runs" / point.folder).engines["target"].cached_share or 0.0

    again = [[point for point in result.points if point.curve == curve] for curve in ("target", "speccot, pipelined")]
    for points in again:
        assert len({point.accuracy for point in points}) == 1
        # The same prompts in a full cache would all be hits; what is cached is what chains share with themselves.
        assert max(cached(point) for point in points) < 0.9
    assert all(cached(point) < 0.2 for point in again[0])


def test_what_the_points_share_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """Another file takes the name: the one that had it is not written into."""
    prepared = prepare_sweep(plan_sweep(options(tmp_path)), tmp_path / "sweep")
    prepared.folder.mkdir()
    start_or_resume(prepared)
    first = (prepared.folder / "sweep.json").read_bytes()
    (prepared.folder / "first").hardlink_to(prepared.folder / "sweep.json")
    start_or_resume(prepared)
    assert not (prepared.folder / "sweep.json").samefile(prepared.folder / "first")
    assert (prepared.folder / "sweep.json").read_bytes() == first
    assert sorted(path.name for path in prepared.folder.iterdir()) == ["first", "sweep.json"]
