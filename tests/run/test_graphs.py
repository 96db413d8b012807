"""The graphs of the papers: what they share, where they differ, and whole runs of each on simulated engines."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.engines.sim.text import sim_answer
from pipeline.options import RunOptions
from pipeline.run.prepare import load_plan
from pipeline.run.run import run
from tests.support.graphs import NAMES, OURS, SEEN, SETTINGS
from tests.support.paths import SIM
from tests.support.runs import rows

pytestmark = pytest.mark.slow  # whole runs

ROOT = Path(__file__).parent.parent.parent
"""Wording, params of a method, of sampling, and budgets; each graph has some of them, in this order."""
PERFECT = tuple(f"engines.{role}.text.{name}=1.0" for role in ("draft", "target") for name in ("step_accuracy", "verifier_accuracy"))


def path_of(name: str) -> Path:
    return ROOT / f"graphs/{name}.yaml"


def solve(folder: Path, name: str, *settings: str, count: int = 12) -> Any:
    """A finished run over problems of the simulated engines."""
    problems = folder / "problems.jsonl"
    texts = [f"Problem number {i}?" for i in range(count)]
    problems.write_bytes(b"\n".join(msgspec.json.encode({"problem": text, "answer": sim_answer(text)}) for text in texts))
    engines = SIM.with_name(f"{OURS.get(name, SIM.stem)}.yaml")
    result = run(RunOptions(graph=path_of(name), engines=engines, input=(str(problems),), settings=settings, output=folder / "run"))
    assert (result.exit_code, result.done) == (0, count)
    return result


@pytest.mark.parametrize("name", [*NAMES, *OURS])
def test_every_graph_runs_on_simulated_engines(tmp_path: Path, name: str) -> None:
    result = solve(tmp_path, name, *SETTINGS.get(name, ()))
    kinds, decisions = SEEN[name]
    assert {row["kind"] for row in rows(result, "calls")} == kinds
    assert {row["decision"] for row in rows(result, "steps")} == decisions
    chains = rows(result, "chains")
    assert {row["stop_reason"] for row in chains} == {"thought_closed"}
    assert all(row["answer"] for row in chains)


@pytest.mark.parametrize("name", NAMES)
def test_engines_that_are_never_wrong_solve_everything(tmp_path: Path, name: str) -> None:
    """So every verdict, also that of a choice without 0, is about the candidate it names."""
    result = solve(tmp_path, name, *(setting for setting in PERFECT if setting.split(".")[1] in load_plan(path_of(name)).engines))
    assert all(row["correct"] for row in rows(result, "chains"))
    assert "fallback" not in {row["decision"] for row in rows(result, "steps")}


def test_scot_thinks_again_where_all_drafts_are_rejected(tmp_path: Path) -> None:
    result = solve(tmp_path, "scot", "candidates=3", "engines.target.text.verifier_accuracy=1.0")
    calls, steps = rows(result, "calls"), rows(result, "steps")
    assert {len(row["candidate_texts"]) for row in steps} == {3}
    assert Counter(row["stage"] for row in calls if row["stage"] != "fallback") == {"draft": 12, "verify": 12, "answer": 12}
    for step in steps:
        right = [index for index, text in enumerate(step["candidate_texts"]) if not re.search(r" [a-z]{6} no", text)]
        assert step["chosen_candidate"] == next(iter(right), None)
        assert step["decision"] == ("accepted" if right else "fallback")
        assert step["source_engine"] == ("draft" if right else "target")
    assert {row["decision"] for row in steps} == {"accepted", "fallback"}
    assert Counter(row["stage"] for row in calls)["fallback"] == Counter(row["decision"] for row in steps)["fallback"]


def test_the_best_of_n_is_always_one_of_them(tmp_path: Path) -> None:
    hopeless = ("engines.draft.text.step_accuracy=0.0", "engines.target.text.verifier_accuracy=1.0")
    steps = rows(solve(tmp_path, "best-of-n", *hopeless), "steps")
    assert {row["decision"] for row in steps} == {"accepted"}
    assert {(row["score_label"], row["chosen_candidate"], len(row["score_probs"])) for row in steps} == {("1", 0, 5)}
