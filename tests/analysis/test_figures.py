"""Figures against plain loops over the rows of runs, and intervals against resampling and closed forms."""

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.analysis.figures import (
    FIGURES,
    LEAST,
    NOTHING,
    Estimate,
    factor,
    figures,
    gain,
    outcomes,
    pass_at,
    ratio,
    read_sums,
    share,
    wilson,
)
from pipeline.store.query import Query
from pipeline.store.rows import StepRow
from pipeline.store.run_file import RunFile
from tests.analysis.conftest import score_drafts
from tests.support.golden import whole
from tests.support.rows import blank
from tests.support.runs import solve_short, write_problems
from tests.support.traces import S, T, call, chain, write

ANSWERED = {"answer": {"kind": "answer", "engine": "target"}}
RESPONSE = {"response": {"kind": "generate", "engine": "target", "unit": "response", "max_tokens": 100}}


def by_hand(folder: Path) -> dict[str, Any]:
    """The figures of a run, and by problem its right chains, tokens and seconds, from all rows at once."""
    plan = RunFile.read(folder).plan
    chains, calls, steps, rewards = (whole(folder, table).to_pylist() for table in ("chains", "calls", "steps", "rewards"))
    finishing = plan.finishing
    responses = {node.name for node in plan.stages() if node.spec.finishes and not node.spec.answers}
    found: dict[str, list[dict[str, Any]]] = {}
    for row in chains:
        own, mine = ([each for each in table if each["chain_id"] == row["chain_id"]] for table in (calls, steps))
        texts = [tokens for each in mine for tokens in each["candidate_tokens"]]
        scored = [each for each in rewards if each["chain_id"] == row["chain_id"] and each["reward"] is not None]
        drafted = [each for each in mine if each["candidate_tokens"]]
        thought = sum(each["step_tokens"] for each in mine if each["stage"] in finishing)
        answer = sum(each["output_tokens"] for each in own if each["stage"] in finishing) - thought
        ends = [
            each["end_unix_ns"] - (each["decode_time_s"] * 1e9 * (1 - thought / each["output_tokens"]) if each["stage"] in responses else 0)
            for each in own
            if each["purpose"] != "answer"
        ]
        of_drafts: dict[int, list[float]] = {}
        for each in scored:
            if each["candidate_index"] is not None:
                of_drafts.setdefault(each["step_index"], []).append(each["reward"])
        kept = [each["step_tokens"] for each in mine if each["chosen_candidate"] is not None]
        picked = [each["reward"] for each in scored if each["candidate_index"] is not None and each["selected"]]
        values = {
            "tokens": row["thought_tokens"] + answer,
            "thought_tokens": row["thought_tokens"],
            "answer_tokens": answer,
            "latency_s": row["chain_time_s"],
            "thinking_s": (max(ends) - min(each["submit_unix_ns"] - each["client_wait_s"] * 1e9 for each in own)) / 1e9 if own else 0.0,
            "target_thought_tokens": row["thought_tokens"] - sum(kept),
            "longest_draft_tokens": sum(max(each["candidate_tokens"]) for each in drafted),
            "tokens_per_draft": (sum(texts), len(texts)),
            "fallback_rate": (row["fallback_steps"], row["fallback_steps"] + row["accepted_steps"]),
            "draft_step_share": (row["accepted_steps"] + row["unverified_steps"], row["steps"]),
            "unverified_share": (row["unverified_steps"], row["steps"]),
            "drafted_reward": (sum(map(fmean, of_drafts.values())), len(of_drafts)),
            "selected_reward": (sum(picked), len(picked)),
        }
        over = row["stop_reason"] in ("error", "cancelled")
        right = None if row["reference_answer"] is None else bool(row["correct"]) and not over
        found.setdefault(row["problem_id"], []).append({"over": over, "right": right} | values)
    return found


def divided(found: dict[str, list[dict[str, Any]]], name: str) -> float | None:
    """A figure of finished chains: means over a problem, added up over problems."""
    over = under = 0.0
    for mine in found.values():
        values = [each[name] for each in mine if not each["over"]]
        pairs = [value if isinstance(value, tuple) else (value, 1) for value in values]
        over += fmean(pair[0] for pair in pairs) if pairs else 0.0
        under += fmean(pair[1] for pair in pairs) if pairs else 0.0
    return over / under if under else None


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["target", "speccot", "gated", "self-consistency"])
def test_figures_are_what_plain_loops_find(graph: str, tmp_path: Path) -> None:
    """Of two samples of nine rows, of which one holds no problem and three have no reference; their drafts are scored at random."""
    problems = write_problems(tmp_path, 5, extra=(*(b'{"problem": "Problem %d?"}' % number for number in range(3)), b"{"))
    folder = solve_short(tmp_path, "run", graph, input=problems, samples=2).folder
    draw = np.random.default_rng(0)
    score_drafts(folder, lambda place: float(draw.random()))
    expected = by_hand(folder)
    with Query(folder) as db:
        sums = read_sums([db])
    found = figures(sums)
    graded = [each["right"] for mine in expected.values() for each in mine if each["right"] is not None]
    assert found["accuracy"].value == pytest.approx(sum(graded) / len(graded))
    for each in FIGURES[1:]:
        wanted = divided(expected, each.name)
        if each.needs and not sums[each.needs].any():
            assert found[each.name] == NOTHING
        else:
            assert found[each.name].value == (wanted if wanted is None else pytest.approx(wanted)), each.name
    assert {each.low for each in found.values()} == {None}, "nine problems are too few"
    with Query(folder) as one, Query(folder) as other:
        again = figures(read_sums([one, other]))
    assert [each.value for each in again.values()] == pytest.approx([each.value for each in found.values()])


def seconds(folder: Path) -> dict[int, float]:
    with Query(folder) as db:
        sums = read_sums([db])
    return dict(zip(sums["chains"].tolist(), sums["thinking_s"].tolist(), strict=True))


def test_thinking_ends_before_the_answer_and_without_pauses(tmp_path: Path) -> None:
    calls = [
        call("p#0", "draft", 0, 1, 4, purpose="draft", stage="draft"),
        call("p#0", "target", 4, 4, 5, purpose="judge", stage="verify"),
        call("p#0", "target", 5, 15, 18, purpose="write", stage="fallback"),
        call("p#0", "target", 18, 18, 20, purpose="answer", stage="answer"),
    ]
    spans = ((-20, -10), (-2, 6), (14, 20))
    sessions = [{"started_unix_ns": T + start * S, "ended_unix_ns": T + end * S} for start, end in spans]
    run = write(tmp_path, calls=calls, chains=[chain("p#0", 0, 20, problem_id="p")], card={"sessions": sessions, "stages": ANSWERED})
    assert seconds(run) == {1.0: pytest.approx(18 - 8)}


@pytest.mark.parametrize(("sampled", "decode_s", "expected"), [(100, 8.0, 10 - 8 / 4), (75, 8.0, 10), (100, None, 10 - 10 / 4)])
def test_a_response_is_split_between_thought_and_answer_by_tokens(
    sampled: int, decode_s: float | None, expected: float, tmp_path: Path
) -> None:
    calls = [call("p#0", "target", 0, 0, 10, purpose="write", stage="response", output_tokens=sampled, decode_time_s=decode_s)]
    steps = [blank(StepRow, chain_id="p#0", stage="response", step_tokens=75)]
    chains = [chain("p#0", 0, 10, problem_id="p", thought_tokens=75, steps=1)]
    run = write(tmp_path, calls=calls, steps=steps, chains=chains, card={"stages": RESPONSE})
    assert seconds(run) == {1.0: pytest.approx(expected)}


counts = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=LEAST, max_size=40)


@given(counts)
def test_the_interval_is_that_of_the_linearised_ratio(pairs: Sequence[tuple[int, int]]) -> None:
    over, under = np.array(pairs, float).T
    found, n = ratio(over, under), len(pairs)
    value = sum(over) / sum(under)
    error = math.sqrt(n / (n - 1) * sum((a - value * b) ** 2 for a, b in pairs)) / sum(under)
    assert found.value == pytest.approx(value)
    assert (found.low, found.high) == (pytest.approx(value - 1.959964 * error, abs=1e-6), pytest.approx(value + 1.959964 * error, abs=1e-6))
    few = ratio(over[: LEAST - 1], under[: LEAST - 1])
    assert (few.low, few.high) == (None, None)


@given(counts, counts)
def test_a_factor_and_its_inverse_say_the_same(one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> None:
    n = min(len(one), len(other))
    a, b = (np.array(pairs, float)[:n, 1] for pairs in (one, other))
    found, inverse = factor([(a, b, 1)]), factor([(a, b, -1)])
    assert found.value == pytest.approx(a.sum() / b.sum())
    ends = [end for end in (inverse.value, inverse.high, inverse.low) if end is not None]
    assert [1 / end for end in ends] == pytest.approx([found.value, found.low, found.high])


def test_intervals_cover_what_they_should() -> None:
    """Of 400 draws of 60 problems some 95 % have the true ratio within their interval."""
    draw, inside = np.random.default_rng(1), 0
    for _ in range(400):
        steps = draw.integers(1, 12, 60).astype(float)
        found = share(draw.binomial(steps.astype(int), 0.3).astype(float), steps)
        inside += (found.low or 0) <= 0.3 <= (found.high or 0)
    assert 0.92 <= inside / 400 <= 0.98


def test_shares_of_nothing_of_all_and_of_one_trial_a_problem_have_wilsons_interval() -> None:
    ones = np.ones(40)
    assert share(0 * ones, ones) == Estimate(0.0, *wilson(0.0, 40))
    assert share(3 * ones, 3 * ones) == Estimate(1.0, *wilson(1.0, 40))
    assert outcomes(np.arange(40) < 10, ones) == Estimate(0.25, *wilson(0.25, 40))
    assert wilson(0.5, 10) == (pytest.approx(0.2366, abs=1e-4), pytest.approx(0.7634, abs=1e-4))
    assert (share(ones, 0 * ones), gain(ones, 0 * ones, ones, ones)) == (NOTHING, NOTHING)
    same = gain(ones, ones, ones, ones)
    assert (same.value, same.high) == (0.0, pytest.approx(wilson(0.0, 40)[1]))


@given(st.lists(st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), min_size=1, max_size=8))
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(problems: list[tuple[int, int]]) -> None:
    samples, right = np.array(problems, float).T
    for k, found in pass_at(samples, right).items():
        draws = [[any(place < good for place in chosen) for chosen in combinations(range(n), k)] for n, good in problems if n >= k]
        assert found == pytest.approx(fmean(fmean(each) for each in draws))
