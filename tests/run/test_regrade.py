"""A run folder is graded again: what is said, what is written, and what is not touched."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from msgspec import structs

from pipeline.analysis.headline import headline
from pipeline.analysis.summary import summarize
from pipeline.errors import RunError, UsageError
from pipeline.run.regrade import regrade
from pipeline.store.folder import hold
from pipeline.store.rows import ChainRow
from pipeline.store.run_file import RunFile, Totals
from pipeline.store.store import RunStore
from tests.support.commands import pipeline
from tests.support.rows import blank
from tests.support.run_files import write_run_json
from tests.support.runs import solve

pytestmark = pytest.mark.slow  # whole runs


def chain(number: int, answer: str | None, reference: str | None, correct: bool | None, **more: Any) -> Any:
    fields = {"chain_id": f"c{number}", "input_row": number, "stop_reason": "answer_boxed", "grader": "math"}
    return blank(ChainRow, answer=answer, reference_answer=reference, correct=correct, **fields | more)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two parts: in the first one all verdicts are right, in the second one three are not."""
    sessions, totals = [{"started_unix_ns": 0, "ended_unix_ns": 1}], {"graded": 5, "correct": 2, "steps": 7}
    folder = write_run_json(tmp_path / "a-run", sessions=sessions, totals=totals)
    for part in (
        [chain(1, "5", "5", True), chain(2, "6", "5", False), chain(3, None, "5", None, stop_reason="cancelled")],
        [
            chain(4, "1/2", "0.5", False),
            chain(5, "3", "4", True),
            chain(6, "(C)", "C", None, grader="letter", grading_error="the run ended before"),
            chain(7, "9", None, None),
            chain(8, None, "5", False),
        ],
    ):
        store = RunStore(folder)
        store.append("chains", part)
        store.close()
    return folder


def content(run: Path) -> dict[str, bytes]:
    """Every file of a run folder but the lock, which says who was at work last."""
    files = [path for path in run.rglob("*") if path.is_file() and path.name != "run.lock"]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def correct(run: Path) -> list[bool | None]:
    return [row["correct"] for row in pq.read_table(run / "chains").sort_by("chain_id").to_pylist()]


def test_what_changed_is_said_and_written_and_all_else_stays(run: Path) -> None:
    before, table = content(run), pq.read_table(run / "chains")
    would = pipeline("grade", run, "--dry-run")
    assert "a-run: 3 verdicts would change\n  1 wrong -> right\n" in would.stdout
    assert content(run) == before
    found = regrade(run)
    assert (found.chains, found.graded, found.correct, found.errors) == (8, 6, 3, {})
    names = ["wrong -> right", "right -> wrong", "no verdict -> right"]
    assert found.changes == dict.fromkeys(names, 1)
    assert correct(run) == [True, False, None, True, False, True, None, False]
    after = content(run)
    assert {name for name in after if before.get(name) != after[name]} == {"chains/part-00001.parquet", "run.json"}
    assert RunFile.read(run).totals == Totals(graded=6, correct=3, steps=7)
    loose = ["correct", "grading_error"]
    assert pq.read_table(run / "chains").drop_columns(loose).equals(table.drop_columns(loose))
    again = json.loads(pipeline("grade", run, "--json").stdout)
    assert (again["changes"], again["correct"], content(run)) == ({}, 3, after)
    structs.replace(RunFile.read(run), totals=Totals(graded=5, correct=2, steps=7)).write(run)  # as where it was killed before the totals
    assert (regrade(run).changes, content(run)) == ({}, after)


def test_a_run_that_was_killed(tmp_path: Path) -> None:
    """Its rows are in a write-ahead file; a copy of the folder is what a kill leaves."""
    store = RunStore(write_run_json(tmp_path / "live"))
    store.append("chains", [chain(1, "1/2", "0.5", False), chain(2, "3", "3", True)])
    dead = Path(shutil.copytree(tmp_path / "live", tmp_path / "dead"))
    before = content(dead)
    assert regrade(dead, dry_run=True).changes.total() == 1
    assert content(dead) == before
    found = regrade(dead)
    assert (found.chains, found.changes.total()) == (2, 1)
    assert correct(dead) == [True, True]
    assert sorted(content(dead)) == ["chains/part-00000.parquet", "run.json"]
    with hold(tmp_path / "live"), pytest.raises(UsageError, match="this process is at work in it"):
        regrade(tmp_path / "live")
    store.close()


def test_a_grader_that_cannot_start_is_said_and_grading_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """math-verify is installed without sympy: the run finishes as ever, its answers have no grade, and the summary says why."""
    lines = [json.dumps({"problem": f"Problem number {number}?", "answer": r"\sqrt{x}"}) for number in range(3)]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/math_verify.py").write_text("raise ModuleNotFoundError(\"No module named 'sympy'\")")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path / "broken"))
        result = solve(tmp_path, "run", graph="target", input=tmp_path / "p.jsonl")
        assert result.folder is not None
        run = result.folder
        before = content(run)
        with pytest.raises(
            RunError, match=r"run: cannot be graded: the grader cannot start: .*No module named 'sympy'; its grades were not changed"
        ):
            regrade(run)
        assert content(run) == before
    assert (result.exit_code, result.done, result.run.totals.graded) == (0, 3, 0)
    why = "the grader cannot start: ModuleNotFoundError: No module named 'sympy'"
    summary = summarize(run)
    assert summary.grading_errors == {why: 3}
    accuracy = next(row.text for row in headline(summary).rows if row.name == "accuracy")
    assert accuracy == f"not graded; `pipeline grade` can do it later: 3 not graded: {why}"
    assert (regrade(run).graded, summarize(run).grading_errors) == (3, {})
