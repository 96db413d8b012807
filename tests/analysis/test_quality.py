"""Analyses of steps, verdicts, rewards and failures, against plain loops over the rows of random small runs."""

import random
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from pipeline.analysis.quality.by_problem import Quality, Texts, read_quality, read_texts
from pipeline.analysis.quality.option_mass import LOW, mass_sentence, option_mass, read_masses
from pipeline.analysis.quality.reward_agreement import BINS, agreement, read_scored_steps, spearman
from pipeline.analysis.quality.step_counts import count_steps
from pipeline.cli.runs.show import failures
from pipeline.store.query import Query
from pipeline.store.rows import ChainRow, StepRow
from tests.support.changed import write_rewards
from tests.support.rows import blank
from tests.support.traces import CHOOSE, LIKELIHOOD, SCORE, write

TEXTS = ("", "Wait, but no. Hmm: butter waits. Double-check!", "x = 12 über naïve", "however, alternatively\nLET ME CHECK")
Rows = dict[str, list[dict[str, Any]]]


def random_rows(seed: int) -> Rows:
    """Chains, steps and rewards of a run of a dozen problems."""
    draw = random.Random(seed)
    rows: Rows = {"chains": [], "steps": [], "rewards": []}
    for number in range(draw.randint(1, 24)):
        problem, sample = number % 12, number // 12
        chain = {
            "chain_id": f"p{problem}#{sample}",
            "input_row": problem + 1,
            "sample_index": sample,
            "end_unix_ns": draw.randint(1, 10**9),
        }
        failed = draw.random() < 0.3
        chain |= {"stop_reason": "error" if failed else "thought_closed", "correct": None if failed else draw.choice([True, False, None])}
        if failed:
            error = draw.choice(["BadRow", "EngineUnavailable"]), draw.choice([None, "draft"]), f"failed after {draw.randint(1, 20)} s"
            chain |= dict(zip(("error_type", "error_stage", "error_message"), error, strict=True))
        rows["chains"].append(chain)
        for index in range(draw.randint(0, 5)):
            rows["steps"].append(_step(draw, chain["chain_id"], index))
            rows["rewards"] += _rewards(draw, rows["steps"][-1])
    return rows


def _step(draw: random.Random, chain: str, index: int) -> dict[str, Any]:
    drafts = draw.randint(0, 3)
    chosen = draw.randrange(drafts) if drafts and draw.random() < 0.6 else None
    row = {
        "chain_id": chain,
        "step_index": index,
        "step_text": draw.choice(TEXTS),
        "step_token_ids": (7,) * draw.randint(0, 6),
        "candidate_texts": tuple(draw.choice(TEXTS) for _ in range(drafts)),
        "candidate_tokens": tuple(draw.randint(0, 6) for _ in range(drafts)),
        "num_candidates": drafts,
        "chosen_candidate": chosen,
        "decision": "accepted" if chosen is not None else "fallback" if drafts else "written",
    }
    if drafts:
        scale, value = draw.choice([(CHOOSE, draw.random()), (SCORE, float(draw.randint(0, 9))), (LIKELIHOOD, -draw.expovariate(1))])
        probs = draw.choice([(), (0.4, 0.6)])
        row |= scale | {
            "score_value": value,
            "score_probs": probs,
            "score_mass": draw.choice([None, draw.random() ** 0.1]),
            "threshold": 7.0,
        }
    return row


def _rewards(draw: random.Random, step: dict[str, Any]) -> list[dict[str, Any]]:
    places = [*range(step["num_candidates"]), *([None] if step["chosen_candidate"] is None else [])]
    common = {name: step[name] for name in ("chain_id", "step_index", "decision")} | {"model": "prm"}
    return [
        common | {"candidate_index": place, "selected": place == step["chosen_candidate"], "reward": draw.choice([None, draw.random()])}
        for place in places
        if draw.random() < 0.9
    ]


@pytest.fixture(params=range(4))
def given(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Rows]:
    """A run folder and its rows; every other run was killed, so that its rows are in write-ahead files."""
    rows = random_rows(request.param)
    kinds = {"chains": ChainRow, "steps": StepRow}
    tables = {name: [blank(kind, **row) for row in rows[name]] for name, kind in kinds.items()}
    run = write(tmp_path / "run", closed=request.param % 2 == 0, **tables)
    if rows["rewards"]:
        write_rewards(run, rows["rewards"])
    return run, rows


def places_of(rows: Rows) -> dict[str, int]:
    return {row["chain_id"]: row["input_row"] - 1 for row in rows["chains"] if row["stop_reason"] != "error"}


def placed(run: Path, rows: Rows) -> Query:
    """The run, with the problems of its finished chains as a table."""
    db, places = Query(run), places_of(rows)
    db.register("places", run=db.names * len(places), chain_id=list(places), problem=list(places.values()))
    return db


def test_failures(given: tuple[Path, Rows]) -> None:
    run, rows = given
    failed = [row for row in rows["chains"] if row["stop_reason"] == "error"]
    counts = Counter((row["error_type"], row["error_stage"]) for row in failed)
    found = failures(run)
    assert {(each.error_type, each.stage): each.count for each in found} == counts
    assert [each.count for each in found] == sorted(counts.values(), reverse=True)
    for each in found:
        mine = sorted(
            (row["end_unix_ns"], row["chain_id"], row["error_message"])
            for row in failed
            if (row["error_type"], row["error_stage"]) == (each.error_type, each.stage)
        )
        assert (each.message, each.examples) == (mine[0][2], tuple(name for _, name, _ in mine[:5]))


def test_texts(given: tuple[Path, Rows]) -> None:
    run, rows = given
    places, sums = places_of(rows), dict[str, Any]()
    for row in rows["steps"]:
        drafts = row["candidate_tokens"]
        said = [(row["decision"], len(row["step_token_ids"])), *(("drafted", tokens) for tokens in drafts)]
        said += [("longest", max(drafts))] if drafts else []
        for kind, tokens in said if row["chain_id"] in places else ():
            sums.setdefault(kind, np.zeros((2, 12)))[:, places[row["chain_id"]]] += (1, tokens)
    found = read_texts(placed(run, rows), 12)
    assert {kind: [getattr(each, name).tolist() for name in Texts.__struct_fields__] for kind, each in found.items()} == {
        kind: each.tolist() for kind, each in sums.items()
    }


def test_rewards_of_problems(given: tuple[Path, Rows]) -> None:
    run, rows = given
    places, steps = places_of(rows), dict[tuple[str, int], list[dict[str, Any]]]()
    for row in rows["rewards"]:
        if row["reward"] is not None and row["chain_id"] in places:
            steps.setdefault((row["chain_id"], row["step_index"]), []).append(row)
    sums = {name: np.zeros(12) for name in Quality.__struct_fields__}
    for (chain, _), texts in steps.items():
        drafts = [row["reward"] for row in texts if row["candidate_index"] is not None]
        picked = [row["reward"] for row in texts if row["candidate_index"] is not None and row["selected"]]
        added = {"drafted": fmean(drafts) if drafts else 0.0, "steps": bool(drafts), "selected": sum(picked), "selections": bool(picked)}
        for name, value in added.items():
            sums[name][places[chain]] += value
    found = read_quality(placed(run, rows), 12)
    assert (found is None) == (not steps)
    for name, column in sums.items() if found else ():
        assert getattr(found, name) == pytest.approx(column), name


def test_scores_against_rewards(given: tuple[Path, Rows]) -> None:
    run, rows = given
    places = places_of(rows)
    rewards = {(row["chain_id"], row["step_index"], row["candidate_index"]): row["reward"] for row in rows["rewards"]}
    pairs = [
        (row["score_value"], reward)
        for row in rows["steps"]
        if row["chain_id"] in places and row["num_candidates"] and not row["score_of_candidates"]
        if row["chosen_candidate"] is not None or row["num_candidates"] == 1
        if (reward := rewards.get((row["chain_id"], row["step_index"], row["chosen_candidate"] or 0))) is not None
    ]
    scored = read_scored_steps(placed(run, rows))
    assert (scored is None) == (not pairs)
    if scored is not None and (found := agreement(scored)) is not None:
        bins = [int(reward * BINS) for _, reward in pairs]
        assert found.steps == len(bins)
        for place, mean in enumerate(found.means):
            values = [score for (score, _), own in zip(pairs, bins, strict=True) if own == place]
            assert mean.value == (pytest.approx(fmean(values)) if values else None)


@pytest.fixture(scope="module")
def reference() -> Any:
    from scipy.stats import spearmanr  # most of a second, in every worker that collects this file

    return spearmanr


@pytest.mark.slow
@drawn(pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=30))
def test_the_correlation_is_that_of_spearman_with_ties(reference: Any, pairs: list[tuple[int, int]]) -> None:
    one, other = np.array(pairs, float).T
    found = spearman(one, other)
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        assert found is None
    else:
        assert found == pytest.approx(reference(one, other).statistic)


def test_lengths_and_verdicts(given: tuple[Path, Rows]) -> None:
    run, rows = given
    found, lengths = count_steps(Query(run)), Counter[tuple[str, int]]()
    for row in rows["steps"]:
        lengths[row["decision"], len(row["step_token_ids"])] += 1
        for place, tokens in enumerate(row["candidate_tokens"]):
            if place != row["chosen_candidate"]:
                lengths["rejected" if row["chosen_candidate"] is None else "not_chosen", tokens] += 1
    assert {(kind, tokens): n for kind, each in found.lengths.items() for tokens, n in enumerate(each.tolist()) if n} == lengths
    verified = [row for row in rows["steps"] if row["num_candidates"]]
    assert dict(enumerate(found.verified.tolist())) | Counter(row["step_index"] for row in verified) == dict(
        enumerate(found.verified.tolist())
    )
    assert (sum(found.verified), sum(found.accepted)) == (len(verified), sum(row["decision"] == "accepted" for row in verified))
    assert set(found.scores) == {row["verify_kind"] for row in verified}
    for kind, scores in found.scores.items():
        mine = [row for row in verified if row["verify_kind"] == kind]
        accepted = [row for row in mine if row["decision"] == "accepted"]
        assert (int(scores.accepted.sum()), int(scores.rejected.sum()), scores.threshold) == (len(accepted), len(mine) - len(accepted), 7.0)


def test_masses(given: tuple[Path, Rows]) -> None:
    run, rows = given
    masses = [
        row["score_mass"] for row in rows["steps"] if row.get("score_mass") is not None and row["score_probs"] and not row["score_unit"]
    ]
    with Query(run) as db:
        assert sorted(read_masses(db).tolist()) == sorted(masses)
    found = option_mass(np.array(masses))
    assert (found is None) == (not masses)
    if found is not None:
        low = sum(mass < LOW for mass in masses)
        assert (found.verifications, found.mean, found.low_share) == (
            len(masses),
            pytest.approx(fmean(masses)),
            pytest.approx(low / len(masses)),
        )
        assert ("check its prompt" in mass_sentence(found)) == found.flagged == (low > 0.05 * len(masses))
