"""Whole runs of the graphs of the papers on simulated engines: what is asked, how thoughts end, and how long they are."""

import re
from collections import Counter
from pathlib import Path
from statistics import fmean

import pytest

from pipeline.run.prepare import load_plan
from pipeline.run.run import SessionResult
from tests.support import runs
from tests.support.graphs import NAMES, OURS, SEEN, SETTINGS
from tests.support.hanging_together import check_hangs_together
from tests.support.paths import SIM
from tests.support.runs import rows, said, write_problems

pytestmark = pytest.mark.slow  # whole runs

PERFECT = tuple(f"engines.{role}.text.{name}=1.0" for role in ("draft", "target") for name in ("step_accuracy", "verifier_accuracy"))


def solve(folder: Path, name: str, *settings: str) -> SessionResult:
    """A finished run of a graph."""
    result = runs.solve(folder, graph=name, engines=SIM.with_name(f"{OURS.get(name, SIM.stem)}.yaml"), settings=settings)
    assert (result.exit_code, result.done) == (0, 12)
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
    result = solve(tmp_path, name, *(setting for setting in PERFECT if setting.split(".")[1] in load_plan(Path(name)).engines))
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


CONFIDENT = "answer_confident=0.95"


@pytest.mark.parametrize("graph", ["specreason", "target-steps"])
def test_thoughts_end_earlier_the_chains_say_why_and_a_replay_says_the_same(tmp_path: Path, graph: str) -> None:
    plain, early = (runs.solve(tmp_path, name, graph, settings=settings) for name, settings in (("plain", ()), ("early", (CONFIDENT,))))
    ended = {row["chain_id"]: row["stop_reason"] for row in rows(early, "chains")}
    assert set(ended.values()) == {"answer_confident", "thought_closed"}
    assert sum(row["thought_tokens"] for row in rows(early, "chains")) < sum(row["thought_tokens"] for row in rows(plain, "chains"))
    assert all(row["answer_text"] for row in rows(early, "chains"))
    trials = [row for row in rows(early, "calls") if row["stage"] == "trial"]
    assert {(row["kind"], row["purpose"], row["engine"]) for row in trials} == {("trial", "trial", "target")}
    for chain, why in ended.items():
        last = max((row for row in trials if row["chain_id"] == chain), key=lambda row: row["call_index"], default=None)
        assert (last is not None and last["logprob_mean"][0] >= -0.0513) == (why == "answer_confident")
    assert not any(row["purpose"] == "trial" for row in rows(plain, "calls"))
    check_hangs_together(early.folder, 12)
    assert said(runs.solve(tmp_path, "again", graph, engines=Path(f"replay:{early.folder}"), settings=(CONFIDENT,))) == said(early)


MATH = ("engines.*.text.steps_mean=33.3", "engines.draft.text.verbosity=1.97", "engines.target.text.verbosity=2.34")
"""The settings that `sim-4xa100-speccot.yaml` names for MATH-500."""


def thoughts(folder: Path, graph: str, engines: str, *settings: str) -> list[int]:
    """Tokens of each thought of a run."""
    folder.mkdir()
    settings = (*settings, "engines.*.timeout_s=100000")
    result = runs.solve(folder, graph=graph, engines=SIM.with_name(f"{engines}.yaml"), settings=settings, input=write_problems(folder, 64))
    assert (result.exit_code, result.failed) == (0, 0)
    return [row["thought_tokens"] for row in rows(result, "chains")]


@pytest.mark.parametrize(
    ("settings", "draft", "target", "both"), [((), 1096.8, 2053.8, 1023.3), (MATH, 2609.3, 3086.8, 1495.9)], ids=["GSM8K", "MATH-500"]
)
def test_thoughts_on_speccots_machine_are_as_long_as_its_table_2_says(
    settings: tuple[str, ...], draft: float, target: float, both: float, tmp_path: Path
) -> None:
    """Lengths of 64 problems scatter by 7 %, those of two systems about the same problems less."""
    printed = {"draft": draft, "target": target, "speccot": both}
    more = {"speccot": ("max_steps=1000",)}
    found = {name: fmean(thoughts(tmp_path / name, name, "sim-4xa100-speccot", *settings, *more.get(name, ()))) for name in printed}
    assert found == {name: pytest.approx(tokens, rel=0.15) for name, tokens in printed.items()}
    assert found["speccot"] / found["target"] == pytest.approx(both / target, rel=0.08)
    assert found["draft"] / found["target"] == pytest.approx(draft / target, rel=0.08)
