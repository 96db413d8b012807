"""`pipeline grade`: a run folder enters, its chains are graded again, and what changed leaves.

Answers and references are taken from the folder; nothing is solved again. Where a grade changes its part of the table `chains` is
replaced, then the totals in `run.json`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from pipeline.analysis.summary import summarize
from pipeline.errors import InputError, RunError
from pipeline.grading.answers import Grade, as_kind, is_kind, quick_grade
from pipeline.grading.grader import LIMIT_S, Grader
from pipeline.store.folder import hold
from pipeline.store.rows import UNFINISHED, counted, with_values
from pipeline.store.run_file import RunFile
from pipeline.store.store import RunStore, has_table, read_batches
from pipeline.system.machine import core_count

NEEDED = ("chain_id", "answer", "reference_answer", "correct", "stop_reason", "grader", "grading_error")
"""Columns of `chains` that grading reads."""
MAX_NAME = 60
"""Characters of the name of a grader that are shown."""
Row = Mapping[str, Any]


class Change(Struct, frozen=True):
    """One chain whose grade has changed."""

    chain_id: str
    answer: str | None
    reference_answer: str
    before: bool | None
    """Whether the answer was right by the old grade; None where it was not graded."""
    after: bool | None
    """Whether it is right by the new grade; None where it was not graded."""
    rule: str | None
    """What decided the new grade, or kept the answers from being compared to the end; None where there was nothing to compare."""


class Regrade(Struct, frozen=True):
    """The outcome of grading a run folder again."""

    run: str
    """The name of the run folder."""
    dry_run: bool
    chains: int
    """Rows of the table `chains`."""
    graded: int
    """Rows that now count as right or wrong, failed chains as wrong; see `events.counted`."""
    correct: int
    changed: int
    became_right: int
    became_wrong: int
    errors: dict[str, int]
    """How many answers were not compared to the end, by reason."""
    changes: list[Change]


def regrade(run: Path, *, dry_run: bool = False, workers: int | None = None, limit_s: float = LIMIT_S) -> Regrade:
    """Grade all chains of the run folder `run` again, and write the grades there unless it is a `dry_run`.

    Raises `InputError` where there are no chains, or they or `run.json` cannot be read, `RunFolderError` where they cannot be written,
    `RunError` where the grader cannot start.
    """
    if not has_table(run, "chains"):
        raise InputError(str(run), "is not a run folder with finished chains; expected chains/part-*.parquet in it")
    count = workers or max(1, min(8, core_count()))
    alone = nullcontext() if dry_run else hold(run)
    with alone, Grader(count, limit_s) as grader, ThreadPoolExecutor(count) as threads:
        record, tally = RunFile.read(run), Tally(run, grader, threads)
        if not dry_run:
            RunStore(run).recover()
        for batch in read_batches(run, "chains", NEEDED):
            tally.grade(batch.to_pylist())
        if tally.new and not dry_run:
            RunStore(run).rewrite("chains", partial(_regraded, tally.new))
            summary = summarize(run)
            if record.ended is not None:
                totals = structs.replace(record.totals, graded=summary.graded, correct=summary.correct)
                structs.replace(record, totals=totals).write(run)
    rights = Counter(change.after for change in tally.changes)
    return Regrade(
        run=run.resolve().name,
        dry_run=dry_run,
        chains=tally.chains,
        graded=tally.graded,
        correct=tally.correct,
        changed=len(tally.changes),
        became_right=rights[True],
        became_wrong=rights[False],
        errors=dict(tally.errors.most_common()),
        changes=tally.changes,
    )


def _regraded(new: Mapping[str, Grade], rows: Any) -> Any:
    """These `rows` of chains with the `new` grades, by the ids of their chains."""
    grades = [new.get(chain) for chain in rows["chain_id"].to_pylist()]
    for name, field in (("correct", "correct"), ("grading_error", "why")):
        values = [old if grade is None else getattr(grade, field) for grade, old in zip(grades, rows[name].to_pylist(), strict=True)]
        rows = with_values(rows, name, values)
    return rows


class Tally:
    """Grades rows of `chains` and counts the outcomes."""

    def __init__(self, run: Path, grader: Grader, threads: ThreadPoolExecutor) -> None:
        self._run, self._grader, self._threads = run, grader, threads
        self.chains = self.graded = self.correct = 0
        self.errors: Counter[str] = Counter()
        self.changes: list[Change] = []
        self.new: dict[str, Grade] = {}
        """The grades that are not as they were, by the ids of their chains."""

    def grade(self, rows: Sequence[Row]) -> None:
        """Grade `rows`."""
        self._check_graders(rows)
        questions = [_question(row) for row in rows]
        asked = dict.fromkeys(question for question in questions if question is not None)
        quick = {question: quick_grade(*question) for question in asked}
        slow = [question for question, grade in quick.items() if grade is None]  # which take a worker process, and a thread that waits
        grades = {question: grade for question, grade in quick.items() if grade is not None}
        grades |= zip(slow, self._threads.map(lambda question: self._grader.grade(*question), slow), strict=True)
        if broken := next((grade.why for grade in grades.values() if grade.correct is None), None):
            raise RunError(f"{self._run}: cannot be graded: {broken}; its grades were not changed")
        for row, question in zip(rows, questions, strict=True):
            self._note(row, question and grades[question])

    def _check_graders(self, rows: Sequence[Row]) -> None:
        """Raise `InputError` where a grader is not installed whose grades would be replaced by those of another one."""
        for row in rows:
            name = row["grader"]
            if not is_kind(name) and row["correct"] is not None:
                what = f"was graded by {name[:MAX_NAME]!r}, which is not installed here; install the package that provides it"
                raise InputError(f"{self._run / 'chains'}, chain {row['chain_id']!r}", what)

    def _note(self, row: Row, grade: Grade | None) -> None:
        grade = grade or (Grade(False) if _can_be_graded(row) else Grade(None))
        self.chains += 1
        verdict = counted(grade.correct, row["stop_reason"], row["reference_answer"])
        self.graded += verdict is not None
        self.correct += bool(verdict)
        self.errors.update([grade.why] if grade.why else [])
        if grade.correct != row["correct"]:
            reference, rule = row["reference_answer"] or "", grade.why or grade.rule
            self.changes.append(Change(row["chain_id"], row["answer"], reference, row["correct"], grade.correct, rule))
        if (grade.correct, grade.why) != (row["correct"], row["grading_error"]):
            self.new[row["chain_id"]] = grade


def _can_be_graded(row: Row) -> bool:
    return row["reference_answer"] is not None and row["stop_reason"] not in UNFINISHED


def _question(row: Row) -> tuple[Any, str, str] | None:
    """The arguments of `Grader.grade` for a row; None where there is nothing to compare."""
    if row["answer"] is None or not _can_be_graded(row):
        return None
    return as_kind(row["grader"]), row["answer"], row["reference_answer"]
