"""The page about the papers' systems: what is run, what is made of repeated runs, and what the page says."""

from collections.abc import Callable

import numpy as np
import pytest
from msgspec import structs

from bench import papers
from bench.figures import results_of
from pipeline.analysis.compare.runs import RunTable
from pipeline.sweep.plan import SweepPlan

pytestmark = pytest.mark.slow  # whole runs

Make = Callable[..., RunTable]


@pytest.fixture(name="plan", scope="module")
def _plan(tmp_path_factory: pytest.TempPathFactory) -> SweepPlan:
    return papers.planned(tmp_path_factory.mktemp("papers") / "study", small=True)


def test_latencies_are_taken_one_problem_at_a_time_on_equal_cores(plan: SweepPlan) -> None:
    for family, systems in papers.families(plan).items():
        if family.rpartition(" ")[2] in ("latency", "inside"):
            points = [point for same in systems.values() for point in same]
            assert {point.coordinates.batch_size for point in points} == {1}
            real = [spec for point in points for spec in point.system.engines.values() if spec.backend == "torch"]
            assert all(getattr(spec, "core", None) == 1 for spec in real)


def test_repeated_runs_are_one_with_their_mean_times_and_say_how_far_clocks_are_believed(table: Make) -> None:
    same = [table("a", [1.0, 3.0], wall_time_s=3.0), table("a", [3.0, 5.0], wall_time_s=12.0)]
    mean = papers.mean_of(same)
    assert (mean.latency_s.tolist(), mean.wall_time_s) == ([2.0, 4.0], 7.5)
    assert papers.mean_of(same[:1]) is same[0]
    # Logs of 3 and 12 lie log(2) from their mean, the others 0: variance 2 log(2)^2 / 2 with 2 degrees of freedom, of means of two.
    others = [table("b", [1.0]), table("b", [1.0])]
    assert papers.noise_of([same, others]) == pytest.approx(np.exp(4.303 * np.log(2)))
    assert papers.noise_of([same[:1], others[:1]]) is None


def test_the_page_has_what_was_run_and_runs_are_made_once(plan: SweepPlan) -> None:
    only = ["2,4xA100/GSM8K cards", "2xA6000/MATH latency"]
    result = papers.made(plan, only)
    assert {point.engines for point in result.points} == {"sim-2xa100-gsm8k", "sim-4xa100-gsm8k", "sim-2xa6000-math"}
    sites = papers.read_sites(plan, result)
    [cards] = [each for each in sites if each["kind"] == "cards"]
    assert {row.split(" | ")[0] for row in cards["rows"]} == {
        f"{graph} on sim-{n}xa100-gsm8k" for graph in ("target", "speccot") for n in (2, 4)
    }
    [latency] = [each for each in sites if (each["site"], each["kind"]) == ("sim 2xA6000/MATH", "latency")]
    assert latency["point"] == "batch size 1, 4 problems, simulated"
    page = papers.page_of(results_of("papers") | {"sites": sites})
    assert "**sim 2xA6000/MATH, latency**: batch size 1, 4 problems, simulated\n\n| system |" in page
    assert page.count("this simulator is off by") == 1
    started = {path: path.stat().st_mtime_ns for path in (result.folder / "runs").glob("*/run.json")}
    again = papers.made(structs.replace(plan, options=structs.replace(plan.options, resume=True)), only)
    assert len(again.points) == len(result.points)
    assert {path: path.stat().st_mtime_ns for path in started} == started
