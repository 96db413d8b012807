"""Chains that are switched between speculation and the target alone, in whole runs on virtual time."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline.session.run import SessionResult
from tests.support.graphs import NAMES
from tests.support.hanging_together import check_hangs_together
from tests.support.runs import rows, said, solve, write_problems
from tests.support.switching import AtTimes, solve_switched

pytestmark = pytest.mark.slow  # whole runs

COUNT = 3
LOOPS = ("speccot", "speccot-decode", "specreason", "specreason-decode", "likelihood", "gated")
RACE = ("in_flight_engine", "in_flight_stage", "waiting_engine")
"""What calls of one moment met depends on the order in which they were sent."""


def calls(result: SessionResult) -> dict[str, dict[str, Any]]:
    """Every call by its request's id, without what names the run and its time."""
    found = {row.pop("request_id"): row for row in rows(result, "calls")}
    other = ("run_id", "submit_unix_ns", "end_unix_ns", *RACE)
    return {name: {key: value for key, value in row.items() if key not in other} for name, row in found.items()}


def steps(result: SessionResult, *names: str) -> Counter[Any]:
    return Counter(tuple(row[name] for name in names) for row in rows(result, "steps"))


def problems(folder: Path) -> Path:
    return write_problems(folder, COUNT)


@pytest.mark.parametrize("graph", LOOPS)
def test_never_asks_what_the_target_alone_is_asked(tmp_path: Path, graph: str) -> None:
    never = solve(tmp_path, "never", graph, settings=("speculate=never",), input=problems(tmp_path))
    target = solve(tmp_path, "target", "target", input=problems(tmp_path))
    assert calls(never) == calls(target)
    assert len(calls(never)) == COUNT
    assert (said(never), never.run.wall_time_s) == (said(target), target.run.wall_time_s)
    assert steps(never, "mode") == {("direct",): COUNT}
    assert (never.run.plan.speculate, never.run.depends_on_timing, list(never.run.engines)) == ("never", False, ["target"])


@pytest.mark.parametrize("graph", LOOPS)
def test_a_chain_that_is_never_switched_on_is_asked_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graph: str) -> None:
    direct = solve_switched(monkeypatch, AtTimes(), tmp_path, "direct", graph=graph, input=problems(tmp_path))
    target = solve(tmp_path, "target", "target", input=problems(tmp_path))
    assert calls(direct) == calls(target)
    assert said(direct) == said(target)
    assert steps(direct, "mode", "decision") == {("direct", "written"): COUNT}


@pytest.mark.parametrize("graph", ["speccot", "likelihood"])
def test_a_chain_that_is_never_switched_off_is_asked_what_it_always_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graph: str
) -> None:
    auto = solve_switched(monkeypatch, AtTimes(0.0), tmp_path, "auto", graph=graph, input=problems(tmp_path))
    always = solve(tmp_path, "always", graph, input=problems(tmp_path))
    assert calls(auto) == calls(always)
    assert said(auto) == said(always)
    assert steps(auto, "mode").keys() == steps(always, "mode").keys() == {("speculative",)}
    assert (always.run.plan.speculate, always.run.depends_on_timing) == ("always", False)
    assert auto.run.wall_time_s == pytest.approx(always.run.wall_time_s, rel=0.01)


@pytest.mark.parametrize("graph", NAMES)
def test_a_graph_whose_loop_drafts_nothing_has_no_modes(tmp_path: Path, graph: str) -> None:
    result = solve(tmp_path, "run", graph, input=write_problems(tmp_path, 1))
    assert {mode for (mode,) in steps(result, "mode")} == ({"speculative"} if graph in (*LOOPS, "routed", "triggered") else {None})


def test_switching_on_keeps_what_was_written_and_finishes_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = AtTimes(0.6)
    result = solve_switched(monkeypatch, control, tmp_path, graph="specreason", input=problems(tmp_path))
    found = steps(result, "step_index", "mode", "decision", "stage")
    assert found[1, "direct", "interrupted", "response"] == found[2, "direct", "written", "boundary"] == COUNT
    assert {key[1:] for key in found if key[0] > 2} == {
        ("speculative", "accepted", "verify"),
        ("speculative", "fallback", "fallback"),
    }
    target = {row["chain_id"]: row["step_text"] for row in rows(solve(tmp_path, "target", "target", input=problems(tmp_path)), "steps")}
    for row in rows(result, "steps"):
        if row["decision"] == "interrupted":
            assert target[row["chain_id"]].startswith(row["step_text"])
        elif row["stage"] == "boundary":
            assert row["step_text"].endswith(("\n\n", "</think>"))
    assert all(row["correct"] is not None and row["stop_reason"] == "thought_closed" for row in rows(result, "chains"))
    assert {tuple(row["finish_reason"]) for row in rows(result, "calls") if row["stage"] == "response"} == {("interrupted",)}
    assert result.run.depends_on_timing
    assert [(change.what, change.live) for change in result.run.mode_changes] == [("speculation on", COUNT)]
    check_hangs_together(tmp_path / "run", COUNT)


def test_a_direct_request_goes_on_where_speculation_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = AtTimes(0.0, 1.0)
    result = solve_switched(monkeypatch, control, tmp_path, graph="speccot", input=problems(tmp_path))
    order = {row["chain_id"]: [] for row in rows(result, "chains")}
    for row in rows(result, "steps"):
        order[row["chain_id"]].append((row["decision"], row["mode"]))
    for made in order.values():
        assert made[0] == ("guidance", "speculative")
        assert made[-1] == ("written", "direct")
        assert {mode for _, mode in made[:-1]} == {"speculative"}
    response = {row["chain_id"]: row["max_tokens"] for row in rows(result, "calls") if row["stage"] == "response"}
    before = Counter[str]()
    for row in rows(result, "steps"):
        before[row["chain_id"]] += len(row["step_token_ids"]) if row["mode"] == "speculative" else 0
    assert response == {chain: 8192 - tokens for chain, tokens in before.items()}
    assert "answer" not in {row["stage"] for row in rows(result, "calls")}
    assert all(row["answer_text"] for row in rows(result, "chains"))
    check_hangs_together(tmp_path / "run", COUNT)


def test_a_request_that_waits_in_its_lane_is_taken_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control, narrow = AtTimes(0.5), ("engines.target.max_in_flight=1",)
    result = solve_switched(monkeypatch, control, tmp_path, graph="speccot", settings=narrow, input=problems(tmp_path))
    first = {row["chain_id"]: row["decision"] for row in reversed(rows(result, "steps"))}
    assert Counter(first.values()) == {"guidance": COUNT - 1, "interrupted": 1}
    assert Counter(row["stage"] for row in rows(result, "calls"))["response"] == 1
    assert all(row["calls"] for row in rows(result, "chains"))
    check_hangs_together(tmp_path / "run", COUNT)


def test_an_answer_that_was_begun_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted after the thought: nothing is left to speculate, and nothing that was written is lost."""
    long = ("engines.target.text.answer_tokens=400", "engines.target.text.steps_mean=2", "engines.target.text.steps_sigma=0")
    whole = solve(tmp_path, "target", "target", settings=long, input=problems(tmp_path))
    control = AtTimes(0.9 * (whole.run.wall_time_s or 0.0))
    result = solve_switched(monkeypatch, control, tmp_path, graph="specreason", settings=long, input=problems(tmp_path))
    texts = {row["chain_id"]: row["answer_text"] for row in rows(whole, "chains")}
    cut = [row for row in rows(result, "calls") if row["stage"] == "response" and row["finish_reason"] == ["interrupted"]]
    ended = {row["chain_id"]: row for row in rows(result, "steps") if row["decision"] == "interrupted"}
    assert cut
    assert {ended[row["chain_id"]]["step_text"][-8:] for row in cut} == {"</think>"}
    for row in rows(result, "calls"):
        if row["stage"] == "answer":
            [mine] = [each for each in cut if each["chain_id"] == row["chain_id"]]
            begun = len(mine["output_token_ids"][0]) - len(ended[row["chain_id"]]["step_token_ids"])
            assert (row["max_tokens"], row["input_tokens"]) == (1024 - begun, mine["input_tokens"] + mine["output_tokens"])
    for row in rows(result, "chains"):
        assert row["answer_text"].startswith(texts[row["chain_id"]][:20])


@pytest.mark.parametrize("schedule", ["lockstep", "sequential"])
def test_every_schedule_switches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: Any) -> None:
    control = AtTimes(0.4, 1.0, 1.5)
    result = solve_switched(monkeypatch, control, tmp_path, graph="speccot", schedule=schedule, input=problems(tmp_path))
    assert (result.exit_code, result.done) == (0, COUNT)
    assert {mode for (mode,) in steps(result, "mode")} == {"speculative", "direct"}
    check_hangs_together(tmp_path / "run", COUNT)


def test_the_control_is_told_everything_and_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = AtTimes(0.6)
    result = solve_switched(monkeypatch, control, tmp_path, graph="specreason", input=problems(tmp_path))
    assert (control.entered, control.left, control.live) == (COUNT, COUNT, {})
    told = Counter((call["purpose"], call["direct"], call["n"], call["output_tokens"]) for call in control.calls)
    direct = ("response", "boundary")
    assert told == Counter(
        (row["purpose"], row["stage"] in direct, len(row["finish_reason"]), row["output_tokens"]) for row in rows(result, "calls")
    )
    tokens, wrote = Counter[Any](), Counter[Any]()
    for row in rows(result, "steps"):
        tokens[row["mode"], row["decision"] == "accepted"] += len(row["step_token_ids"])
    for _, mode, count, accepted in control.written:
        wrote[mode, accepted] += count
    assert wrote == tokens


class AtItsTurn(AtTimes):
    """Wants a chain back as soon as it has sent it off: at the next event, which is before its turn where chains wait for one."""

    def mode(self, order: int, context_tokens: int, now: float) -> Any:
        mode = super().mode(order, context_tokens, now)
        self.times = (now - (self.began or 0.0),)
        return mode


def test_a_chain_that_waits_for_its_turn_is_switched_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = solve_switched(monkeypatch, AtItsTurn(9.0), tmp_path, graph="specreason", schedule="lockstep", input=problems(tmp_path))
    assert steps(result, "mode") == {("speculative",): sum(row["steps"] for row in rows(result, "chains"))}
    assert "response" not in {row["stage"] for row in rows(result, "calls")}
