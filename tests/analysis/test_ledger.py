"""Every sampled token has one outcome, and all of them are what the engines counted: by hand, and for every graph."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.analysis.ledger import OUTCOMES, USEFUL, WASTED, EngineLedger, Ledger, read_ledger
from pipeline.store.query import Query
from pipeline.store.rows import StepRow
from tests.support.graphs import SETTINGS
from tests.support.rows import blank
from tests.support.run_files import RESPONSE
from tests.support.runs import solve
from tests.support.traces import call, card, chain, statistics, write

GRAPHS = ("speccot", "scot", "specreason", "best-of-n", "target", "gated", "routed", "triggered")
UNVERIFIED = ("routed", "triggered")
"""Graphs without a verification, besides those that ask for no verdict."""
GARBAGE = tuple(f"engines.{role}.faults.garbage_share=0.1" for role in ("draft", "target"))


def ledger(folder: Path) -> Ledger:
    with Query(folder) as db:
        return read_ledger(db)


def lines(found: EngineLedger) -> dict[str, int]:
    """Outcomes of which there are tokens."""
    assert tuple(found.output) == OUTCOMES
    return {outcome: tokens for outcome, tokens in found.output.items() if tokens}


@pytest.mark.slow
@pytest.mark.parametrize(("graph", "retries"), [*((graph, None) for graph in GRAPHS), ("speccot", 0), ("speccot", 20), ("specreason", 0)])
def test_the_lines_are_what_the_engines_counted(tmp_path: Path, faulty: Path, graph: str, retries: int | None) -> None:
    """With `retries` on engines that fail: attempts are repeated or chains lost."""
    settings = SETTINGS.get(graph, ())
    if retries is not None:
        settings = (*GARBAGE, *(f"engines.{role}.max_retries={retries}" for role in ("draft", "target")))
    result = solve(tmp_path, graph=graph, settings=settings, **({} if retries is None else {"engines": faulty}))
    found, decisions = ledger(result.folder), result.run.totals.decisions
    assert found.engines.keys() == result.run.engines.keys()
    for role, engine in found.engines.items():
        counted = result.run.engine_statistics[role]
        assert (sum(engine.output.values()), sum(engine.input.values())) == (counted.output_tokens, counted.input_tokens)
        assert min(engine.output.values()) >= 0
        assert ("failed attempts" in engine.why_unrecorded) == (retries is not None)
        if retries is None:
            assert engine.output["unrecorded"] == engine.input["unrecorded"] == 0
            assert (engine.input["cached"], engine.why_unrecorded) == (counted.cached_input_tokens, "")
    assert bool(result.failed) == (found.output("lost") > 0) == (retries == 0)
    assert (found.output("unrecorded") > 0) == (retries is not None), "what was answered and was no answer"
    assert retries == 0 or (found.output("verification") == 0) == (graph in ("target", *UNVERIFIED))
    assert (found.output("unverified") > 0) == (graph in ("gated", *UNVERIFIED))
    assert found.output("cut") >= 12 or retries == 0, "every answer ends with an end-of-sequence token"
    if (graph, retries) == ("speccot", None):
        assert lines(found.engines["draft"]).keys() == {"committed", "rejected"}
        assert lines(found.engines["target"]).keys() == {"written", "answer", "verification", "cut"}
        assert found.output("verification") == decisions["accepted"] + decisions["fallback"]


def step(index: int, decision: str, engine: str, length: int, *candidates: int, drafted: int = 0) -> Any:
    chosen = 0 if decision == "accepted" else None
    fields = {"candidate_tokens": candidates, "draft_tokens": drafted, "chosen_candidate": chosen, "step_tokens": length}
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
    own = {"d": statistics(51), "t": statistics(30, 60, restarts=1)}
    sessions = [{"started_unix_ns": 1, "ended_unix_ns": 2, "engine_statistics": own}]
    rows, stages = [chain("a", 0, 8, thought_tokens=29)], {"one": {"kind": "draft", "engine": "d", "max_tokens": 90}}
    found = ledger(write(tmp_path, calls=calls, steps=steps, chains=rows, card=card(0, 8, sessions=sessions, stages=stages)))
    assert lines(found.engines["d"]) == {"committed": 18, "rejected": 33}
    target = found.engines["t"]
    assert lines(target) == {"written": 11, "answer": 7, "verification": 2, "cut": 3 + 1, "lost": 5, "unrecorded": 1}
    assert target.input == {"computed": 20, "cached": 30, "unstated": 0, "unrecorded": 10}
    assert (found.engines["d"].why_unrecorded, target.why_unrecorded[:4]) == ("", "what")
    assert [found.share(*outcomes) for outcomes in (USEFUL, WASTED)] == [36 / 81, 43 / 81]


@pytest.mark.parametrize(
    ("calls", "steps", "more", "expected"),
    [
        # a response is thought and answer
        (
            [answered("t", "write", 1, 50, None)], [step(1, "written", "t", 30)], {"stages": {"response": RESPONSE | {"engine": "t"}}},
            {"t": {"written": 30, "answer": 19, "cut": 1}},
        ),
        # what writes behind a gate writes its first steps unasked
        (
            [answered("d", "write", index, 10, "\n\n", step_index=index, stage="by d") for index in (1, 2)],
            [step(index, decision, "d", 10) for index, decision in enumerate(("first_steps", "unverified"), 1)], {},
            {"d": {"written": 10, "unverified": 10}},
        ),
        # of two engines that draft each has its tokens
        (
            [answered("d", "draft", 1, 30, "\n\n", "\n\n"), answered("t", "draft", 2, 21, None)],
            [step(1, "accepted", "t", 20, 14, 16, 20, drafted=51)], {}, {"d": {"rejected": 30}, "t": {"committed": 20, "rejected": 1}},
        ),
    ],
)  # fmt: skip
def test_by_kinds_of_stages(tmp_path: Path, calls: Any, steps: Any, more: dict[str, Any], expected: dict[str, dict[str, int]]) -> None:
    rows = [chain("a", 0, 2, thought_tokens=sum(each.step_tokens for each in steps))]
    found = ledger(write(tmp_path, calls=calls, steps=steps, chains=rows, card=card(0, 2, **more)))
    assert {role: lines(found.engines[role]) for role in expected} == expected


def test_what_a_run_that_goes_on_or_was_killed_has_not_recorded_is_said(tmp_path: Path) -> None:
    """Of the last run the first session was killed, and left no row of five tokens."""
    calls, steps = [answered("d", "draft", 1, 30, "\n\n")], [step(1, "accepted", "d", 30, 30, drafted=30)]
    folder = write(tmp_path / "on", calls=calls, steps=steps, closed=False, card=card(0, 1, sessions=[{"started_unix_ns": 1}]))
    found = ledger(folder).engines["d"]
    assert (lines(found), "in progress" in found.why_unrecorded) == ({"lost": 30}, True)
    first = {"started_unix_ns": 1, "status": "killed", "engine_statistics": {"d": statistics(5, 5)}}
    second = {"started_unix_ns": 2, "ended_unix_ns": 3, "status": "finished", "engine_statistics": {"d": statistics(30)}}
    rows, told = [chain("a", 0, 1, thought_tokens=30)], card(0, 1, sessions=[first, second])
    found = ledger(write(tmp_path / "twice", calls=calls, steps=steps, chains=rows, card=told)).engines["d"]
    assert (found.output["unrecorded"], found.input["unrecorded"], "left no rows" in found.why_unrecorded) == (5, 5, True)
    empty = ledger(write(tmp_path / "empty"))
    assert ([lines(each) for each in empty.engines.values()], empty.share(*WASTED)) == ([{}], None)
