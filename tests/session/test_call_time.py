"""Calls that cannot end in time are named before a run starts, and no others are."""

from pathlib import Path

import pytest

from pipeline.session.notices import notices, time_notices
from pipeline.session.prepare import load_plan
from tests.support.paths import ROOT, SIM
from tests.support.runs import rows, servers_file, solve

TARGET = ROOT / "graphs/target.yaml"
LONG = "token_budget=30000"


@pytest.mark.parametrize(
    ("graph", "engines"),
    [("target", "sim-2xa6000"), ("scot", "sim-2xa6000"), ("speccot", "sim-2xh100"), ("cascade", "sim-4xh100-cascade"), ("target", "tiny")],
)
def test_nothing_is_said_of_engines_whose_calls_never_expire(graph: str, engines: str) -> None:
    assert list(time_notices(load_plan(Path(graph), Path(engines)))) == []


def test_a_limit_below_what_a_simulated_engine_takes_is_named_with_both_numbers() -> None:
    settings = ("engines.target.timeout_s=100", LONG)
    [said] = time_notices(load_plan(TARGET, SIM, settings))
    start = "warning: engine 'target': a call of the stage `response` may generate 30,000 tokens; that takes "
    assert said.startswith(start)
    assert said.endswith(" s in a batch of 7, and timeout_s is 100; set timeout_s higher or max_tokens lower, or the call may time out")
    assert said in notices(load_plan(TARGET, SIM, settings))
    assert list(time_notices(load_plan(TARGET, SIM, ("engines.target.timeout_s=100000", LONG)))) == []


@pytest.mark.parametrize(
    ("more", "rate", "name"), [("", 17, "hang_s"), (", hang_s: 300", 100, "hang_s"), (", timeout_s: 60", 500, "timeout_s")]
)
def test_of_a_server_it_is_said_how_fast_it_must_be(tmp_path: Path, more: str, rate: int, name: str) -> None:
    engines = servers_file(tmp_path, more=more, target="http://127.0.0.1:1/v1")
    [said] = time_notices(load_plan(TARGET, engines, (LONG, "answer_tokens=20")))
    assert f" s that needs {rate} tokens a second; set {name} higher" in said
    assert list(time_notices(load_plan(TARGET, engines, ("token_budget=250", "answer_tokens=20")))) == []


@pytest.mark.slow
def test_what_is_foreseen_happens(tmp_path: Path) -> None:
    """And where nothing is foreseen nothing expires."""
    slow = ("engines.*.device.overhead_s=1", "token_budget=200", "answer_tokens=20")
    for limit, foreseen in ((150, True), (250, False)):
        settings = (*slow, f"engines.target.timeout_s={limit}")
        assert bool(list(time_notices(load_plan(TARGET, SIM, settings)))) == foreseen
        result = solve(tmp_path, str(limit), "target", settings=(*settings, "engines.*.text.steps_mean=50"), limit=3)
        assert any(row["error_type"] == "CallTimeout" for row in rows(result, "calls")) == foreseen
