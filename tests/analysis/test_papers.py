"""The page about the papers' claims: an interval decides, every graph has its run, and what is finished is not run again."""

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec import structs

from pipeline.analysis.compare.runs import RunTable, read_runs
from pipeline.analysis.quality.estimates import NOTHING, Estimate
from pipeline.analysis.quality.selection import Choices

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import claims  # noqa: E402
import papers  # noqa: E402

Make = Callable[..., RunTable]
JOBS = {job.name: job for section in papers.SECTIONS for job in section.jobs}


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
    assert claims.verdict_of(ours, "above", 1.0) == above
    assert claims.verdict_of(ours, "below", 1.0) == below


OF_NO_PAPER = {"cascade", "self-consistency"}


def test_every_graph_of_a_paper_is_run_and_every_claim_takes_runs_that_are_made() -> None:
    assert {job.graph for job in JOBS.values()} == {path.stem for path in (ROOT / "graphs").glob("*.yaml")} - OF_NO_PAPER
    assert {name for claim in claims.CLAIMS for name in claim.runs} <= JOBS.keys()
    for section in papers.SECTIONS:
        assert section.baseline in {job.name for job in section.jobs}
        assert len({(job.needs_vllm, job.simulated) for job in section.jobs}) == 1, section.title


def test_claims_are_judged_by_name(table: Make) -> None:
    names = {name for claim in claims.CLAIMS for name in claim.runs}
    runs = {name: table(name, [2.0, 3.0, 4.0, 5.0]) for name in names}
    runs["speccot"] = table("speccot", [1.0, 1.5, 2.0, 2.5], thought_tokens=np.full(4, 20.0))
    choices = Choices(
        np.arange(4), np.array([1.0, 0.5, 0.2, 0.0]), np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0]), np.full(4, np.nan), True
    )
    runs["scot"] = structs.replace(runs["scot"], choices=choices)
    runs["best-of-n"] = structs.replace(runs["best-of-n"], choices=choices)
    found = {(each.claim.where, each.claim.says): each for each in (claims.judge(claim, runs, 1.25) for claim in claims.CLAIMS)}
    faster = found["SpecCoT 4.2, table 2", "faster than the target alone"]
    assert (faster.ours, faster.verdict) == (Estimate(2.0, 1.6, 2.5), "holds")
    best = found["SCoT 3.2, figure 2", "with the best of its 5 drafts the draft model is more accurate than with one"]
    assert best.ours.value == -0.25  # three of four problems, and the draft alone solved all
    shorter = found["SpecCoT 4.2", "fewer committed tokens than the target alone"]
    assert (shorter.ours.value, shorter.verdict, shorter.said) == (-0.4, "not testable here", "-40.0% [-40.0%, -40.0%]")
    classes = found["SCoT 4.4", "class 1 (a draft is right) is predicted better than class 2 (none is)"]
    assert classes.ours.value == pytest.approx(2 / 3 - 1)
    saved = found["SpecCoT 4.4.3, table 4", "from 2 to 4 GPUs the target alone saves a larger share of its time"]
    assert (saved.ours.value, saved.verdict) == (0.0, "does not hold")
    thoughts = found["SpecCoT A.1", "fallback steps hold more words of second thoughts than drafts"]
    assert (thoughts.ours.value, thoughts.verdict) == (pytest.approx(180.0), "not testable here")
    assert found["SpecCoT A.1, table 5", "selected steps are better than the drafts they were selected from"].said == "nothing to measure"
    del runs["draft"]
    assert {claims.judge(claim, runs).verdict for claim in claims.CLAIMS if "draft" in claim.runs} == {"not run"}


def test_a_ratio_of_times_is_believed_as_far_as_runs_of_the_same_work_agree(table: Make) -> None:
    same = [[table("a", [2.0, 4.0]), table("b", [12.0])], [table("c", [1.0]), table("d", [1.0])], [table("alone", [9.0])]]
    # Logs of 3 and 12 lie log(2) from their mean, the others 0: variance 2 log(2)^2 / 2 with 2 degrees of freedom.
    assert claims.noise_of(same) == pytest.approx(np.exp(4.303 * np.sqrt(2) * np.log(2)))
    assert claims.noise_of(same[1:2]) == 1.0
    assert claims.noise_of(same[2:]) is None
    assert claims.widened(Estimate(1.2, 1.1, 1.3), 1.25) == Estimate(1.2, 1.1 / 1.25, 1.3 * 1.25)
    assert claims.widened(Estimate(2.0), 1.25) == Estimate(2.0, 1.6, 2.5)
    assert claims.widened(Estimate(1.2, 1.1, 1.3), None) == Estimate(1.2)
    for claim in claims.CLAIMS:
        of_time = claim.form is claims.number and "words" not in claim.says
        assert claim.timed == (of_time and not any(JOBS[name].simulated for name in claim.runs)), claim.says


def test_repeated_runs_are_spread_over_the_series() -> None:
    order = [job.name for job in papers.in_order(list(JOBS.values()))]
    assert order.index("target") < order.index("target-again") < order.index("target-at-the-end")
    assert order[-1] == "specreason-at-the-end"
    assert len(order) == len(set(order)) == len(JOBS) + 6


def test_what_is_finished_is_not_run_again_and_the_page_says_what_is_missing(tmp_path: Path) -> None:
    jobs = [job for job in JOBS.values() if job.simulated]
    papers.simulated_problems(tmp_path)
    papers.run_all(jobs, tmp_path, 3)
    started = {job.name: (tmp_path / job.name / "run.json").stat().st_mtime_ns for job in jobs}
    (tmp_path / jobs[0].name / "run.json").write_text("cut short")
    papers.run_all(jobs, tmp_path, 3)
    again = {job.name: (tmp_path / job.name / "run.json").stat().st_mtime_ns for job in jobs}
    assert [name for name in again if again[name] != started[name]] == [jobs[0].name]
    assert not papers.is_finished(jobs[1].options(tmp_path, 4))
    assert not papers.is_finished(structs.replace(jobs[1].options(tmp_path, 3), settings=("temperature=0.5",)))

    runs = {run.name: run for run in read_runs([tmp_path / job.name for job in jobs])}
    cards = {name: msgspec.json.decode((tmp_path / name / "run.json").read_bytes()) for name in runs}
    page = papers.page("`python bench/papers.py --problems 3`", runs, cards, "there is no reward model")
    assert page.startswith("`python bench/papers.py --problems 3`\n")
    for said in (
        "SpecCoT table 4",
        "2,360 TFLOP/s, simulated",
        "**not run**",
        "Steps were not scored by a reward model: there is no reward model",
    ):
        assert said in page
    assert "## All systems" not in page
    accuracies = [run.right.sum() / run.graded.sum() for run in runs.values()]
    assert max(accuracies) > 0  # references are those of simulated models
