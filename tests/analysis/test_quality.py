"""Counts of steps, verdicts and failures, against plain loops over the rows of random small runs."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline.analysis.steps import count_steps
from pipeline.cli.show import failures
from pipeline.store.query import Query
from pipeline.store.rows import ChainRow, StepRow
from tests.support.rows import blank
from tests.support.traces import CHOOSE, SCORE, write

Rows = dict[str, list[dict[str, Any]]]


def random_rows(seed: int) -> Rows:
    """Chains and steps of a run of a dozen problems."""
    draw = random.Random(seed)
    rows: Rows = {"chains": [], "steps": []}
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
        rows["steps"] += [_step(draw, chain["chain_id"], index) for index in range(draw.randint(0, 5))]
    return rows


def _step(draw: random.Random, chain: str, index: int) -> dict[str, Any]:
    drafts = draw.randint(0, 3)
    chosen = draw.randrange(drafts) if drafts and draw.random() < 0.6 else None
    row = {
        "chain_id": chain,
        "step_index": index,
        "step_tokens": draw.randint(0, 6),
        "candidate_tokens": tuple(draw.randint(0, 6) for _ in range(drafts)),
        "num_candidates": drafts,
        "chosen_candidate": chosen,
        "decision": "accepted" if chosen is not None else "fallback" if drafts else "written",
    }
    if drafts:
        scale, value = draw.choice([(CHOOSE, draw.random()), (SCORE, float(draw.randint(0, 9)))])
        row |= scale | {"score_value": value, "threshold": 7.0}
    return row


@pytest.fixture(params=range(4))
def given(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Rows]:
    """A run folder and its rows; every other run was killed, so that its rows are in write-ahead files."""
    rows = random_rows(request.param)
    kinds = {"chains": ChainRow, "steps": StepRow}
    tables = {name: [blank(kind, **row) for row in rows[name]] for name, kind in kinds.items()}
    return write(tmp_path / "run", closed=request.param % 2 == 0, **tables), rows


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


def test_lengths_and_verdicts(given: tuple[Path, Rows]) -> None:
    run, rows = given
    found, lengths = count_steps(Query(run)), Counter[tuple[str, int]]()
    for row in rows["steps"]:
        lengths[row["decision"], row["step_tokens"]] += 1
        for place, tokens in enumerate(row["candidate_tokens"]):
            if place != row["chosen_candidate"]:
                lengths["rejected", tokens] += 1
    assert {(kind, tokens): n for kind, each in found.lengths.items() for tokens, n in enumerate(each.tolist()) if n} == lengths
    verified = [row for row in rows["steps"] if row["num_candidates"]]
    for counts, steps in ((found.verified, verified), (found.accepted, [row for row in verified if row["decision"] == "accepted"])):
        assert Counter(dict(enumerate(counts.tolist()))) == Counter(row["step_index"] for row in steps)
    assert set(found.scores) == {row["verify_kind"] for row in verified}
    for kind, scores in found.scores.items():
        mine = [row for row in verified if row["verify_kind"] == kind]
        accepted = [row for row in mine if row["decision"] == "accepted"]
        assert (int(scores.accepted.sum()), int(scores.rejected.sum()), scores.threshold) == (len(accepted), len(mine) - len(accepted), 7.0)
