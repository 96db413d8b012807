"""The settings that lose little: Tango's interval against the score test that defines it, and the fastest point that is chosen."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from pipeline.analysis.curves import Measured, read_points
from pipeline.errors import UsageError
from pipeline.graph.load import load_preset, source_of
from pipeline.run.prepare import load_plan
from pipeline.study.choose import Pairs, choose, write_preset
from tests.support.sweeps import sweep

Z = 1.6448536


def score(pairs: Pairs, loss: float) -> float:
    """The score statistic of a loss, with the share that the point alone has right as likely as can be, found on a grid."""
    shares = np.linspace(max(0.0, -loss), (1 - loss) / 2, 20_001)[1:-1]
    n, lost, won = pairs.problems, pairs.lost, pairs.won
    likelihood = lost * np.log(shares + loss) + won * np.log(shares) + (n - lost - won) * np.log1p(-2 * shares - loss)
    share = shares[np.argmax(likelihood)]
    return (lost - won - n * loss) / math.sqrt(n * (2 * share + loss * (1 - loss)))


@given(problems=st.integers(20, 400), parts=st.tuples(st.floats(0.02, 0.4), st.floats(0.02, 0.4)))
def test_the_upper_end_is_where_the_score_test_begins_to_reject(problems: int, parts: tuple[float, float]) -> None:
    pairs = Pairs(problems, *(math.ceil(problems * part) for part in parts))
    most = pairs.most(Z)
    assert (pairs.lost - pairs.won) / problems < most < 1
    assert score(pairs, most) == pytest.approx(-Z, abs=0.01)


def test_no_difference_in_n_problems_is_a_loss_of_little_more_than_wilson_s() -> None:
    assert [Pairs(100, 0, 0).most(Z), Pairs(10, 10, 0).most(Z)] == pytest.approx([Z * Z / (100 + Z * Z), 1])


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> list[Measured]:
    folder = tmp_path_factory.mktemp("choose")
    [found] = read_points(sweep(folder, vary={"candidates": (1, 5)}, batch_sizes=(4,)).folder).values()
    return found


def graded(point: Measured, right: list[int], rate: float) -> Measured:
    """The point with other answers and wall time."""
    sums = point.run.sums | {"graded": np.ones(len(right)), "right": np.array(right, float), "problem": np.arange(len(right))}
    values = {name: getattr(point.run, name) for name in point.run.__struct_fields__}
    run = type(point.run)(**values | {"sums": sums, "mean_wall_time_s": 12 / rate})
    return Measured(label=point.label, run=run, tail_s=0.0, steady_problems_per_s=None)


@pytest.mark.slow
def test_the_fastest_point_that_loses_little_is_chosen(points: list[Measured]) -> None:
    target, one, five = points
    every, lossy = [1] * 400, [1] * 380 + [0] * 20
    made = [graded(target, every, 1), graded(one, lossy, 9), graded(five, every, 3)]
    found = choose(made, 0.02)
    assert found is not None
    assert found[0] is made[2]
    assert found[1] == pytest.approx(Pairs(400, 0, 0).most(1.959964))  # 5 % for two points
    assert (choose(made, 0.1) or made)[0] is made[1]
    assert choose(made, 0.001) is None


@pytest.mark.slow
@pytest.mark.parametrize("settings", [("preset=scot",), ("temperature=0.9", "preset=scot", "stages.answer.max_tokens=9")])
def test_the_preset_makes_the_plan_of_the_point_again(points: list[Measured], settings: tuple[str, ...], tmp_path: Path) -> None:
    plan, run = load_plan(Path("scot"), settings=settings), points[0].run
    file = structs.replace(run.file, options=structs.replace(run.file.options, settings=settings), source=source_of(plan))
    had = type(run)(**{name: getattr(run, name) for name in run.__struct_fields__} | {"file": file})
    write_preset(structs.replace(points[0], run=had), tmp_path / "chosen.yaml")
    assert load_plan(Path("scot"), settings=(f"preset={tmp_path / 'chosen.yaml'}",)).graph == plan.graph
    assert plan.params.items() <= load_preset(tmp_path / "chosen.yaml").set.items()


@pytest.mark.slow
def test_several_samples_or_no_other_point_are_refused(points: list[Measured]) -> None:
    twice = [graded(point, [1] * 40, 1) for point in points]
    twice[0].run.sums["graded"] *= 2
    with pytest.raises(UsageError, match="--max-loss: needs one sample a problem"):
        choose(twice, 0.01)
    with pytest.raises(UsageError, match="no point finished beside the target alone"):
        choose(points[:1], 0.01)
