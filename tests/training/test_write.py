"""Training data of runs on simulated engines, in each format."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.errors import UsageError
from pipeline.run.run import SessionResult
from pipeline.store.rows import RewardRow
from pipeline.store.store import RunStore
from pipeline.training.examples import split_of
from pipeline.training.write import Wanted, WrittenData, write_training_data
from tests.support.rows import blank
from tests.support.runs import rows, solve, write_problems

pytestmark = pytest.mark.slow  # whole runs


@pytest.fixture(scope="module")
def speccot(tmp_path_factory: pytest.TempPathFactory) -> SessionResult:
    """A run of six problems, of which some are solved."""
    folder = tmp_path_factory.mktemp("speccot")
    result = solve(folder, input=write_problems(folder, 6))
    assert {row["correct"] for row in rows(result, "chains")} == {True, False}
    return result


def written(folder: Path, *runs: Path, name: str = "data.parquet", **wanted: Any) -> tuple[WrittenData, list[dict[str, Any]]]:
    path = folder / name
    found = write_training_data(path, runs, Wanted(**wanted))
    return found, pq.read_table(path).to_pylist()


@pytest.mark.parametrize("part", ["thought", "response"])
def test_thoughts_as_messages_with_their_answers_on_request(speccot: SessionResult, tmp_path: Path, part: str) -> None:
    """Where answers are asked for, of the chains alone whose answers are right."""
    found, data = written(tmp_path, speccot.folder, format="sft", completion=part, correct=part == "response")
    steps = sorted(rows(speccot, "steps"), key=lambda row: (row["chain_id"], row["step_index"]))
    whole = {row["chain_id"]: row for row in rows(speccot, "chains") if row["stop_reason"] in ("thought_closed", "answer_boxed")}
    wanted = {name: row for name, row in whole.items() if part == "thought" or row["correct"]}
    assert sorted(row["chain_id"] for row in data) == sorted(wanted)
    assert sum(found.rows.values()) == len(data)
    assert (found.left_out.get("chains without a right answer", 0) > 0) == (part == "response")
    for row in data:
        [asked], [said] = row["prompt"], row["completion"]
        assert (asked["role"], asked["content"].startswith("Problem number "), said["role"]) == ("user", True, "assistant")
        thought, _, answer = said["content"].partition("</think>")
        text = "".join(step["step_text"] for step in steps if step["chain_id"] == row["chain_id"])
        assert thought == "<think>\n" + text.removesuffix("</think>")
        assert answer.lstrip() == (wanted[row["chain_id"]]["answer_text"].lstrip() if part == "response" else "")


def test_cut_thoughts_are_left_out(tmp_path: Path) -> None:
    folder = solve(tmp_path, settings=("token_budget=200",)).folder
    cut = sum(row["stop_reason"] not in ("thought_closed", "answer_boxed") for row in pq.read_table(folder / "chains").to_pylist())
    assert 0 < cut < 12
    found, data = written(tmp_path, folder, format="sft")
    assert (len(data), found.left_out) == (12 - cut, {"chains whose text was cut": cut})
    folder = solve(tmp_path, "short", input=write_problems(tmp_path, 2), settings=("token_budget=20",)).folder
    with pytest.raises(UsageError, match="gives no rows; left out: 2 chains whose text was cut"):
        written(tmp_path, folder, name="none.parquet", format="sft")
    assert not (tmp_path / "none.parquet").exists()


def test_choices_of_a_run_whose_answers_are_right(speccot: SessionResult, tmp_path: Path) -> None:
    _, data = written(tmp_path, speccot.folder, format="selection")
    asked = {tuple(row["option_ids"]) for row in rows(speccot, "calls") if row["kind"] == "choose"}
    correct = {row["chain_id"] for row in rows(speccot, "chains") if row["correct"]}
    steps = {(row["chain_id"], row["step_index"]): row for row in rows(speccot, "steps") if row["verify_kind"] == "choose"}
    assert {(row["chain_id"], row["step_index"]) for row in data} == {place for place in steps if place[0] in correct}
    for row in data:
        step = steps[row["chain_id"], row["step_index"]]
        assert tuple(row["option_ids"]) in asked
        assert [row["options"][place] for place in row["right"]] == [step["score_label"]]


def test_choices_of_a_run_with_rewards_are_right_by_them(speccot: SessionResult, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(speccot.folder, tmp_path / "run"))
    _, *known = [row for row in rows(folder, "steps") if row["verify_kind"] == "choose"]  # of the first one nobody knows
    steps = {(row["chain_id"], row["step_index"]): row["candidate_texts"] for row in known}
    with RunStore(folder).rewards() as add:
        for (chain, index), texts in steps.items():
            add([blank(RewardRow, chain_id=chain, step_index=index, candidate_index=i, reward=i / 2) for i in range(len(texts))])
    _, data = written(tmp_path, folder, format="selection")
    assert {(row["chain_id"], row["step_index"]): row["right"] for row in data} == {
        step: [place for place, text in enumerate(dict.fromkeys(texts), 1) if texts.index(text) / 2 >= 0.5] or [0]
        for step, texts in steps.items()
    }


def test_choices_among_thoughts_by_their_answers(tmp_path: Path) -> None:
    result = solve(tmp_path, graph="scot")
    _, data = written(tmp_path, result.folder, format="selection")
    steps = {row["chain_id"]: row for row in rows(result, "steps") if row["verify_kind"] == "choose"}
    references = {row["chain_id"]: row["reference_answer"] for row in rows(result, "chains")}
    assert {row["chain_id"] for row in data} == set(steps)
    for row in data:
        distinct = list(dict.fromkeys(steps[row["chain_id"]]["candidate_texts"]))
        right = [place for place, text in enumerate(distinct, 1) if re.findall(r"\b\d+\b", text)[-1:] == [references[row["chain_id"]]]]
        assert row["right"] == (right or [0])


def test_scores_are_right_on_one_side_of_the_threshold(tmp_path: Path) -> None:
    result = solve(tmp_path, graph="specreason", settings=("threshold=5",), input=write_problems(tmp_path, 4))
    _, data = written(tmp_path, result.folder, format="selection")
    accepted = {(row["chain_id"], row["step_index"]): row["decision"] == "accepted" for row in rows(result, "steps")}
    for row in data:
        right = range(5, 10) if accepted[row["chain_id"], row["step_index"]] else range(5)
        assert (row["right"], len(row["options"])) == (list(right), 10)


def test_several_runs_in_one_file_with_the_same_splits(tmp_path: Path) -> None:
    problems = write_problems(tmp_path, 8)
    runs = [solve(tmp_path, name, graph="target", input=problems).folder for name in ("one", "two")]
    found, data = written(tmp_path, *runs, format="sft", validation=0.4)
    assert {row["run_id"] for row in data} == {"one", "two"}
    assert all(row["split"] == split_of(f"Problem number {row['problem_id'][1:]}?", 0.4) for row in data)
    assert (len(found.problems), set(found.rows)) == (len({row["problem_id"] for row in data}), {"train", "validation"})
    write_training_data(tmp_path / "data.jsonl", runs, Wanted(format="sft", validation=0.4))
    assert [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()] == data


def test_what_a_run_cannot_give_is_refused_in_one_sentence(speccot: SessionResult, tmp_path: Path) -> None:
    target = solve(tmp_path, graph="target", input=write_problems(tmp_path, 2)).folder
    for folder, name, wanted, says in (
        (target, "data.parquet", {"format": "selection"}, "target, has no `choose` or `score` stage"),
        (speccot.folder, "data.parquet", {"format": "selection", "labels": "answers"}, "judges steps, which state no answers"),
        (speccot.folder, "data.parquet", {"format": "selection", "labels": "rewards"}, "has no rewards; score its candidates with `pipe"),
        (speccot.folder, "data.csv", {"format": "sft"}, "CSV cannot hold lists"),
    ):
        with pytest.raises(UsageError) as refused:
            written(tmp_path, folder, name=name, **wanted)
        assert says in str(refused.value)
        assert not (tmp_path / name).exists()
