"""The summary in ten lines, and what is said to limit a run: summaries that are made by hand, and runs on simulated engines."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pipeline.analysis.compare import read_runs
from pipeline.analysis.figures import Estimate
from pipeline.analysis.headline import WHEN_TO_USE, baseline_folder, headline, limit, summary_of
from pipeline.analysis.summary import Baseline, EngineSummary, Summary, summarize
from pipeline.options import RunOptions
from pipeline.run.run import run
from pipeline.study.systems import run_baseline
from tests.support.paths import ROOT, SIM
from tests.support.rows import blank
from tests.support.runs import solve, solve_short, write_problems

SLOWER = Baseline(
    run="run-target", status="finished", problems_per_s=68.3, accuracy=0.998, times_as_fast=0.71, speed_up=Estimate(0.7, 0.68, 0.74)
)
STOPPED = Baseline(run="run-target", status="interrupted")


def engine(busy: float) -> EngineSummary:
    """An engine that was busy for this share of the time."""
    found: EngineSummary = blank(EngineSummary, calls=1, busy_share=busy)
    return found


def summary(draft: float = 0.895, target: float = 0.997, **others: Any) -> Summary:
    """The run of the bundled pair over its test set; `draft` and `target`: shares of the time in which they were busy."""
    values: dict[str, Any] = {
        "run": "run", "status": "finished", "graph": "speccot", "models": {"target": "tiny-target", "draft": "tiny-draft"},
        "has_toy_models": True, "drafters": ("draft",), "may_reject": True,
        "schedule": "pipelined", "batch_size": 64, "resumable": True, "replicas": 1,
        "planned": 500, "problems": 500, "chains": 500, "done": 500, "samples": 1, "example": "p7", "wall_time_s": 10.3,
        "graded": 500, "correct": 498, "accuracy": 0.996, "accuracy_interval": {"low": 0.986, "high": 0.999}, "problems_per_s": 48.5,
        "output_tokens": 88_703, "kept_tokens": 22_330, "kept_tokens_per_s": 2168.0, "draft_tokens": 80_000, "wasted_draft_tokens": 64_800,
        "verified_steps": 2154, "accepted_steps": 2066, "fallback_steps": 88, "acceptance_rate": 0.959, "draft_share": 0.762,
        "engines": {"target": engine(target), "draft": engine(draft)},
    }  # fmt: skip
    found: Summary = blank(Summary, **values | others)
    return found


def test_ten_lines_say_how_a_run_went() -> None:
    found = headline(summary(), "runs/one")
    assert found.about == "speccot: 500 problems, target tiny-target, draft tiny-draft (toy models), up to 64 at once"
    assert found.head == "500 of 500 solved in 10.3 s: 48.5 problems/s"
    assert found.essential == "500 of 500 solved in 10.3 s: 48.5 problems/s, 99.6 % right"
    assert found.lines == [
        "accuracy     99.6 %    498 of 500, 95 % CI 98.6-99.9",
        "drafting     95.9 %    of 2,154 steps accepted, 76.2 % of the reasoning is the draft's; 88 rewritten by the target",
        "tokens       25.2 %    of 88,703 generated were kept: 2,168 kept tokens/s; 81.0 % of the drafted ones were discarded",
        "busy                   target 99.7 %, draft 89.5 %",
        "baseline     not run   to compare with the target alone:  pipeline resume runs/one --baseline",
        "bottleneck             the target (100% busy; draft 90%)",
    ]
    assert [command for _, command in found.commands] == [
        "pipeline export runs/one -o answers.csv",
        "pipeline show runs/one p7",
        "pipeline view runs/one",
    ]
    assert headline(summary()).commands == ()


LOST = {"errors": {"RequestRefused": 2, "BadRow": 1}, "error_examples": {"RequestRefused": "too long"}}
ALIKE = {"failed": 12, "chains": 12, "done": 0, "errors": {"RequestRefused": 12}}
SMALL = {"graded": 3, "correct": 2, "accuracy": 2 / 3, "accuracy_interval": None}
RATES = "48.5 against 68.3 problems/s; per problem 1.43x slower"
LENIENT = "accepted nearly every step and may be too lenient: set a stricter threshold, or method=expected where it scores"
CUT = "name what ends a step of this model as `delimiter` of the prompts"
TOLD = "gave over 10% of the probability to something other than a valid option: check the judge's prompt (`pipeline graph prompt`)"


@pytest.mark.parametrize(
    ("others", "name", "said"),
    [
        ({"baseline": SLOWER}, "baseline", f"0.71x the target alone: {RATES} (95 % CI 1.35-1.47)"),
        ({"baseline": SLOWER}, "", f"accuracy 99.6 % against 99.8 %; a loss is expected of toy models, see {WHEN_TO_USE}"),
        ({"baseline": SLOWER, "has_toy_models": False, "simulated": True, "answers": "simulated"}, "", "both are simulated"),
        ({"baseline": structs.replace(SLOWER, flags=("seed is 1",))}, "note", "seed is 1"),
        ({"baseline": STOPPED}, "baseline", "- the run of the target alone is interrupted:  pipeline resume run --baseline"),
        ({"drafters": ()}, "baseline", None),
        (LOST | {"failed": 3, "done": 497}, "failed", "0.6 % 3 of 500 chains: 2 RequestRefused, 1 BadRow; for example: too long"),
        (
            LOST | ALIKE, "failed",
            "100.0 % 12 of 12 chains: 12 RequestRefused; for example: too long; mend that, then:  pipeline resume run --retry-failed",
        ),
        ({"done": 12, "empty_answers": 11}, "empty", None),
        ({"empty_answers": 500}, "empty", "all answers are empty; does the server take the text out, as reasoning or as a call of a tool?"),
        ({"has_toy_models": False}, "judge", None),
        ({"acceptance_rate": 0.99}, "judge", None),
        ({"acceptance_rate": 0.99, "has_toy_models": False, "may_reject": False}, "judge", None),
        ({"acceptance_rate": 0.99, "has_toy_models": False}, "judge", LENIENT),
        ({"steps": 10, "cut_steps": 5}, "cut", None),
        ({"steps": 10, "cut_steps": 6}, "cut", f"60.0 % of the steps were cut at their token limit: {CUT}"),
        ({"doubtful_share": 0.05}, "options", None),
        ({"doubtful_share": 0.1}, "options", f"10.0 % of the verifications {TOLD}"),
        ({"status": "failed", "error": "it is in vain"}, "stopped", "it is in vain"),
        ({"status": "killed", "error": "it is in vain"}, "stopped", None),
        (SMALL, "accuracy", "66.7 % 2 of 3, too few problems for an interval"),
        ({"replicas": 2}, "busy", "target 99.7 %, draft 89.5 %, on any of 2 replicas"),
    ],
)  # fmt: skip
def test_a_row_is_there_when_it_has_something_to_say_and_says_it(others: dict[str, Any], name: str, said: str | None) -> None:
    assert {row.name: f"{row.figure} {row.text}".strip() for row in headline(summary(**others), "run").rows}.get(name) == said


def test_what_ended_early_is_told_first_and_names_how_it_is_resumed() -> None:
    assert headline(summary(**LOST, failed=3, done=497)).rows[0].name == "failed"
    assert headline(summary(status="interrupted", done=120, chains=120)).head.startswith("interrupted: 120 of 500 solved in 10.3 s")
    for state, named in {"killed": True, "failed": True, "running": False, "finished": False}.items():
        assert (("resume", "pipeline resume run") in headline(summary(status=state), "run").commands) is named
        assert "resume" not in dict(headline(summary(status=state, resumable=False), "run").commands)


NOTHING = {"accepted_steps": 0, "verified_steps": 8, "fallback_steps": 8}


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (NOTHING | {"pauses": 5}, "the target rejected all 8 drafted steps; these toy models do not know such problems: pass --model"),
        (NOTHING | {"has_toy_models": False}, "the target rejected all 8 drafted steps"),
        ({"baseline": SLOWER, "has_toy_models": False, "pauses": 5}, "speculation: the target alone is faster here"),
        ({"baseline": SLOWER}, "the target ("),
        ({"pauses": 5, "target": 0.5, "draft": 0.4}, "the KV cache: it was full, chains paused 5 times"),
        ({"target": 0.7, "draft": 0.4}, "the batch size (target 70% busy); try more than 64"),
        ({"target": 0.7, "schedule": "lockstep", "draft": 0.4}, "schedule lockstep (target 70% busy)"),
        ({"target": 0.7, "draft": 0.4, "chains": 20}, "too few problems to keep the engines busy (20 in flight)"),
        ({"target": 0.99, "draft": 0.98}, "target and draft (both 99% busy)"),
        ({"target": 0.8, "draft": 0.98}, "the draft (98% busy; target 80%)"),
        ({"engines": {"target": engine(0.99)}, "drafters": ()}, None),
        ({"engines": {}}, None),
    ],
)
def test_the_first_cause_that_the_figures_show_is_told(others: dict[str, Any], said: str | None) -> None:
    found = limit(summary(**others))
    assert found is None if said is None else (found or "").startswith(said), found


@pytest.mark.slow
def test_kept_tokens_are_those_that_a_comparison_says(tmp_path: Path) -> None:
    for graph in ("speccot", "target", "scot", "self-consistency"):
        folder = solve_short(tmp_path, graph, graph, input=write_problems(tmp_path, 4)).folder
        found, ours = summarize(folder), read_runs([folder])[0]
        assert found.kept_tokens_per_s == pytest.approx(ours.kept_tokens_per_s)
        assert 0 < found.kept_tokens <= found.output_tokens


@pytest.mark.slow
def test_a_run_is_compared_with_the_run_of_the_target_alone_next_to_it(tmp_path: Path) -> None:
    result = solve(tmp_path)
    assert summary_of(result.folder).baseline is None
    given = RunOptions(graph=ROOT / "graphs/speccot.yaml", engines=SIM, input=(str(write_problems(tmp_path)),))
    options = run_baseline(given).next_to(result.folder)
    assert options.output == baseline_folder(result.folder) == tmp_path / "run-target"
    alone = run(options)
    assert (alone.exit_code, alone.run.plan.name) == (0, "target")
    found = summary_of(result.folder).baseline
    assert found is not None
    assert found.problems_per_s == pytest.approx(12 / (alone.run.wall_time_s or 0))
    assert found.times_as_fast == pytest.approx((alone.run.wall_time_s or 0) / (result.run.wall_time_s or 0))
    assert not any("max_steps" in flag for flag in found.flags), "no chain has met it"
