"""A recorded run taken through its plan again: the same prompts, steps and candidates, from the recorded calls alone."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.run.run import SessionResult
from pipeline.store.store import write_part
from pipeline.training import retrace
from pipeline.training.retrace import Retracer
from tests.support.paths import ROOT
from tests.support.runs import rows, solve, solve_with, write_problems

pytestmark = pytest.mark.slow  # whole runs

GRAPHS = ("speccot", "specreason", "scot", "best-of-n", "guided-draft", "gated")


def check_as_recorded(result: SessionResult, chains: int) -> None:
    retracer = Retracer(result.folder)
    found = {each.chain.chain_id: each for each in retracer.chains()}
    assert (len(found), retracer.lost, retracer.unfinished) == (chains, 0, 0)
    digests = {row["request_id"]: row["prompt_digest"] for row in rows(result.folder, "calls")}
    asked = [asked.request for chain in found.values() for _, requests in chain.steps for asked in requests]
    assert all(request.digest() == digests[request.request_id] for request in asked)
    recorded: dict[str, list[tuple[str, str, list[str]]]] = {name: [] for name in found}
    for row in rows(result, "steps"):
        recorded[row["chain_id"]].append((row["decision"], row["step_text"], row["candidate_texts"]))
    for name, chain in found.items():
        steps = [step for step, _ in chain.steps]
        assert [(step.decision, step.span.text, [each.text for each in step.candidates]) for step in steps] == recorded[name]
    graded = {row["chain_id"]: (row["correct"], row["answer"]) for row in rows(result, "chains")}
    assert {name: (each.correct, each.chain.stated_answer()) for name, each in found.items()} == graded


@pytest.mark.parametrize("graph", GRAPHS)
def test_every_step_comes_out_as_it_was_recorded(graph: str, tmp_path: Path) -> None:
    check_as_recorded(solve(tmp_path, graph=graph, input=write_problems(tmp_path, 3), samples=2), 6)


def test_three_models_in_turn(tmp_path: Path) -> None:
    engines = ROOT / "graphs/engines/sim-4xh100-rsd.yaml"
    check_as_recorded(solve_with(engines, tmp_path / "run", graph=ROOT / "graphs/rsd.yaml", limit=4), 4)


@pytest.mark.parametrize("graph", ["specreason", "target-steps"])
def test_thoughts_that_ended_early(graph: str, tmp_path: Path) -> None:
    check_as_recorded(solve(tmp_path, graph=graph, input=write_problems(tmp_path, 6), settings=("answer_confident=0.95",)), 6)


def test_windows_of_chains_make_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = solve(tmp_path, graph="target", input=write_problems(tmp_path, 4), samples=2).folder
    whole = [chain.chain.chain_id for chain in Retracer(folder).chains()]
    assert whole == [f"p{number}#{sample}" for number in range(4) for sample in range(2)]
    monkeypatch.setattr(retrace, "WINDOW", 3)
    assert [chain.chain.chain_id for chain in Retracer(folder).chains()] == whole


def test_a_chain_whose_calls_are_gone_is_counted(tmp_path: Path) -> None:
    folder = solve(tmp_path, input=write_problems(tmp_path, 5)).folder
    [part] = (folder / "calls").glob("*.parquet")
    calls = pq.read_table(part)
    gone = [row["chain_id"] == "p3#0" and row["purpose"] == "judge" for row in calls.to_pylist()]
    write_part(part, calls.filter([not each for each in gone]))
    retracer = Retracer(folder)
    assert "p3#0" not in {chain.chain.chain_id for chain in retracer.chains()}
    assert retracer.lost == 1
