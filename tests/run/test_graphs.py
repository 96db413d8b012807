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
PARAMS = (
    ("prompts",),
    (
        "guidance_tokens",
        "prm",
        "threshold",
        "min_logprob",
        "min_reward",
        "method",
        "statistic",
        "sure",
        "candidates",
        "first_steps",
        "speculate",
        "adapter",
    ),
    ("temperature", "top_p", "top_k", "min_p"),
    ("draft_tokens", "step_tokens", "token_budget", "max_steps", "answer_boxed", "repeated", "answer_tokens", "budget"),
)
"""Wording, params of a method, of sampling, and budgets; each graph has some of them, in this order."""
PERFECT = tuple(f"engines.{role}.text.{name}=1.0" for role in ("draft", "target") for name in ("step_accuracy", "verifier_accuracy"))


def path_of(name: str) -> Path:
    return ROOT / f"graphs/{name}.yaml"


def without_head(name: str) -> list[str]:
    """The lines of a graph file from its name on."""
    lines = path_of(name).read_text().splitlines()
    return lines[lines.index(f"name: {name}") :]


def solve(folder: Path, name: str, *settings: str, count: int = 12) -> Any:
    """A finished run over problems of the simulated engines."""
    problems = folder / "problems.jsonl"
    texts = [f"Problem number {i}?" for i in range(count)]
    problems.write_bytes(b"\n".join(msgspec.json.encode({"problem": text, "answer": sim_answer(text)}) for text in texts))
    engines = SIM.with_name(f"{OURS.get(name, SIM.stem)}.yaml")
    result = run(RunOptions(graph=path_of(name), engines=engines, input=(str(problems),), settings=settings, output=folder / "run"))
    assert (result.exit_code, result.done) == (0, count)
    return result


def test_there_are_these() -> None:
    assert sorted(path.stem for path in (ROOT / "graphs").glob("*.yaml")) == sorted([*NAMES, *OURS])


@pytest.mark.parametrize("name", NAMES)
def test_params_named_in_the_head_can_be_set(name: str) -> None:
    head = path_of(name).read_text().partition("\nname: ")[0]
    listed = re.search(r"^# Params: (.*)$", head, re.MULTILINE)
    named = {word for word in re.findall(r"[a-z_]+", listed[1] if listed else "") if word in {p for group in PARAMS for p in group}}
    params = load_plan(path_of(name)).params
    assert named <= params.keys()
    assert listed or name in ("target", "draft")
    assert load_plan(path_of(name), settings=tuple(f"{param}={params[param]}" for param in named)) == load_plan(path_of(name))


def test_speculative_decoding_differs_from_the_target_alone_in_its_engines() -> None:
    changed = [(a, b) for a, b in zip(without_head("speculative-decoding"), without_head("target"), strict=True) if a != b]
    assert changed == [
        ("name: speculative-decoding", "name: target"),
        ("engines: engines/tiny-vllm-decode.yaml", "engines: engines/tiny.yaml"),
    ]


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


def test_no_guidance_leaves_no_call_and_no_step(tmp_path: Path) -> None:
    result = solve(tmp_path, "speccot", "guidance_tokens=0")
    assert "guidance" not in {row["stage"] for row in rows(result, "calls")}
    assert {row["decision"] for row in rows(result, "steps")} == {"accepted", "fallback"}
    for chain in rows(result, "chains"):
        own = [row["step_index"] for row in rows(result, "steps") if row["chain_id"] == chain["chain_id"]]
        assert own == list(range(1, len(own) + 1))
        assert chain["steps"] == chain["accepted_steps"] + chain["fallback_steps"] == len(own)
        assert min(row["call_index"] for row in rows(result, "calls") if row["chain_id"] == chain["chain_id"]) == 0


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


def test_a_thought_that_was_cut_is_closed_and_answered(tmp_path: Path) -> None:
    for name in ("scot", "best-of-n"):
        (tmp_path / name).mkdir()
        result = solve(tmp_path / name, name, "draft_tokens=20", *(("token_budget=20",) if name == "scot" else ()))
        assert {row["stop_reason"] for row in rows(result, "chains")} == {"max_tokens"}
        assert all(len(row["step_token_ids"]) == 20 for row in rows(result, "steps"))
        assert all(row["answer_text"] for row in rows(result, "chains"))


def test_the_best_of_n_is_always_one_of_them(tmp_path: Path) -> None:
    hopeless = ("engines.draft.text.step_accuracy=0.0", "engines.target.text.verifier_accuracy=1.0")
    steps = rows(solve(tmp_path, "best-of-n", *hopeless), "steps")
    assert {row["decision"] for row in steps} == {"accepted"}
    assert {(row["score_label"], row["chosen_candidate"], len(row["score_probs"])) for row in steps} == {("1", 0, 5)}


def test_likelihood_asks_no_question(tmp_path: Path) -> None:
    result = solve(tmp_path, "../tests/graphs/likelihood", "candidates=3")
    calls = [row for row in rows(result, "calls") if row["kind"] == "likelihood"]
    assert {(row["output_tokens"], len(row["output_token_ids"]), len(row["option_ids"])) for row in calls} == {(0, 0, 0)}
    assert len({row["request_id"] for row in calls}) == len(calls)
    steps = [row for row in rows(result, "steps") if row["verify_kind"]]
    assert len(calls) == sum(row["num_distinct_candidates"] for row in steps)
    for row in steps:
        assert (row["score_value"] >= row["threshold"]) == (row["decision"] == "accepted")
        assert len(row["score_probs"]) == row["num_distinct_candidates"]
