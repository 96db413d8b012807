"""Every sampled token has one purpose, and all of them are what the engines counted: by hand, and for every graph."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.analysis.ledger import OUTCOMES, EngineLedger, ledger
from pipeline.store.rows import StepRow
from tests.support.graphs import SETTINGS
from tests.support.rows import blank
from tests.support.run_files import RESPONSE
from tests.support.runs import solve
from tests.support.traces import call, card, chain, statistics, write

pytestmark = pytest.mark.slow  # whole runs

GRAPHS = ("speccot", "scot", "specreason", "best-of-n", "target", "draft", "gated", "routed", "triggered")
UNVERIFIED = ("routed", "triggered")
"""Graphs without a verification, besides those that ask for no verdict."""
GARBAGE = tuple(f"engines.{role}.{field}" for role in ("draft", "target") for field in ("faults.garbage_share=0.1", "max_retries=2"))


def lines(found: EngineLedger) -> dict[str, int]:
    """Purposes of which there are tokens."""
    assert tuple(found.output) == OUTCOMES
    return {purpose: tokens for purpose, tokens in found.output.items() if tokens}


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_lines_are_what_the_engines_counted(tmp_path: Path, graph: str) -> None:
    result = solve(tmp_path, graph=graph, settings=SETTINGS.get(graph, ()))
    found = ledger(result.folder)
    assert found.engines.keys() == result.run.engines.keys()
    for role, engine in found.engines.items():
        counted = result.run.engine_statistics[role]
        assert engine.output["unrecorded"] == engine.input["unrecorded"] == 0
        assert sum(engine.output.values()) == engine.counted_output == counted.output_tokens
        assert sum(engine.input.values()) == counted.input_tokens
        assert engine.input["cached"] == counted.cached_input_tokens
        assert min(engine.output.values()) >= 0
        assert engine.why_unrecorded == ()
    assert (found.output("verification") == 0) == (graph in ("target", "draft", *UNVERIFIED))
    assert (found.output("unverified") > 0) == (graph in ("gated", *UNVERIFIED))
    assert found.output("cut") >= 12  # every answer ends with an end-of-sequence token


def test_speccot_line_by_line(tmp_path: Path) -> None:
    result = solve(tmp_path)
    found, counts = ledger(result.folder), result.run.totals.decisions
    assert lines(found.engines["draft"]).keys() == {"committed", "not_chosen", "rejected"}
    assert lines(found.engines["target"]).keys() == {"guidance", "fallback", "answer", "verification", "cut"}
    assert found.output("verification") == counts["accepted"] + counts["fallback"]
    assert (found.output("guidance"), found.output("cut")) == (8 * 12, 12)  # every answer ends with an end-of-sequence token
    assert found.output_tokens == sum(result.run.totals.output_tokens.values())
    shares = (found.useful_share or 0) + (found.waste_share or 0) + (found.verification_share or 0)
    assert shares == pytest.approx(1)


def test_first_steps_are_written_and_later_ones_fall_back(tmp_path: Path) -> None:
    found = ledger(solve(tmp_path, graph="specreason", settings=("first_steps=2",)).folder)
    assert found.output("written") > 0
    assert found.output("fallback") > 0
    assert found.output("unrecorded") == 0


@pytest.mark.parametrize("graph", ["speccot", "specreason"])
def test_failed_attempts_and_lost_chains(tmp_path: Path, faulty: Path, graph: str) -> None:
    result = solve(
        tmp_path, graph=graph, engines=faulty, settings=(*GARBAGE, *(f"engines.{role}.max_retries=0" for role in ("draft", "target")))
    )
    assert result.failed
    found = ledger(result.folder)
    for role, engine in found.engines.items():
        assert sum(engine.output.values()) == result.run.engine_statistics[role].output_tokens
        assert sum(engine.input.values()) == result.run.engine_statistics[role].input_tokens
        assert min(engine.output.values()) >= 0
        assert engine.output["lost_chains"] > 0
        assert "attempts failed" in engine.why_unrecorded[0]
    assert found.output("unrecorded") > 0  # what was answered and was no answer


def test_attempts_that_are_repeated_lose_no_chain(tmp_path: Path, faulty: Path) -> None:
    result = solve(tmp_path, engines=faulty, settings=tuple(setting.replace("=2", "=20") for setting in GARBAGE))
    assert not result.failed
    found = ledger(result.folder)
    assert found.output("lost_chains") == 0
    assert found.output("unrecorded") > 0


def step(index: int, decision: str, engine: str, length: int, *candidates: int, drafted: int = 0) -> Any:
    wasted = drafted - (length if decision == "accepted" else 0)
    fields = {"candidate_tokens": candidates, "draft_tokens": drafted, "draft_tokens_wasted": wasted, "step_token_ids": (1,) * length}
    return blank(StepRow, chain_id="a", step_index=index, stage=f"by {engine}", source_engine=engine, decision=decision, **fields)


def answered(engine: str, purpose: str, end: int, sampled: int, *ends: str | None, step_index: int = 1, **more: Any) -> Any:
    """A call whose candidates were stopped by `ends`; None: by an end-of-sequence token."""
    fields = {"output_tokens": sampled, "eos_tokens": ends.count(None)}
    return call("a", engine, end - 1, end - 1, end, purpose=purpose, step_index=step_index, **fields | more)


def test_by_hand_with_text_that_was_cut_off(tmp_path: Path) -> None:
    calls = [
        answered("d", "draft", 1, 31, "\n\n", None),
        answered("t", "judge", 2, 1, "1", input_tokens=50, cached_input_tokens=30),
        answered("d", "draft", 3, 20, "\n\n", "\n\n", step_index=2),
        answered("t", "judge", 4, 1, "0", step_index=2),
        answered("t", "write", 5, 14, "\n\n", step_index=2),
        answered("t", "answer", 6, 8, None, step_index=3),
        answered("t", "answer", 7, 5, error_type="BadCompletion"),
    ]
    steps = [step(1, "accepted", "d", 18, 18, 12, drafted=31), step(2, "fallback", "t", 11, 9, 9, drafted=20)]
    speculation = {"drafts": 3, "draft_tokens": 9, "accepted_tokens": 4, "accepted_by_position": []}
    own = {"d": statistics(51), "t": statistics(30, 60, restarts=1, speculation=speculation)}
    sessions = [{"started_unix_ns": 1, "ended_unix_ns": 2, "engine_statistics": own}]
    found = ledger(
        write(tmp_path, calls=calls, steps=steps, chains=[chain("a", 0, 8, thought_tokens=29)], card=card(0, 8, sessions=sessions))
    )
    assert lines(found.engines["d"]) == {"committed": 18, "not_chosen": 12, "rejected": 18, "cut": 3}
    target = found.engines["t"]
    assert lines(target) == {"fallback": 11, "answer": 7, "verification": 2, "cut": 3 + 1, "retried": 5, "unrecorded": 1}
    assert target.input == {"computed": 20, "cached": 30, "unstated": 0, "unrecorded": 10}
    assert len(target.why_unrecorded) == 2
    assert found.waste_share == pytest.approx((12 + 18 + 3 + 4 + 5 + 1) / 81)


def test_a_response_is_thought_and_answer(tmp_path: Path) -> None:
    calls = [answered("t", "write", 1, 50, None)]
    stages = {"response": RESPONSE | {"engine": "t"}}
    rows = [chain("a", 0, 1, thought_tokens=30)]
    found = ledger(write(tmp_path, calls=calls, steps=[step(1, "written", "t", 30)], chains=rows, card=card(0, 1, stages=stages)))
    assert lines(found.engines["t"]) == {"written": 30, "answer": 19, "cut": 1}


def test_the_first_steps_of_what_writes_behind_a_gate_are_read_by_nobody_else(tmp_path: Path) -> None:
    calls = [answered("d", "write", index, 10, "\n\n", step_index=index, stage="by d") for index in (1, 2)]
    steps = [step(index, decision, "d", 10) for index, decision in enumerate(("first_steps", "unverified"), 1)]
    found = ledger(write(tmp_path, calls=calls, steps=steps, chains=[chain("a", 0, 2, thought_tokens=20)]))
    assert lines(found.engines["d"]) == {"written": 10, "unverified": 10}


def test_two_engines_that_draft(tmp_path: Path) -> None:
    calls = [answered("d", "draft", 1, 30, "\n\n", "\n\n"), answered("t", "draft", 2, 21, None)]
    draft = {"kind": "draft", "max_tokens": 90}
    stages = {"one": draft | {"engine": "d", "candidates": 2}, "two": draft | {"engine": "t", "candidates": 1}}
    steps = [step(1, "accepted", "t", 20, 14, 16, 20, drafted=51)]
    rows = [chain("a", 0, 2, thought_tokens=20)]
    found = ledger(write(tmp_path, calls=calls, steps=steps, chains=rows, card=card(0, 2, stages=stages)))
    assert lines(found.engines["d"]) == {"not_chosen": 30}
    assert lines(found.engines["t"]) == {"committed": 20, "cut": 1}


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    calls = [answered("d", "draft", 1, 30, "\n\n")]
    sessions = [{"started_unix_ns": 1}]
    folder = write(
        tmp_path, calls=calls, steps=[step(1, "accepted", "d", 30, 30, drafted=30)], closed=False, card=card(0, 1, sessions=sessions)
    )
    found = ledger(folder).engines["d"]
    assert lines(found) == {"unfinished": 30}
    assert found.counted_output is None
    assert "in progress" in found.why_unrecorded[0]


def test_no_tokens_at_all(tmp_path: Path) -> None:
    empty = ledger(write(tmp_path, calls=[], steps=[], chains=[]))
    assert [lines(each) for each in empty.engines.values()] == [{}]
    assert empty.waste_share is None


def test_several_sessions_count_together(tmp_path: Path) -> None:
    folder = solve(tmp_path).folder
    card = json.loads((folder / "run.json").read_text())
    session = card["sessions"][0]
    nothing = {role: statistics(5, 5) for role in session["engine_statistics"]}
    card["sessions"] = [session | {"ended_unix_ns": None, "engine_statistics": nothing, "status": "killed"}, session]
    (folder / "run.json").write_text(json.dumps(card))
    for engine in ledger(folder).engines.values():
        assert (engine.output["unrecorded"], engine.input["unrecorded"]) == (5, 5)
        assert "left no rows" in engine.why_unrecorded[0]
