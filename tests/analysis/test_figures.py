"""Figures against plain loops over the rows of random runs, and intervals against closed forms."""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.analysis.choices import majority
from pipeline.analysis.figures import FIGURES, NOTHING, Estimate, factor, figures, gain, outcomes, pass_at, ratio, read_sums, share, wilson
from pipeline.analysis.progress import run_state
from pipeline.analysis.steps import count_steps
from pipeline.analysis.summary import StageSummary, Summary, summarize
from pipeline.analysis.time.latency import QUANTITIES, latencies
from pipeline.cli.show import failures
from pipeline.errors import InputError
from pipeline.store.query import Query
from pipeline.store.rows import RewardRow, StepRow
from pipeline.store.run_file import RunFile
from pipeline.store.store import RunStore
from tests.support.rows import blank
from tests.support.run_files import RESPONSE, RUN_JSON, write_run_json
from tests.support.traces import CHOOSE, SCORE, at, call, card, chain, write

SESSIONS = (0, 40), (50, 100)
"""Seconds of the two sessions of a run."""
SAMPLED = RUN_JSON["input"] | {"samples": 3}
DRAFTED = {"kind": "draft", "engine": "draft", "unit": "step", "max_tokens": 9}
VERIFIED = {"kind": "choose", "engine": "target", "unit": "step", "after": "draft"}
REASON = {"kind": "repeat", "until": {"thought_closed": True, "token_budget": 99}, "stages": {"draft": DRAFTED, "verify": VERIFIED}}
STAGES = {"reason": REASON, "answer": {"kind": "answer", "engine": "target", "after": "reason"}}
Rows = dict[str, list[Any]]


def random_rows(draw: random.Random, whole: bool) -> Rows:
    """The rows of a run of nine problems with up to three samples, drafted and verified, or with responses as a whole."""
    rows: Rows = {"chains": [], "steps": [], "calls": [], "rewards": []}
    for number in range(24):
        name, began = f"p{number % 9}#{number // 9}", draw.uniform(0, 60)
        steps = [random_step(draw, name, index, whole) for index in range(whole or draw.randint(0, 1), draw.randint(1, 5) + whole)]
        counts, tokens = Counter(step.decision for step in steps), sum(step.step_tokens for step in steps)
        stage = [("target", "response", "write")] if whole else [("draft", "draft", "draft"), ("target", "verify", "judge")]
        stages = stage + [draw.choice([*stage, ("target", "answer", "answer")]) for _ in range(0 if whole else draw.randint(0, 6))]
        for engine, name_of, purpose in stages:
            ready, wait, length = began + draw.uniform(0, 30), draw.uniform(0, 2), draw.uniform(1, 9)
            times = {f"{part}_time_s": draw.choice([None, draw.random()]) for part in ("queue", "prefill", "decode")}
            told = times | {"error_type": draw.choice([None, None, "CallTimeout"]), "output_tokens": tokens + draw.randint(1, 9)}
            told |= {"input_tokens": draw.randint(5, 9), "cached_input_tokens": draw.choice([None, 0, 5]), "attempt": draw.randint(0, 1)}
            rows["calls"].append(call(name, engine, ready, ready + wait, ready + wait + length, stage=name_of, purpose=purpose, **told))
        reason = draw.choice(["thought_closed"] * 4 + ["error", "cancelled"])
        graded = {
            "reference_answer": draw.choice([None, "1", "1"]),
            "correct": draw.choice([True, True, False, None]),
            "answer_text": draw.choice([None, " \n", "7"]),
            "answer": draw.choice([None, "7", "7", "8"]),
        }
        if reason == "error":
            error = draw.choice(["BadRow", "EngineUnavailable"]), draw.choice([None, "draft"]), f"failed after {draw.randint(1, 20)} s"
            graded |= dict(zip(("error_type", "error_stage", "error_message"), error, strict=True))
        fields = {f"{decision}_steps": counts[decision] for decision in ("accepted", "fallback", "unverified")}
        fields |= {
            "input_row": number % 9 + 1,
            "problem_id": name[:2],
            "sample_index": number // 9,
            "steps": len(steps),
            "thought_tokens": tokens,
            "stop_reason": reason,
        }
        rows["chains"].append(chain(name, began, began + draw.uniform(1, 90), **fields | graded))
        rows["steps"] += steps
        for step in steps:
            places = [*range(step.num_candidates), *([None] if draw.random() < 0.2 else [])]
            rows["rewards"] += [
                blank(RewardRow, chain_id=name, step_index=step.step_index, candidate_index=place, selected=place == step.chosen_candidate,
                      reward=draw.choice([None, draw.random()])) for place in places
            ]  # fmt: skip
    draw.shuffle(rows["chains"])
    return rows


def random_step(draw: random.Random, chain: str, index: int, whole: bool) -> Any:
    """A step; one with the index 0 is guidance."""
    drafts = 0 if whole or not index else draw.randint(0, 3)
    decision = draw.choice(["accepted", "fallback", "unverified"]) if drafts else "written" if index else "guidance"
    chosen = draw.randrange(drafts) if decision in ("accepted", "unverified") else None
    verdict: dict[str, Any] = {}
    if decision in ("accepted", "fallback"):
        scale, value = draw.choice([(CHOOSE, draw.random()), (SCORE, float(draw.randint(0, 9)))])
        verdict = scale | {"score_value": value, "threshold": 7.0}
    fields = {"chain_id": chain, "step_index": index, "stage": "response" if whole else "draft", "step_tokens": draw.randint(0, 6)}
    fields |= {"candidate_tokens": tuple(draw.randint(0, 6) for _ in range(drafts)), "num_candidates": drafts}
    return blank(StepRow, decision=decision, chosen_candidate=chosen, cut=draw.random() < 0.5, **fields | verdict)


def worked(instant: float) -> float:
    """Nanoseconds without the pause between the sessions."""
    return instant - min(max(instant - at(SESSIONS[0][1]), 0), at(SESSIONS[1][0]) - at(SESSIONS[0][1]))


def by_hand(rows: Rows) -> dict[str, list[dict[str, Any]]]:
    """By problem the figures of its chains, from all rows at once."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows["chains"]:
        calls, steps, rewards = ([each for each in rows[table] if each.chain_id == row.chain_id] for table in ("calls", "steps", "rewards"))
        drafted = [step for step in steps if step.candidate_tokens]
        texts = [tokens for step in drafted for tokens in step.candidate_tokens]
        within = row.thought_tokens if calls[0].stage == "response" else 0
        answer = sum(each.output_tokens for each in calls if each.stage in ("answer", "response")) - within
        ends = [
            each.end_unix_ns - (each.decode_time_s or each.e2e_latency_s + each.client_wait_s) * 1e9 * (1 - within / each.output_tokens)
            if each.stage == "response" else each.end_unix_ns
            for each in calls if each.purpose != "answer"
        ]  # fmt: skip
        of_drafts, kept = defaultdict[int, list[float]](list), [step.step_tokens for step in steps if step.chosen_candidate is not None]
        scored = [each for each in rewards if each.candidate_index is not None and each.reward is not None]
        for each in scored:
            of_drafts[each.step_index].append(each.reward)
        picked = [each.reward for each in scored if each.selected]
        values: dict[str, Any] = {
            "tokens": row.thought_tokens + answer,
            "thought_tokens": row.thought_tokens,
            "answer_tokens": answer,
            "latency_s": row.chain_time_s,
            "thinking_s": (worked(max(ends)) - worked(min(each.submit_unix_ns - each.client_wait_s * 1e9 for each in calls))) / 1e9,
            "target_thought_tokens": row.thought_tokens - sum(kept),
            "longest_draft_tokens": sum(max(step.candidate_tokens) for step in drafted),
            "tokens_per_draft": (sum(texts), len(texts)),
            "fallback_rate": (row.fallback_steps, row.fallback_steps + row.accepted_steps),
            "draft_step_share": (row.accepted_steps + row.unverified_steps, row.steps),
            "unverified_share": (row.unverified_steps, row.steps),
            "drafted_reward": (sum(map(fmean, of_drafts.values())), len(of_drafts)),
            "selected_reward": (sum(picked), len(picked)),
        }
        right = {"error": None if row.reference_answer is None else False, "cancelled": None}.get(row.stop_reason, row.correct)
        found.setdefault(row.problem_id, []).append(
            {"over": row.stop_reason in ("error", "cancelled"), "right": right, "answer": row.answer, "sample": row.sample_index} | values
        )
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


@pytest.fixture(params=[(whole, closed) for whole in (False, True) for closed in (False, True)])
def given_run(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Rows]:
    """A run folder and its rows; of one that was killed they are in write-ahead files."""
    whole, closed = request.param
    rows = random_rows(random.Random(2 * whole + closed), whole)
    told = {"stages": {"response": RESPONSE} if whole else STAGES, "engines": {"draft": {}, "target": {}}, "input": SAMPLED}
    told |= {"sessions": [each for span in SESSIONS for each in card(*span)["sessions"]], "status": "finished" if closed else "running"}
    folder = write(tmp_path, closed=closed, card=told, **{table: rows[table] for table in ("chains", "steps", "calls")})
    with RunStore(folder).rewards() as add:
        add(rows["rewards"])
    return folder, rows


def test_figures_are_what_plain_loops_find(given_run: tuple[Path, Rows]) -> None:
    folder, rows = given_run
    expected = by_hand(rows)
    with Query(folder) as db, Query(folder) as other:
        sums, pooled = read_sums([db]), figures(read_sums([db, other]))
    found = figures(sums)
    graded = [each["right"] for mine in expected.values() for each in mine if each["right"] is not None]
    assert found["accuracy"].value == pytest.approx(fmean(graded))
    for each in FIGURES[1:]:
        wanted = divided(expected, each.name)
        if each.needs and not sums[each.needs].any():
            assert found[each.name] == NOTHING
        else:
            assert found[each.name].value == (wanted if wanted is None else pytest.approx(wanted)), each.name
    assert {each.low for each in found.values()} == {None}, "nine problems are too few"
    assert [each.value for each in pooled.values()] == pytest.approx([each.value for each in found.values()])


def test_a_summary_and_the_line_of_a_run_count_what_plain_loops_count(given_run: tuple[Path, Rows]) -> None:
    folder, rows = given_run
    found, line, chains, steps, calls = summarize(folder), run_state(folder), rows["chains"], rows["steps"], rows["calls"]
    reasons, decided = Counter(row.stop_reason for row in chains), Counter(step.decision for step in steps)
    graded = [[each for each in mine if each["right"] is not None] for mine in by_hand(rows).values()]
    right = [each["right"] for mine in graded for each in mine]
    votes = [[(each["right"], each["answer"]) for each in sorted(mine, key=lambda each: each["sample"])] for mine in graded if mine]
    assert found.majority_accuracy == majority(votes)
    assert 0 < found.majority_accuracy < 1
    chances = pass_at(*(np.array([count(mine) for mine in votes]) for count in (len, lambda mine: sum(correct for correct, _ in mine))))
    assert found.pass_at == {str(k): pytest.approx(chance) for k, chance in chances.items()}
    assert msgspec.json.decode(msgspec.json.encode(found, order="sorted"), type=Summary) == found
    done = [row for row in chains if row.stop_reason == "thought_closed"]
    assert (found.wall_time_s, found.problems, found.chains, found.done) == (90, 9, 24, len(done))
    assert (found.failed, found.cancelled, found.stop_reasons) == (reasons["error"], reasons["cancelled"], reasons)
    assert (found.graded, found.correct, found.accuracy) == (len(right), sum(right), pytest.approx(fmean(right)))
    assert found.empty_answers == sum(not (row.answer_text or "").strip() for row in done)
    assert (found.problems_per_s, found.example) == (len({row.input_row for row in done}) / 90, min(row.problem_id for row in done))
    assert (line.state == "killed") == (RunFile.read(folder).status == "running")
    if line.state == "killed":
        assert (line.chains, line.failed) == (len(done) + reasons["error"], reasons["error"])
        assert (line.graded, line.accuracy) == (len(right), pytest.approx(fmean(right)))
    verified, kept = decided["accepted"] + decided["fallback"], [step for step in steps if step.chosen_candidate is not None]
    assert (found.steps, found.verified_steps, found.accepted_steps) == (len(steps), verified, decided["accepted"])
    assert (found.fallback_steps, found.unverified_steps) == (decided["fallback"], decided["unverified"])
    assert found.cut_steps == sum(step.cut and step.step_index > 0 and step.stage != "response" for step in steps)
    assert found.acceptance_rate == (decided["accepted"] / verified if verified else None)
    of_drafts, thought = sum(step.step_tokens for step in kept), sum(step.step_tokens for step in steps)
    assert (found.thought_tokens, found.draft_share) == (thought, of_drafts / thought)
    drafted = sum(each.output_tokens for each in calls if each.purpose == "draft")
    assert (found.draft_tokens, found.wasted_draft_tokens) == (drafted, drafted - of_drafts)
    assert found.output_tokens == sum(each.output_tokens for each in calls)
    failed = sorted((row for row in chains if row.stop_reason == "error"), key=lambda row: -row.end_unix_ns)
    assert found.errors == Counter(row.error_type for row in failed)
    assert found.error_examples == {row.error_type: row.error_message for row in failed}, "the first of each"
    assert list(found.stages) == (["response"] if "response" in found.stages else ["draft", "verify", "answer"]), "as in the graph"
    for field, summaries in (("engine", found.engines), ("stage", found.stages)):
        for name, each in summaries.items():
            mine = [row for row in calls if getattr(row, field) == name]
            sums = [sum(getattr(row, column) for row in mine) for column in ("input_tokens", "output_tokens")]
            assert [each.calls, each.input_tokens, each.output_tokens] == [len(mine), *sums]
            in_flight = sum(worked(row.end_unix_ns) - worked(row.submit_unix_ns) for row in mine) / 1e9
            if isinstance(each, StageSummary):
                waited = sum(row.client_wait_s + (row.queue_time_s or 0) for row in mine)
                assert (each.in_flight_s, each.wait_s) == (pytest.approx(in_flight), pytest.approx(waited))
                assert each.failed_calls == sum(row.error_type is not None for row in mine)
                continue
            stated = [row for row in mine if row.cached_input_tokens is not None]
            cached = sum(row.cached_input_tokens for row in stated) / sum(row.input_tokens for row in stated)
            span = (max(worked(row.end_unix_ns) for row in calls) - min(worked(row.submit_unix_ns) for row in calls)) / 1e9
            assert (each.cached_share, each.mean_in_flight) == (pytest.approx(cached), pytest.approx(in_flight / span))
            assert (each.retried_calls, each.busy_share) == (sum(row.attempt for row in mine), pytest.approx(each.busy_s / span))


def test_counts_of_steps_and_failures_and_percentiles_are_what_plain_loops_find(given_run: tuple[Path, Rows]) -> None:
    folder, rows = given_run
    with Query(folder) as db:
        found, times = count_steps(db), latencies(db)
    lengths = Counter((step.decision, step.step_tokens) for step in rows["steps"])
    for step in rows["steps"]:
        lengths.update(("rejected", tokens) for place, tokens in enumerate(step.candidate_tokens) if place != step.chosen_candidate)
    assert {(kind, tokens): n for kind, each in found.lengths.items() for tokens, n in enumerate(each.tolist()) if n} == lengths
    verified = [step for step in rows["steps"] if step.verify_kind]
    accepted = [step for step in verified if step.decision == "accepted"]
    for counts, steps in ((found.verified, verified), (found.accepted, accepted)):
        assert Counter(dict(enumerate(counts.tolist()))) == Counter(step.step_index for step in steps)
    assert set(found.scores) == {step.verify_kind for step in verified}
    for kind, scores in found.scores.items():
        counted = Counter(step.decision for step in verified if step.verify_kind == kind)
        assert (scores.accepted.sum(), scores.rejected.sum(), scores.threshold) == (counted["accepted"], counted["fallback"], 7.0)
    failed = sorted((row for row in rows["chains"] if row.stop_reason == "error"), key=lambda row: (row.end_unix_ns, row.chain_id))
    for each in (causes := failures(folder)):
        mine = [row for row in failed if (row.error_type, row.error_stage) == (each["error_type"], each["stage"])]
        assert (each["count"], each["message"]) == (len(mine), mine[0].error_message)
        assert each["examples"] == [row.chain_id for row in mine[:5]]
    assert [each["count"] for each in causes] == sorted(Counter((row.error_type, row.error_stage) for row in failed).values(), reverse=True)
    names = ("client_wait_s", "queue_time_s", "prefill_time_s", "decode_time_s", None, "e2e_latency_s", None)
    columns = dict(zip(QUANTITIES, names, strict=True))
    known = defaultdict[tuple[str, str], list[float]](list)
    for row in rows["calls"]:
        for quantity, column in columns.items():
            if column and row.error_type is None and (seconds := getattr(row, column)) is not None:
                known[row.stage, quantity].append(seconds)
    assert {(each.stage, each.quantity) for each in times} == known.keys()
    for each in times:
        some = known[each.stage, each.quantity]
        assert [each.p50, each.p90, each.p99] == pytest.approx(np.percentile(some, [50, 90, 99], method="inverted_cdf").tolist())
        assert (each.count, each.max, each.mean) == (len(some), pytest.approx(max(some)), pytest.approx(fmean(some)))


def test_a_run_without_rows_or_that_goes_on_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    store = RunStore(write_run_json(tmp_path, sessions=[]))
    found = summarize(tmp_path)
    assert (found.run, found.status, found.graph, found.models) == (tmp_path.name, "finished", "target", {"target": "large"})
    assert (found.schedule, found.batch_size, found.planned, found.samples) == ("pipelined", 8, 1, 1)
    assert (found.chains, found.steps, found.engines, found.stages, found.errors) == (0, 0, {}, {}, {})
    assert [found.accuracy, found.problems_per_s, found.acceptance_rate, found.draft_share] == [None] * 4
    for mass in [1.0] * 9 + [0.3]:
        store.append("steps", [blank(StepRow, step_tokens=2, decision="fallback", score_mass=mass, score_probs=(1.0,), **SCORE)])
    assert (summarize(tmp_path).thought_tokens, summarize(tmp_path).doubtful_share) == (20, 0.1)
    store.close()
    assert (summarize(tmp_path).thought_tokens, summarize(tmp_path).doubtful_share) == (20, 0.1)
    with pytest.raises(InputError, match="expected a run folder"):
        summarize(tmp_path / "missing")


counts = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=30, max_size=40)


@given(counts)
def test_the_interval_is_that_of_the_linearised_ratio(pairs: Sequence[tuple[int, int]]) -> None:
    over, under = np.array(pairs, float).T
    found, n = ratio(over, under), len(pairs)
    value = sum(over) / sum(under)
    error = math.sqrt(n / (n - 1) * sum((a - value * b) ** 2 for a, b in pairs)) / sum(under)
    assert found.value == pytest.approx(value)
    assert (found.low, found.high) == (pytest.approx(value - 1.959964 * error, abs=1e-6), pytest.approx(value + 1.959964 * error, abs=1e-6))
    assert found.value in (0.0, 1.0) or share(over, under) == found
    few = ratio(over[:29], under[:29])
    assert (few.low, few.high) == (None, None)


@given(counts, counts)
def test_a_factor_and_its_inverse_say_the_same(one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> None:
    n = min(len(one), len(other))
    a, b = (np.array(pairs, float)[:n, 1] for pairs in (one, other))
    found, inverse = factor([(a, b, 1)]), factor([(a, b, -1)])
    assert found.value == pytest.approx(a.sum() / b.sum())
    ends = [end for end in (inverse.value, inverse.high, inverse.low) if end is not None]
    assert [1 / end for end in ends] == pytest.approx([found.value, found.low, found.high])


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
