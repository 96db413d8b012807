"""`pipeline grade`: a run folder enters, its chains are graded again, and what changed leaves.

Answers and references are taken from the folder; nothing is solved again. Where a grade changes the parts of the table
`chains` are written anew, then the totals in `run.json`; a killed process leaves a folder that the next `grade` finishes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, field, structs

from pipeline.errors import InputError, RunError
from pipeline.grading.answers import Grade, as_kind
from pipeline.grading.grader import Grader
from pipeline.runtime.inline_grader import at_once
from pipeline.store.folder import hold
from pipeline.store.rows import counted, with_values
from pipeline.store.run_file import RunFile
from pipeline.store.store import RunStore, read_batches, table_files
from pipeline.system.machine import core_count

NEEDED = ("chain_id", "answer", "reference_answer", "correct", "stop_reason", "grader", "grading_error")
"""Columns of `chains` that grading reads."""
WORDS = {True: "right", False: "wrong", None: "no verdict"}
Row = Mapping[str, Any]


class Regrade(Struct):
    """The outcome of grading a run folder again."""

    run: str
    """The name of the run folder."""
    dry_run: bool
    chains: int = 0
    """Rows of the table `chains`."""
    graded: int = 0
    """Rows that now count as right or wrong, failed chains as wrong; see `rows.counted`."""
    correct: int = 0
    changes: Counter[str] = field(default_factory=Counter)
    """How many verdicts changed, by the old and the new one: `wrong -> right`."""
    errors: Counter[str] = field(default_factory=Counter)
    """How many answers were not compared to the end, by reason."""

    def count(self, row: Row, grade: Grade) -> None:
        """Count the new grade of a row."""
        verdict = counted(grade.correct, row["stop_reason"], row["reference_answer"])
        self.chains += 1
        self.graded += verdict is not None
        self.correct += bool(verdict)
        self.errors.update([grade.why] if grade.why else [])
        if grade.correct != row["correct"]:
            self.changes[f"{WORDS[row['correct']]} -> {WORDS[grade.correct]}{f' ({grade.why})' if grade.why else ''}"] += 1


def regrade(run: Path, *, dry_run: bool = False) -> Regrade:
    """Grade all chains of the run folder `run` again, and write the grades there unless it is a `dry_run`.

    Raises `InputError` where there are no chains, or they or `run.json` cannot be read, `RunFolderError` where they cannot be written,
    `RunError` where the grader cannot start.
    """
    if not table_files(run, "chains"):
        raise InputError(str(run), "is not a run folder with finished chains; expected chains/part-*.parquet in it")
    found, new, workers = Regrade(run.resolve().name, dry_run), dict[str, Grade](), min(8, core_count())
    with nullcontext() if dry_run else hold(run), Grader(workers) as grader, ThreadPoolExecutor(workers) as threads:
        record = RunFile.read(run)
        if not dry_run:
            RunStore(run).recover()
        for batch in read_batches(run, "chains", NEEDED):
            rows = batch.to_pylist()
            for row, grade in zip(rows, _grades(run, rows, grader, threads), strict=True):
                found.count(row, grade)
                if (grade.correct, grade.why) != (row["correct"], row["grading_error"]):
                    new[row["chain_id"]] = grade
        if not dry_run:
            RunStore(run).rewrite("chains", partial(_regraded, new))
            if record.ended_unix_ns is not None:
                structs.replace(record, totals=structs.replace(record.totals, graded=found.graded, correct=found.correct)).write(run)
    return found


def _grades(run: Path, rows: Sequence[Row], grader: Grader, threads: ThreadPoolExecutor) -> list[Grade]:
    """The grades of rows. Raises `InputError` where a grader is not installed whose grades would be replaced by those of another one."""
    for row in rows:
        if as_kind(name := row["grader"]) != name and row["correct"] is not None:
            what = f"was graded by {name!r}, which is not installed here; install the package that provides it"
            raise InputError(f"{run / 'chains'}, chain {row['chain_id']!r}", what)
    quick = [at_once(row["grader"], row["answer"], row["reference_answer"], row["stop_reason"]) for row in rows]
    asked = [row for row, grade in zip(rows, quick, strict=True) if grade is None]  # each takes a worker process, and a thread that waits
    slow = threads.map(lambda row: grader.grade(as_kind(row["grader"]), row["answer"], row["reference_answer"]), asked)
    grades = [grade or next(slow) for grade in quick]
    if broken := next((grade.why for grade in grades if grade.correct is None and grade.why), None):
        raise RunError(f"{run}: cannot be graded: {broken}; its grades were not changed")
    return grades


def _regraded(new: Mapping[str, Grade], rows: Any) -> Any:
    """These `rows` of chains with the `new` grades, by the ids of their chains."""
    then = zip(rows["chain_id"].to_pylist(), rows["correct"].to_pylist(), rows["grading_error"].to_pylist(), strict=True)
    grades = [new.get(chain) or Grade(correct, why=why) for chain, correct, why in then]
    return with_values(with_values(rows, "correct", [each.correct for each in grades]), "grading_error", [each.why for each in grades])
