"""The page about the papers' claims: an interval decides, every graph has its run, and what is finished is not run again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import structs

from bench import runs as kept_runs
from bench.quality import claims, judging, levers, papers
from pipeline.analysis.compare.runs import RunTable, read_runs
from pipeline.analysis.quality.by_problem import Texts
from pipeline.analysis.quality.estimates import NOTHING, Estimate
from pipeline.analysis.quality.reward_agreement import ScoredSteps
from pipeline.analysis.quality.selection import ThoughtChoices

pytestmark = pytest.mark.slow  # whole runs

ROOT = Path(__file__).parent.parent.parent

Make = Callable[..., RunTable]
SECTIONS = [*(section for sections in papers.SECTIONS.values() for section in sections), papers.SIMULATION]
JOBS = {job.name: job for section in SECTIONS for job in section.jobs}


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
    assert judging.verdict_of(ours, "above", 1.0) == above
    assert judging.verdict_of(ours, "below", 1.0) == below


OF_NO_PAPER = {"cascade", "self-consistency"}


def test_every_graph_of_a_paper_is_run_and_every_claim_takes_runs_that_are_made() -> None:
    graphs = {job.graph for job in JOBS.values()} | {lever.graph for lever in levers.LEVERS}
    assert graphs == {path.stem for path in (ROOT / "graphs").glob("*.yaml")} - OF_NO_PAPER
    assert {name for claim in claims.CLAIMS for name in claim.runs} <= JOBS.keys()
    for section in SECTIONS:
        assert len({(job.pair, job.needs_vllm, job.simulated) for job in section.jobs}) == 1, section.title
    for job in (job for section in SECTIONS for job in section.jobs):
        assert job == JOBS[job.name], "two runs of one name"


def test_every_claim_is_tested_with_wordy() -> None:
    wordy = judging.runs_of("wordy", JOBS)
    assert {job.pair for job in wordy.values()} == {papers.WORDY}
    assert {name for claim in claims.CLAIMS if not claim.simulated for name in claim.runs} <= wordy.keys()
    assert {job.engines for job in wordy.values() if job.needs_vllm} == {"tiny-vllm", "tiny-vllm-decode"}
    assert all("engines.target.model=bundled:wordy-target" in job.settings for job in wordy.values() if job.needs_vllm)


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


@pytest.fixture(name="runs")
def _runs(table: Make) -> dict[str, RunTable]:
    """Runs of both pairs, four problems each; what is measured differs in the first one."""
    names = {name for claim in claims.CLAIMS for name in claim.runs}
    runs = {name: table(name, [2.0, 3.0, 4.0, 5.0]) for name in names}
    runs["speccot"] = table("speccot", [1.0, 1.5, 2.0, 2.5], thought_tokens=np.full(4, 20.0))
    for name in ("best-of-n", "scot", "scot-untuned"):
        runs[name] = with_choices(runs[name], right_drafts=[1.0, 0.5, 0.2, 0.0], rejected=[0, 0, 1, 1])
    return runs | {f"wordy-{name}": run for name, run in runs.items() if not name.startswith("sim-")}


def judged(runs: dict[str, RunTable], pair: judging.PairName = "tiny") -> dict[tuple[str, str], judging.Found]:
    """What was found by where it stands and what it says."""
    return {(claim.where, claim.says): judging.judge(claim, runs, 1.25, pair) for claim in claims.CLAIMS}


def test_claims_are_judged_by_name(runs: dict[str, RunTable]) -> None:
    found = judged(runs)
    faster = found["SpecCoT 4.2, table 2", "faster than the target alone"]
    assert (faster.ours, faster.verdict) == (Estimate(2.0, 1.6, 2.5), "holds")
    best = found["SCoT 3.2, figure 2", "with the best of its 5 drafts the draft model is more accurate than with one"]
    assert best.ours.value == -0.25  # three of four problems, and the draft alone solved all
    classes = found["SCoT 4.4", "class 1 is predicted better than class 2"]
    assert classes.ours.value == pytest.approx(2 / 3 - 1)
    saved = found["SpecCoT 4.4.3, table 4", "from 2 to 4 GPUs the target alone saves a larger share of its time"]
    assert (saved.ours.value, saved.verdict) == (0.0, "does not hold")
    assert found["SpecCoT A.1, table 5", "selected steps are better than the drafts they were selected from"].said == "nothing to measure"
    del runs["draft"]
    assert {judging.judge(claim, runs).verdict for claim in claims.CLAIMS if "draft" in claim.runs} == {"not run"}
    assert judged(runs, "wordy")["SpecCoT 4.2, figure 3", "accuracy above the draft's"].verdict != "not run"


def test_what_tiny_lacks_is_said_of_tiny_alone(runs: dict[str, RunTable]) -> None:
    runs["wordy-speccot"] = structs.replace(runs["speccot"], thought_tokens=np.full(4, 30.0))
    shorter = "SpecCoT 4.2", "fewer committed tokens than the target alone"
    thoughts = "SpecCoT A.1", "fallback steps hold more words of second thoughts than drafts"
    tiny, wordy = judged(runs), judged(runs, "wordy")
    assert (tiny[shorter].verdict, tiny[shorter].said) == ("not testable here", "-40.0% [-40.0%, -40.0%]")
    assert tiny[shorter].remark == claims.TERSE
    assert (wordy[shorter].verdict, wordy[shorter].said, wordy[shorter].remark) == ("holds", "-20.0% [-20.0%, -20.0%]", "")
    assert (tiny[thoughts].ours.value, tiny[thoughts].verdict) == (pytest.approx(180.0), "not testable here")
    assert (wordy[thoughts].ours.value, wordy[thoughts].verdict) == (pytest.approx(180.0), "holds")
    untested = [each.claim.says for each in wordy.values() if each.verdict == "not testable here"]
    assert untested == ["an untuned target hardly ever (below 5 %) says that no draft is right where none is"]
    assert not any(each.verdict == "not run" and not each.claim.simulated for each in wordy.values())


def test_classes_are_compared_with_each_other(table: Make) -> None:
    run = table("scot", [1.0] * 4)
    assert judging.class_gap({"scot": with_choices(run)}).value == 0.0
    half = {"scot": with_choices(run, rejected=[0, 1, 1, 1], picked_right=[1, 0, 0, 0])}
    assert judging.class_gap(half).value == pytest.approx(-0.5)
    assert judging.class_gap({"scot": run}) == NOTHING


def test_shares_agreement_and_budgets_are_sums_over_problems(table: Make) -> None:
    ones = np.ones(4)
    texts = {"longest": Texts(ones, 60 * ones, ones, ones), "accepted": Texts(ones, np.array([40.0, 40, 40, 0]), ones, ones)}
    scot = table("scot", [1.0] * 4, texts=texts)  # thoughts of 40 tokens, three of them the draft's
    assert judging.by_target({"scot": scot}).value == pytest.approx(40 / (40 + 240))
    assert judging.by_target({"scot": table("scot", [1.0], texts={})}) == NOTHING

    scored = ScoredSteps("0 to 9", np.array([0, 1, 2, 2]), np.array([0.0, 9, 7, 4]), np.array([0.1, 1.0, 0.7, 0.2]))
    agreed = judging.score_agreement({"specreason": table("specreason", [1.0] * 4, scored=scored)})
    assert agreed.value == pytest.approx(np.corrcoef(scored.score, scored.reward)[0, 1])
    assert judging.score_agreement({"specreason": scot}) == NOTHING

    tight = {"specreason-tight": [1.0, 1, 1, 0], "target-tight": [1.0, 0, 0, 0], "specreason": ones, "target": [1.0, 1, 1, 0]}
    runs = {name: table(name, [1.0] * 4, right=right) for name, right in tight.items()}
    assert judging.gain_when_tight(runs).value == pytest.approx(0.5 - 0.25)


def test_a_ratio_of_times_is_believed_as_far_as_runs_of_the_same_work_agree(table: Make) -> None:
    same = [[table("a", [2.0, 4.0]), table("b", [12.0])], [table("c", [1.0]), table("d", [1.0])], [table("alone", [9.0])]]
    # Logs of 3 and 12 lie log(2) from their mean, the others 0: variance 2 log(2)^2 / 2 with 2 degrees of freedom.
    assert judging.noise_of(same) == pytest.approx(np.exp(4.303 * np.sqrt(2) * np.log(2)))
    assert judging.noise_of(same[1:2]) == 1.0
    assert judging.noise_of(same[2:]) is None
    assert judging.widened(Estimate(1.2, 1.1, 1.3), 1.25) == Estimate(1.2, 1.1 / 1.25, 1.3 * 1.25)
    assert judging.widened(Estimate(2.0), 1.25) == Estimate(2.0, 1.6, 2.5)
    assert judging.widened(Estimate(1.2, 1.1, 1.3), None) == Estimate(1.2)
    for claim in claims.CLAIMS:
        of_time = claim.form is claims.number and "words" not in claim.says
        assert claim.timed == (of_time and not any(JOBS[name].simulated for name in claim.runs)), claim.says


@pytest.mark.parametrize("pair", papers.PAIRS, ids=lambda pair: pair.name)
def test_repeated_runs_are_spread_over_the_series(pair: Any) -> None:
    order = [job.name.removeprefix(pair.prefix) for job in papers.series(pair)]
    assert order.index("target") < order.index("target-again") < order.index("target-at-the-end")
    assert order[-1] == "specreason-at-the-end"
    assert len(order) == len(set(order)) == sum(job.pair is pair and not job.simulated for job in JOBS.values()) + 6
    assert not any(job.needs_vllm for job in papers.series(pair, vllm=False))


def test_what_is_finished_is_not_run_again_and_the_page_says_what_is_missing(tmp_path: Path) -> None:
    jobs = [job for job in JOBS.values() if job.simulated]
    papers.simulated_problems(tmp_path)
    for job in jobs:
        kept_runs.make(job.options(tmp_path, 3), job.name)
    started = {job.name: (tmp_path / job.name / "run.json").stat().st_mtime_ns for job in jobs}
    (tmp_path / jobs[0].name / "run.json").write_text("cut short")
    for job in jobs:
        kept_runs.make(job.options(tmp_path, 3), job.name)
    again = {job.name: (tmp_path / job.name / "run.json").stat().st_mtime_ns for job in jobs}
    assert [name for name in again if again[name] != started[name]] == [jobs[0].name]
    assert not kept_runs.is_finished(jobs[1].options(tmp_path, 4))
    assert not kept_runs.is_finished(structs.replace(jobs[1].options(tmp_path, 3), settings=("temperature=0.5",)))

    runs = {run.name: run for run in read_runs([tmp_path / job.name for job in jobs])}
    cards = {name: msgspec.json.decode((tmp_path / name / "run.json").read_bytes()) for name in runs}
    page = papers.page("`python -m bench.quality.papers --problems 3`", runs, cards, ["speccot: there is no reward model"])
    assert page.startswith("`python -m bench.quality.papers --problems 3`\n")
    for said in (
        "SpecCoT table 4",
        "2,360 TFLOP/s, simulated",
        "**not run**",
        "Steps were not scored by a reward model: speccot: there is no reward model",
        "| verdict | tiny | wordy | simulated |",
        "| where | claim | their number | tiny | wordy |",
        "| where | claim | their number | simulated |",
    ):
        assert said in page
    assert "With the pair" not in page
    accuracies = [run.right.sum() / run.graded.sum() for run in runs.values()]
    assert max(accuracies) > 0  # references are those of simulated models
