"""A run folder's steps with what came before them: which texts, and whose."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.data.reading import read_files
from pipeline.errors import InputError
from pipeline.rewards import StepToScore, steps_to_score
from pipeline.store.kept_problems import keep_problems, solved_problems
from pipeline.store.query import Query
from pipeline.store.rows import StepRow
from pipeline.store.run_file import RunFile
from pipeline.store.store import RunStore
from tests.support.rows import blank
from tests.support.run_files import write_run_json
from tests.support.runs import solve

pytestmark = pytest.mark.slow  # whole runs

STAGES = {"draft": {"kind": "draft", "engine": "small", "candidates": 2, "max_tokens": 9}}
ENGINES: dict[str, Any] = {"small": {}, "large": {}}


def row(problem: str, index: int, text: str, chosen: int | None = None, drafted: tuple[str, ...] = ()) -> StepRow:
    """A step of problem a or b."""
    decision, writer = ("fallback", "large") if chosen is None else ("accepted", "small")
    place: dict[str, Any] = {"problem_id": problem, "chain_id": f"{problem}#0", "step_index": index, "decision": decision}
    said: dict[str, Any] = {"source_engine": writer, "chosen_candidate": chosen, "step_text": text, "candidate_texts": drafted}
    return blank(StepRow, **place, **said)


def folder_of(folder: Path, *rows: Any) -> Path:
    """A run folder of these steps, over an input of two problems."""
    store = RunStore(write_run_json(folder))
    store.append("steps", rows)
    store.close()
    path = folder / "problems.csv"
    path.write_text("name,text\na,Problem A?\nb,Problem B?\n")
    columns = {"problem": "text", "problem_id": "name"}
    sha256 = keep_problems(folder, read_files([path], columns)).counts(1).sha256
    read = {"sha256": sha256, "rows": 2, "chains": 2, "samples": 1}
    return write_run_json(folder, stages=STAGES, engines=ENGINES, columns=columns, input=read)


def rounds_of(folder: Path) -> list[StepToScore]:
    file = RunFile.read(folder)
    with Query(folder) as query:
        return list(steps_to_score(query, file.plan, solved_problems(folder, file), "prm"))


def texts_of(step: StepToScore) -> list[tuple[str, int | None, bool, str]]:
    return [(text, r.candidate_index, r.selected, r.source_engine) for text, r in zip(step.texts, step.rows, strict=True)]


def test_a_step_knows_its_problem_its_thought_and_its_candidates(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path,
        row("b", 0, "Ben has"),
        row("a", 0, "Ann has"),
        row("b", 1, " 3.\n\n", 1, (" 2.\n\n", " 3.\n\n")),
        row("b", 2, "So 4.\n\n", None, ("So 5.\n\n", "So 5.\n\n")),
    )
    a0, b0, b1, b2 = rounds_of(folder)
    assert (b0.problem, a0.problem, b2.rows[0].chain_id) == ("Problem B?", "Problem A?", "b#0")
    assert (texts_of(b0), b0.steps) == ([("Ben has", None, True, "large")], {"Ben has": ["Ben has"]})
    assert texts_of(b1) == [(" 2.\n\n", 0, False, "small"), (" 3.\n\n", 1, True, "small")]
    assert (b1.before, b1.steps) == ((), {" 2.\n\n": ["Ben has 2."], " 3.\n\n": ["Ben has 3."]})
    drafted = [("So 5.\n\n", number, False, "small") for number in range(2)]
    assert texts_of(b2) == [*drafted, ("So 4.\n\n", None, True, "large")]
    assert (b2.before, list(b2.steps)) == (("Ben has 3.",), ["So 5.\n\n", "So 4.\n\n"])


@pytest.mark.parametrize("graph", ["speccot", "scot"])
def test_it_reads_what_a_run_writes(tmp_path: Path, graph: str) -> None:
    found = rounds_of(solve(tmp_path, graph=graph, samples=2, batch_size=4).folder)
    assert {(each.rows[0].problem_id, each.problem) for each in found} == {(f"p{i}", f"Problem number {i}?") for i in range(12)}
    assert all(sum(row.selected for row in each.rows) == 1 for each in found)
    assert {row.source_engine for each in found for row in each.rows if row.candidate_index is not None} == {"draft"}
    assert any(each.before for each in found) == (graph != "scot")
    assert any(len(steps) > 1 for each in found for steps in each.steps.values()) == (graph == "scot")


def test_a_problem_that_is_nowhere(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"problems.csv: holds no problem 'c', of which this run has steps"):
        rounds_of(folder_of(tmp_path, row("c", 1, "x")))
