"""What README and docs claim of simulated machines, on a small grid: virtual time makes it exact, so that no figure of it grows old."""

import pytest

from pipeline.analysis.points import Point
from pipeline.sweep.plan import SweepOptions
from pipeline.sweep.sweep import sweep
from tests.support.paths import ROOT
from tests.support.runs import write_problems

SIZES = (1, 64)
ROOMY = tuple(f"engines.{role}.{name}=256" for role in ("draft", "target") for name in ("max_in_flight", "max_num_seqs"))

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, Point]]:
    """Points by curve and batch size: SpecCoT, and SpecReason that speculates always or decides itself, on two simulated H100."""
    folder = tmp_path_factory.mktemp("claims")
    options = SweepOptions(
        graphs=(ROOT / "graphs/speccot.yaml", ROOT / "graphs/specreason.yaml"),
        input=write_problems(folder, 64),
        batch_sizes=SIZES,
        schedules=("pipelined", "lockstep"),
        vary={"speculate": ("always", "auto")},
        engines=(ROOT / "graphs/engines/sim-2xh100.yaml",),
        settings=ROOMY,
        output=folder / "sweep",
        workers=1,
    )
    result = sweep(options)
    assert result.error is None
    found: dict[str, dict[int, Point]] = {}
    for point in result.points:
        assert point.failed == 0
        found.setdefault(point.curve, {})[point.batch_size] = point
    return found


def gain(points: dict[str, dict[int, Point]], curve: str, size: int, over: str = "target") -> float:
    """How many times as fast a curve is as another at a batch size."""
    return points[over][size].wall_s / points[curve][size].wall_s


@pytest.mark.parametrize("graph", ["speccot", "specreason"])
def test_speculation_pays_at_batch_size_1_and_not_where_the_batch_fills_the_card(points: dict[str, dict[int, Point]], graph: str) -> None:
    assert gain(points, f"{graph} speculate=always, pipelined", 1) > 1.5
    assert gain(points, f"{graph} speculate=always, pipelined", 64) < 1


@pytest.mark.parametrize("graph", ["speccot", "specreason"])
def test_pipelined_is_faster_than_lockstep_with_the_same_answers(points: dict[str, dict[int, Point]], graph: str) -> None:
    pipelined, lockstep = (f"{graph} speculate=always, {schedule}" for schedule in ("pipelined", "lockstep"))
    assert gain(points, pipelined, 1, over=lockstep) == pytest.approx(1)
    assert gain(points, pipelined, 64, over=lockstep) > 1.25
    assert points[pipelined][64].accuracy == points[lockstep][64].accuracy


@pytest.mark.parametrize("size", SIZES)
def test_auto_is_about_as_fast_as_the_better_of_both(points: dict[str, dict[int, Point]], size: int) -> None:
    best = max(1, gain(points, "specreason speculate=always, pipelined", size))
    assert gain(points, "specreason speculate=auto, pipelined", size) > 0.9 * best
