"""The page about the papers' claims: an interval decides, every claim takes runs that are made, and what is missing is said."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from bench.quality import judging, levers, papers
from bench.quality.judging import CLAIMS, MEASURES, Site
from pipeline.analysis.compare.runs import RunTable
from pipeline.analysis.quality.by_problem import Texts
from pipeline.analysis.quality.estimates import NOTHING, Estimate
from pipeline.analysis.quality.reward_agreement import ScoredSteps
from pipeline.analysis.quality.selection import ThoughtChoices
from pipeline.sweep.plan import SweepPlan
from tests.support.graphs import NAMES

pytestmark = pytest.mark.slow  # whole runs

Make = Callable[..., RunTable]


def site(runs: dict[str, RunTable], name: str = "wordy", kind: str = "quality", **fields: Any) -> Site:
    return Site(name=name, kind=kind, runs=runs, folders={}, asked=frozenset(fields.pop("asked", runs)), **fields)


@pytest.fixture(name="plan", scope="module")
def _plan(tmp_path_factory: pytest.TempPathFactory) -> SweepPlan:
    return papers.planned(tmp_path_factory.mktemp("papers") / "study", small=True)


@pytest.mark.parametrize(
    ("ours", "above", "below"),
    [
        (Estimate(1.2, 1.1, 1.3), "holds", "does not hold"),
        (Estimate(1.0, 0.9, 1.1), "cannot be said", "cannot be said"),
        (Estimate(0.8, 0.7, 0.9), "does not hold", "holds"),
        (Estimate(1.0, 1.0, 1.0), "does not hold", "does not hold"),  # neither more nor less
        (Estimate(2.5), "cannot be said", "cannot be said"),  # one run each
        (NOTHING, "cannot be said", "cannot be said"),
    ],
)
def test_the_interval_decides(ours: Estimate, above: str, below: str) -> None:
    assert judging.verdict_of(ours, 1.0, None) == above
    assert judging.verdict_of(ours, None, 1.0) == below


def test_every_claim_takes_runs_that_are_made_or_says_why_there_are_none(plan: SweepPlan) -> None:
    made = papers.families(plan)
    for claim in CLAIMS:
        if not claim.kind:
            assert claim.note
            continue
        sites = [family for family, systems in made.items() if family.endswith(f" {claim.kind}") and systems.keys() >= {*claim.runs}]
        assert sites, claim.says
        assert claim.measure in MEASURES
        assert (claim.above is None) != (claim.below is None)
        assert {f"{name} {claim.kind}" for name in (*claim.lacks, *claim.given)} <= {*sites}, claim.says
    assert [bool(claim.why) for claim in CLAIMS] == [True] * 10 + [False] * (len(CLAIMS) - 10)
    graphs = {point.coordinates.graph for point in plan.points} | {lever.graph for lever in levers.LEVERS}
    assert graphs >= {*NAMES} - {"likelihood", "target-steps"}


def test_latencies_are_judged_one_problem_at_a_time_on_equal_cores(plan: SweepPlan) -> None:
    timed = {claim.kind for claim in CLAIMS if claim.measure.endswith("speed_up")}
    assert timed == {"latency", "inside"}
    for family, systems in papers.families(plan).items():
        points = [point for same in systems.values() for point in same]
        if family.rpartition(" ")[2] in timed:
            assert {point.coordinates.batch_size for point in points} == {1}
            real = [spec for point in points for spec in point.system.engines.values() if spec.backend == "torch"]
            assert all(getattr(spec, "core", None) == 1 for spec in real)


def test_a_claim_is_judged_at_every_site_that_has_its_runs(table: Make) -> None:
    claim = next(each for each in CLAIMS if each.measure == "speed_up" and each.runs == ("speccot", "target"))
    runs = {
        "target": table("target", [2.0, 3.0, 4.0, 5.0]),
        "speccot": table("speccot", [1.0, 1.5, 2.0, 2.5], thought_tokens=np.full(4, 15.0)),
    }
    sites = [
        site(runs, "tiny", "latency", noise=1.25),
        site(runs, "wordy", "latency"),
        site({}, "inflated", "latency", asked=claim.runs),
        site(runs, "tiny", "quality", noise=1.25),
        site({"target": runs["target"]}, "5xA100/GSM8K", "latency"),
    ]
    judged = judging.judge(claim, sites)
    assert [(each.site.name, each.verdict, each.said) for each in judged.found] == [
        ("tiny", "holds", "2 [1.6, 2.5] = 2 x 1"),  # half the text at the same rate
        ("wordy", "cannot be said", "2 = 2 x 1"),  # what runs of the same work differ in is not known
        ("inflated", "not run", ""),
    ]
    assert judged.group == "shown"
    assert judging.Judged(claim, judged.found[1:]).group == "not shown"
    assert judging.Judged(claim, judged.found[2:]).group == "not run"
    assert judging.Judged(claim, ()).group == "cannot be shown here"
    lacking = structs.replace(claim, lacks={"tiny": "it has no steps"}, given=("wordy",))
    assert [each.verdict for each in judging.judge(lacking, sites).found] == ["not testable here", "not run"]


def with_choices(run: RunTable, **columns: list[float]) -> RunTable:
    """`run` with a choice among whole thoughts for each of its four problems: two of class 1, then two of class 2, unless told."""
    values: dict[str, Any] = {
        "right_drafts": [1.0, 0.5, 0.0, 0.0],
        "rejected": [0, 0, 1, 1],
        "picked_right": [1, 1, 0, 0],
        "agrees": [np.nan] * 4,
    }
    arrays = {name: np.array(column, float) for name, column in (values | columns).items()}
    details = structs.replace(run.details, choices=ThoughtChoices(problem=np.arange(4), may_reject=True, **arrays))
    return structs.replace(run, read=lambda: details)


def test_choices_among_thoughts_are_counted_by_class(table: Make) -> None:
    run = table("scot", [1.0] * 4)
    assert judging.class_gap(site({"scot": with_choices(run)}), "scot").value == 0.0
    half = {"scot": with_choices(run, rejected=[0, 1, 1, 1], picked_right=[1, 0, 0, 0])}
    assert judging.class_gap(site(half), "scot").value == pytest.approx(-0.5)
    assert judging.class_gap(site({"scot": run}), "scot") == NOTHING
    best = {"best-of-n": with_choices(run, right_drafts=[1.0, 0.5, 0.2, 0.0]), "target": run}
    assert judging.best_draft(site(best), "best-of-n", "target").value == -0.25  # three of four problems, and the target solves all


def test_shares_agreement_and_budgets_are_sums_over_problems(table: Make) -> None:
    ones = np.ones(4)
    texts = {"longest": Texts(ones, 60 * ones, ones, ones), "accepted": Texts(ones, np.array([40.0, 40, 40, 0]), ones, ones)}
    scot = table("scot", [1.0] * 4, texts=texts)  # thoughts of 40 tokens, three of them the draft's
    assert judging.by_target(site({"scot": scot}), "scot").value == pytest.approx(40 / (40 + 240))
    assert judging.by_target(site({"scot": table("scot", [1.0], texts={})}), "scot") == NOTHING

    scored = ScoredSteps("0 to 9", np.array([0, 1, 2, 2]), np.array([0.0, 9, 7, 4]), np.array([0.1, 1.0, 0.7, 0.2]))
    agreed = judging.score_agreement(site({"specreason": table("specreason", [1.0] * 4, scored=scored)}), "specreason")
    assert agreed.value == pytest.approx(np.corrcoef(scored.score, scored.reward)[0, 1])

    tight = {"a": [1.0, 1, 1, 0], "b": [1.0, 0, 0, 0], "c": ones, "d": [1.0, 1, 1, 0]}
    runs = {name: table(name, [1.0] * 4, right=right) for name, right in tight.items()}
    assert judging.gain_when_tight(site(runs), *tight).value == pytest.approx(0.5 - 0.25)

    times = {"a": [9.0, 9], "b": [5.0, 5], "c": [4.0, 6], "d": [3.0, 5]}
    runs = {name: table(name, seconds) for name, seconds in times.items()}
    assert judging.gap_widens(site(runs), *times) == Estimate(3.0)  # 4 s at the one threshold, 1 s at the other; a real clock
    assert judging.gains_less(site(runs), *times).value == pytest.approx((18 / 10) / (10 / 8))
    assert judging.saved_more(site(runs), *times).value == pytest.approx(8 / 10 - 10 / 18)


def test_repeated_runs_are_one_with_their_mean_times_and_say_how_far_clocks_are_believed(table: Make) -> None:
    same = [table("a", [1.0, 3.0], wall_time_s=3.0), table("a", [3.0, 5.0], wall_time_s=12.0)]
    mean = judging.mean_of(same)
    assert (mean.latency_s.tolist(), mean.wall_time_s) == ([2.0, 4.0], 7.5)
    assert mean.details.thinking_s.tolist() == [1.0, 2.0]  # half of each latency
    assert judging.mean_of(same[:1]) is same[0]
    # Logs of 3 and 12 lie log(2) from their mean, the others 0: variance 2 log(2)^2 / 2 with 2 degrees of freedom, of means of two.
    others = [table("b", [1.0]), table("b", [1.0])]
    assert judging.noise_of([same, others]) == pytest.approx(np.exp(4.303 * np.log(2)))
    assert judging.noise_of([same[:1], others[:1]]) is None
    assert judging.widened(Estimate(1.2, 1.1, 1.3), 1.25) == Estimate(1.2, 1.1 / 1.25, 1.3 * 1.25)
    assert judging.widened(Estimate(1.2, 1.1, 1.3), None) == Estimate(1.2)


def test_the_page_says_what_was_found_where_and_what_was_not_run(plan: SweepPlan) -> None:
    only = ["2,4xA100/GSM8K cards", "2xA6000/MATH latency"]
    result = papers.made(plan, only)
    assert {point.engines for point in result.points} == {"sim-2xa100-gsm8k", "sim-4xa100-gsm8k", "sim-2xa6000-math"}
    sites = papers.read_sites(plan, result)
    [cards] = [each for each in sites if each.kind == "cards"]
    assert cards.runs.keys() == {f"{graph} on sim-{n}xa100-gsm8k" for graph in ("target", "speccot") for n in (2, 4)}
    [latency] = [each for each in sites if each.name == "2xA6000/MATH" and each.kind == "latency"]
    assert latency.point == "batch size 1, 4 problems, simulated"
    new = judging.new_tokens(latency, "specreason").value
    assert new is not None
    assert 10 < new < 200  # a drafted step and the question behind it, of prompts that grow to thousands of tokens
    text = papers.page("`python -m bench.quality.papers --small`", sites)
    assert text.startswith("`python -m bench.quality.papers --small`\n")
    assert all(f"**{part}**" in text for part in ("Claims by verdict", "Ten headlines", "Cannot be shown here"))
    assert "**not run** `tiny`" in text
    assert "**holds** sim 2xA6000/MATH" in text
    assert text.count("this simulator is off by") == 1
    tables = result.folder.parent / "tables"
    papers.write_tables(tables, sites)
    assert {path.name for path in tables.iterdir()} >= {"2-4xA100-GSM8K-cards.csv", "2xA6000-MATH-latency.csv"}
    started = {path: path.stat().st_mtime_ns for path in (result.folder / "runs").glob("*/run.json")}
    again = papers.made(structs.replace(plan, options=structs.replace(plan.options, resume=True)), only)
    assert len(again.points) == len(result.points)
    assert {path: path.stat().st_mtime_ns for path in started} == started
