"""A run folder is graded again: what is said, what is written, and what is not touched."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.analysis.headline.lines import headline
from pipeline.analysis.summary import summarize
from pipeline.errors import InputError, RunError, RunFolderError
from pipeline.session.regrade import Change, regrade
from pipeline.store.events import ChainRow
from pipeline.store.rewrite import rewrite
from pipeline.store.tables import TraceStore
from tests.support.patience import HANGS_S
from tests.support.runs import rows, solve

Blank = Callable[..., Any]
ROOT = Path(__file__).parent.parent.parent


def chain(blank: Blank, number: int, answer: str | None, reference: str | None, correct: bool | None, **more: Any) -> Any:
    fields = {"chain_id": f"c{number}", "input_row": number, "stop_reason": "answer_boxed", "grader": "math"}
    return blank(ChainRow, answer=answer, reference_answer=reference, correct=correct, **fields | more)


@pytest.fixture
def run(tmp_path: Path, blank: Blank) -> Path:
    """Two parts: in the first one all verdicts are right, in the second one three are not."""
    folder = tmp_path / "a-run"
    for part in (
        [chain(blank, 1, "5", "5", True), chain(blank, 2, "6", "5", False), chain(blank, 3, None, "5", None, stop_reason="cancelled")],
        [
            chain(blank, 4, "1/2", "0.5", False),
            chain(blank, 5, "3", "4", True),
            chain(blank, 6, "(C)", "C", None, grader="letter", grading_error="the run ended before"),
            chain(blank, 7, "9", None, None),
            chain(blank, 8, None, "5", False),
        ],
    ):
        store = TraceStore(folder)
        store.append("chains", part)
        store.close()
    (folder / "run.json").write_text(json.dumps({"status": "finished", "totals": {"graded": 5, "correct": 2, "steps": 7}}))
    return folder


def content(run: Path) -> dict[str, bytes]:
    """Every file of a run folder but the lock, which says who was at work last."""
    files = [path for path in run.rglob("*") if path.is_file() and path.name != "run.lock"]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def correct(run: Path) -> list[bool | None]:
    return [row["correct"] for row in pq.read_table(run / "chains").sort_by("chain_id").to_pylist()]


def test_what_changed_is_said_and_written(run: Path) -> None:
    before = content(run)
    found = regrade(run)
    assert (found.chains, found.graded, found.correct, found.changed) == (8, 6, 3, 3)
    assert (found.became_right, found.became_wrong, found.errors) == (2, 1, {})
    assert found.changes[0] == Change("c4", "1/2", "0.5", False, True, None)
    assert correct(run) == [True, False, None, True, False, True, None, False]
    after = content(run)
    assert {name for name in before if before[name] != after[name]} == {"chains/part-00001.parquet", "manifest.jsonl", "run.json"}
    assert json.loads(after["run.json"]) == {"status": "finished", "totals": {"graded": 6, "correct": 3, "steps": 7}}


def test_a_second_time_nothing_changes(run: Path) -> None:
    regrade(run)
    before = content(run)
    found = regrade(run)
    assert (found.changed, found.changes) == (0, [])
    assert content(run) == before


def test_a_dry_run_writes_nothing(run: Path) -> None:
    before = content(run)
    assert regrade(run, dry_run=True).changed == 3
    assert content(run) == before


def test_everything_else_in_a_part_stays(run: Path) -> None:
    part = run / "chains/part-00001.parquet"
    before = pq.read_table(part)
    regrade(run)
    after = pq.read_table(part)
    assert after.schema.equals(before.schema, check_metadata=True)
    kept = [name for name in before.column_names if name not in ("correct", "grading_error")]
    assert after.select(kept).equals(before.select(kept))


def test_a_folder_of_an_earlier_version_gets_no_new_columns(run: Path) -> None:
    part = run / "chains/part-00001.parquet"
    pq.write_table(pq.read_table(part).drop_columns(["grader", "grading_error"]), part)
    assert regrade(run).changed == 3
    assert "grader" not in pq.read_schema(part).names


def test_a_run_that_goes_on_keeps_its_card(run: Path) -> None:
    card = json.dumps({"status": "running", "totals": {}})
    (run / "run.json").write_text(card)
    regrade(run)
    assert (run / "run.json").read_text() == card


@pytest.mark.parametrize("card", [None, "", "[]", '{"totals": null, "status": "finished"}', "{"])
def test_run_json_may_be_missing_or_odd(run: Path, card: str | None) -> None:
    (run / "run.json").unlink()
    if card is not None:
        (run / "run.json").write_text(card)
    assert regrade(run).changed == 3


def test_a_run_that_was_killed(tmp_path: Path, blank: Blank) -> None:
    """Its rows are in a write-ahead file; a copy of the folder is what a kill leaves."""
    store = TraceStore(tmp_path / "live")
    store.append("chains", [chain(blank, 1, "1/2", "0.5", False), chain(blank, 2, "3", "3", True)])
    dead = Path(shutil.copytree(tmp_path / "live", tmp_path / "dead"))
    before = content(dead)
    assert (regrade(dead, dry_run=True).chains, regrade(dead, dry_run=True).changed) == (2, 1)
    assert content(dead) == before
    found = regrade(dead)
    assert (found.chains, found.changed) == (2, 1)
    assert correct(dead) == [True, True]
    assert sorted(content(dead)) == ["chains/part-00000.parquet", "manifest.jsonl"]
    before = content(tmp_path / "live")
    assert regrade(tmp_path / "live").chains == 0, "only its own process may finish its parts"
    assert content(tmp_path / "live") == before
    store.close()


def test_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run folder with finished chains"):
        regrade(tmp_path)


def test_parts_that_are_no_chains(tmp_path: Path) -> None:
    (tmp_path / "chains").mkdir()
    part = tmp_path / "chains/part-00000.parquet"
    pq.write_table(pa.table({"answer": ["1"]}), part)
    with pytest.raises(InputError, match="has no column `chain_id`, `correct`, `reference_answer`, `stop_reason`"):
        regrade(tmp_path)
    part.write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"part-00000.parquet: cannot be read"):
        regrade(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(run: Path) -> None:
    (run / "chains").chmod(0o500)
    with pytest.raises(RunFolderError, match="cannot be written"):
        regrade(run)


def pipeline(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from pipeline.cli.main import main; main()", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S)


@pytest.mark.slow
def test_the_command(run: Path) -> None:
    would = pipeline("grade", run, "--dry-run")
    assert would.returncode == 0, would.stderr
    assert "a-run: 3 verdicts would change, 2 to right and 1 to wrong\n  c4: wrong -> right: 1/2  for  0.5\n" in would.stdout
    found = json.loads(pipeline("grade", run, "--json").stdout)
    assert (found["changed"], found["correct"], len(found["changes"])) == (3, 3, 3)
    done = pipeline("grade", run)
    assert done.stdout == "a-run: 0 verdicts changed, 0 to right and 0 to wrong\n3 of 6 graded are right (50.0%), of 8 chains\n"
    nothing = pipeline("grade", run.parent)
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert nothing.stderr.count("\n") == 1


@pytest.mark.slow
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


def test_a_part_without_a_changed_grade_is_read_no_further(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[str] | None] = []

    def noted(file: pq.ParquetFile, columns: list[str] | None = None, **more: Any) -> pa.Table:
        read.append(columns)
        return whole(file, columns, **more)

    whole = pq.ParquetFile.read
    monkeypatch.setattr(pq.ParquetFile, "read", noted)
    regrade(run)
    assert read.count(None) == 1  # of the second part
    read.clear()
    regrade(run)
    assert len(read) == 2
    assert all(columns is not None and "answer_text" not in columns for columns in read)


def test_grades_of_a_grader_that_is_not_installed_are_kept(tmp_path: Path) -> None:
    result = solve(tmp_path)
    rewrite(tmp_path / "run", "chains", ["grader"], lambda rows: [{"grader": "sql"}] * len(rows))
    before = rows(result, "chains")
    with pytest.raises(InputError, match="was graded by 'sql', which is not installed here"):
        regrade(tmp_path / "run")
    assert rows(result, "chains") == before
