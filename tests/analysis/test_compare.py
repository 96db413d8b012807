"""Runs side by side: figures against hand-computed ones, the baseline, refusals and flags."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from pipeline.analysis.compare.compare import compare
from pipeline.analysis.compare.runs import RunTable
from pipeline.analysis.quality.by_problem import Quality
from pipeline.analysis.quality.estimates import NOTHING, Estimate
from pipeline.analysis.quality.samples import wilson
from pipeline.analysis.quality.selection import ThoughtChoices
from pipeline.analysis.resources import Resources
from pipeline.errors import UsageError
from pipeline.store.run_file import Host, RunInput
from tests.analysis.conftest import RULES

Make = Callable[..., RunTable]
BASE = [8.0, 4.0, 6.0, 2.0]
ONES = [1.0, 1.0, 1.0, 1.0]


def test_figures_are_those_of_the_definitions(table: Make) -> None:
    fast = table("speccot", [4.0, 2.0, 3.0, 1.0], right=[1, 0, 1, 1], thought_tokens=np.array([10.0, 20.0, 10.0, 20.0]))
    base, ours = compare([table("target", BASE), fast]).runs
    assert ours.over_baseline.speed_up == Estimate(2.0, 2.0, 2.0)  # twice as fast on every problem: no draw of problems says otherwise
    assert base.over_baseline.speed_up.value == 1.0
    bounds = wilson(0.75, 4)
    assert ours.accuracy == Estimate(0.75, bounds.low, bounds.high)  # the interval of summaries
    gain = ours.over_baseline.accuracy_gain
    assert gain.low is not None
    assert gain.high is not None
    assert gain.low < -0.25 == gain.value <= gain.high
    assert (ours.tokens.value, ours.over_baseline.token_factor.value) == (25.0, 2.0)
    assert (ours.fallback_rate.value, ours.draft_share.value) == (0.25, 0.75)
    assert ours.kept_tokens_per_s == 10.0
    assert (ours.text_tokens["drafted"].value, ours.text_tokens["fallback"].value) == (6.0, 20.0)


def test_a_speed_up_is_shorter_text_times_speed(table: Make) -> None:
    """Of half as many tokens in a quarter of the time each token takes half as long, on every problem."""
    fast = table("speccot", [latency / 4 for latency in BASE], thought_tokens=np.full(4, 15.0))
    over = compare([table("target", BASE), fast]).runs[1].over_baseline
    assert over.speed_up == Estimate(4.0, 4.0, 4.0)
    assert over.token_factor == over.rate_factor == Estimate(2.0, 2.0, 2.0)


def test_the_factors_of_a_speed_up_have_intervals_and_its_product(table: Make) -> None:
    wordy = table("scot", [2.0, 9.0, 1.0, 4.0], thought_tokens=np.array([90.0, 20.0, 60.0, 10.0]), problem_ids=("p0", "p1", "p2", "p5"))
    over = compare([table("target", BASE), wordy]).runs[1].over_baseline
    assert over.problems == 3
    assert over.token_factor.value == pytest.approx(150 / 200)  # with answers of 10 tokens
    assert over.rate_factor.value == pytest.approx((200 / 12) / (150 / 18))
    assert over.speed_up.value == pytest.approx((over.token_factor.value or 0) * (over.rate_factor.value or 0))
    for factor in (over.token_factor, over.rate_factor):
        assert (factor.low or 0) < (factor.value or 0) < (factor.high or 0)


def test_several_samples_weigh_by_what_was_graded(table: Make) -> None:
    run = table("draft", ONES, right=[2, 0, 1, 0], graded=np.array([2.0, 2.0, 1.0, 0.0]), chains=np.full(4, 2.0))
    found = compare([run]).runs[0]
    assert found.accuracy.value == 3 / 5
    assert found.kept_tokens_per_s == 4 * 50 * 2 / 10.0


def test_graphs_that_draft_nothing_have_no_share_of_steps(table: Make) -> None:
    alone = table("target", ONES, accepted=np.zeros(4), fallbacks=np.zeros(4), texts={})
    found = compare([alone]).runs[0]
    assert (found.fallback_rate, found.draft_share) == (NOTHING, NOTHING)


def test_selection_by_class(table: Make) -> None:
    choices = ThoughtChoices(
        problem=np.array([0, 0, 1, 2, 3]),
        right_drafted=np.array([1, 1, 1, 0, 0]),
        rejected=np.array([0, 0, 1, 1, 0]),
        picked_right=np.array([1, 1, 0, 0, 0]),
        may_reject=True,
    )
    found = compare([table("scot", ONES, choices=choices)]).runs[0].selection
    assert found is not None
    assert (found.class_1, found.class_1_right.value) == (3, pytest.approx(2 / 3))
    assert (found.class_2, found.class_2_right.value) == (2, 0.5)
    best = compare([table("best-of-n", ONES, choices=structs.replace(choices, may_reject=False))]).runs[0].selection
    assert best is not None
    assert best.class_2_right == NOTHING


def test_quality_is_that_of_all_drafts_and_of_selected_ones(table: Make) -> None:
    quality = Quality(
        drafted=np.array([1.0, 1.2, 0.0, 0.0]),
        steps=np.array([2, 2, 0, 0]),
        selected=np.array([0.7, 1.5, 0.0, 0.0]),
        selections=np.array([1, 2, 0, 0]),
    )
    found = compare([table("speccot", ONES, quality=quality)]).runs[0].quality
    assert found is not None
    assert (found.drafted.value, found.selected.value) == (pytest.approx(2.2 / 4), pytest.approx(2.2 / 3))


def test_differences_are_over_the_problems_both_have(table: Make) -> None:
    part = table("part", [4.0, 2.0], problem_ids=("p1", "p3"))
    comparison = compare([table("target", BASE), part])
    assert comparison.runs[1].over_baseline.speed_up.value == pytest.approx((4.0 + 2.0) / (4.0 + 2.0))
    assert comparison.runs[1].over_baseline.problems == 2
    assert any("2 of its 2 problems are also the baseline's" in flag.what for flag in comparison.flags)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"seed": 3}, "seed is 3, the baseline's 0"),
        ({"batch_size": 1}, "batch_size is 1, the baseline's 8"),
        ({"replicas": 4}, "replicas is 4, the baseline's 1"),
        ({"status": "interrupted"}, "it is interrupted: only finished chains count"),
        ({"failed": 2}, "2 chains failed: they count as wrong and are in no other figure"),
        ({"simulated": True}, "one of the two is simulated, the other measured"),
        (
            {"host": Host(processor="another")},
            "it ran on another machine or system than the baseline: processor another, the baseline's one",
        ),
        ({"host": Host(processor="one", cores=1)}, "it could use another number of cores: 1, the baseline None"),
        ({"rules": structs.replace(RULES, thought_tokens=50)}, "its thoughts have at most 50 tokens, the baseline's at most 100 tokens"),
        ({"admission": "batch"}, "admission is batch, the baseline's cache"),
        ({"rules": structs.replace(RULES, engines={"target": {"model": "other"}})}, "its target is other, the baseline's large"),
        (
            {"rules": structs.replace(RULES, engines={"target": {"backend": "vllm"}})},
            "the backend of its target is vllm, the baseline's torch",
        ),
        ({"resources": Resources(gpus=1)}, "it had 1 GPU, the baseline 2 cores"),
        ({"resources": Resources(cores=4)}, "it had 4 cores, the baseline 2 cores"),
        ({"reward_model": "other"}, "its steps were scored by other, the baseline's by prm"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_else_differs_is_said(table: Make, fields: dict[str, Any], says: str) -> None:
    base = table("target", BASE, reward_model="prm" if "reward_model" in fields else None)
    flags = compare([base, table("other", ONES, **fields)]).flags
    assert [flag.what for flag in flags if says in flag.what], flags
    assert {flag.run for flag in flags} == {"other"}


def test_a_baseline_with_other_hardware_is_said(table: Make) -> None:
    alone = table("target", BASE, engines={"target": {"backend": "torch", "model": "org/large"}}, resources=Resources(cores=1))
    ours = table("speccot", ONES, resources=Resources(cores=2))
    assert [flag.what for flag in compare([alone, ours]).flags] == ["it had 2 cores, the baseline 1 core"]


def test_runs_over_several_data_sets_are_compared_within_each(table: Make) -> None:
    other = {"file": Path("folder/test.parquet"), "input": RunInput(sha256="another", rows=4, chains=4, samples=1)}
    runs = [
        table("target", BASE),
        table("fast", [4.0] * 4),
        table("t2", [9.0] * 4, graph="target", **other),
        table("f2", [3.0] * 4, **other),
    ]
    found = compare(runs)
    assert found.baselines == {"data": "target", "folder": "t2"}
    assert [run.over_baseline.speed_up.value for run in found.runs] == [1.0, 1.25, 1.0, 3.0]
    assert compare(runs, "t2").baselines == {"data": "target", "folder": "t2"}
    with pytest.raises(UsageError, match="--baseline fast: there is no run of graph fast over folder"):
        compare(runs, "fast")
    with pytest.raises(UsageError, match="--baseline f2: there is no run of graph f2 over data"):
        compare(runs, "f2")
    with pytest.raises(UsageError, match="no finished problem in common"):
        compare([runs[0], table("other", [1.0], problem_ids=("q",))])


def test_a_failed_chain_is_wrong_and_in_no_other_figure(table: Make) -> None:
    """The third problem's only chain failed."""
    lost = {"chains": np.array([1, 1, 0, 1.0]), "right": [1, 1, 0, 1], "failed": 1}
    run = table(
        "speccot", [4.0, 2.0, 0.0, 1.0], thought_tokens=np.array([40, 40, 0, 40.0]), answer_tokens=np.array([10, 10, 0, 10.0]), **lost
    )
    found = compare([table("target", BASE), run]).runs[1]
    assert (found.accuracy.value, found.over_baseline.accuracy_gain.value, found.problems) == (0.75, -0.25, 3)
    assert (found.tokens.value, found.latency_s.value) == (50.0, pytest.approx(7 / 3))
    assert (found.over_baseline.speed_up.value, found.over_baseline.problems) == (2.0, 3)


def test_the_baseline_is_named_or_the_target_alone(table: Make) -> None:
    base, other = table("target", BASE), table("speccot", ONES)
    again = structs.replace(other, name="again")
    assert compare([other, base]).baseline == "target"
    assert compare([other, base], "speccot").baseline == "speccot"
    assert compare([other]).baseline == "speccot"
    assert compare([base, other, again], "again").baseline == "again"
    with pytest.raises(UsageError, match="--baseline scot: no such run or graph here; there are speccot, target"):
        compare([other, base], "scot")
    one = structs.replace(other, name="one")
    with pytest.raises(UsageError, match="--baseline speccot: again, one are all of that graph; name one of them"):
        compare([again, one, base], "speccot")


def test_the_run_that_drafts_nothing_is_the_baseline_whatever_its_name(table: Callable[..., RunTable]) -> None:
    drafts = table("picked", [2.0, 2.0], drafters=("small",))
    alone = table("large-alone", [4.0, 4.0], drafters=())
    assert compare([drafts, alone]).baseline == "large-alone"
    assert compare([drafts, alone, table("target", [4.0, 4.0])]).baseline == "target"
    assert compare([drafts, table("other", [1.0, 1.0], drafters=("small",))]).baseline == "picked"
