"""The answers of a run for people and programs: a run folder enters, one row for each problem leaves, in the order of the input.

A row holds all columns of the input, what was answered and, where a problem has several samples, how they voted.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.analysis.choices import ballot
from pipeline.data.columns import ALIASES
from pipeline.data.files import Flaw, Record
from pipeline.data.problems import Problem
from pipeline.errors import BadRow
from pipeline.export.solved import SolvedChain, solved
from pipeline.store.kept_problems import solved_problems
from pipeline.store.query import Query
from pipeline.store.rows import UNFINISHED
from pipeline.store.run_file import RunFile

OURS = {
    "problem_id": pa.string(),
    "problem": pa.string(),
    "answer": pa.string(),
    "reference_answer": pa.string(),
    "correct": pa.bool_(),
    "status": pa.string(),
    "error": pa.string(),
    "samples": pa.int64(),
    "votes": pa.string(),
    "thought": pa.string(),
}
"""The columns that are not the input's, with their types; of the input's own, those with one of these names are called `input_NAME`."""
LARGE = "large"
"""The type of integers that Arrow can hold, and a float cannot."""
TYPES = {frozenset({bool}): pa.bool_(), frozenset({int}): pa.int64(), frozenset({LARGE}): pa.int64(), frozenset({int, LARGE}): pa.int64()}
TYPES |= {frozenset({float}): pa.float64(), frozenset({int, float}): pa.float64()}
"""The type of a column by those of its values; all others are text."""
Row = dict[str, Any]


class Answers:
    """The answers of the run in a folder. Raises `InputError` where that cannot be read."""

    def __init__(self, run: Path, *, thoughts: bool = False) -> None:
        """`thoughts`: with the thought that led to each answer."""
        self._run, self._thoughts = run, thoughts
        self._record = RunFile.read(run)
        self._problems = solved_problems(run, self._record)
        left_out = {*(() if self._record.input.samples > 1 else ("samples", "votes")), *(() if thoughts else ("thought",))}
        self._ours = {name: kind for name, kind in OURS.items() if name not in left_out}

    def columns(self) -> dict[str, pa.DataType]:
        """The columns of all rows, in their order. One of the input has the type that all its values have in common, else text."""
        met: dict[str, set[Any]] = {}
        for item, record in self._problems.with_records():
            for name, value in self._own(item, record).items():
                met.setdefault(name, set()).update(_kind(value))
        return self._ours | {name: TYPES.get(frozenset(kinds), pa.string()) for name, kinds in met.items()}

    def rows(self) -> Iterator[Row]:
        """One row for each problem.

        `status` is `done`, `failed` or `unfinished`. Of several samples the answer is that with most votes; `samples` says how many gave
        one, and `votes` how many gave which.
        """
        with Query(self._run) as db:
            for item, record, chains in solved(self._run, self._record, db, thoughts=self._thoughts):
                asked = {"problem_id": item.problem_id, "problem": item.problem if isinstance(item, Problem) else None}
                found = asked | _answered(chains, vote="votes" in self._ours)
                yield {name: found[name] for name in self._ours} | self._own(item, record)

    def _own(self, item: Problem | BadRow, record: Record) -> Row:
        """The columns of a row of the input that no column of ours repeats."""
        if isinstance(record, Flaw):
            return {}
        same = {self._record.options.columns.get(name, name) for name in ("problem", "problem_id")}
        if isinstance(item, Problem):
            same.update(name for name in ALIASES["problem"] if record.get(name) == item.problem)
        return {f"input_{name}" if name in OURS else name: value for name, value in record.items() if name not in same}


def _kind(value: Any) -> set[Any]:
    """The type of a value; none of null, and text of an integer that Arrow cannot hold."""
    if type(value) is int and abs(value) > 2**53:
        return {LARGE if -(2**63) <= value < 2**63 else str}
    return set() if value is None else {type(value)}


def _answered(chains: Sequence[SolvedChain], *, vote: bool) -> Row:
    """What the `chains` of one problem came to."""
    done = [chain for chain in chains if chain.stop_reason not in UNFINISHED]
    failed = [chain for chain in chains if chain.stop_reason == "error"]
    answers = ballot([(bool(chain.correct), chain.answer) for chain in done]) if vote else []
    chosen = done[answers[0].first] if answers else next(iter((*done, *failed)), None)
    return {
        "answer": chosen and chosen.answer,
        "reference_answer": chains[0].reference_answer if chains else None,
        "correct": chosen and chosen.correct,
        "status": "done" if done else "failed" if failed else "unfinished",
        "error": None if done or not failed else f"{failed[0].error_type}: {failed[0].error_message}",
        "samples": len(done),
        "votes": {answer.text: answer.votes for answer in answers},
        "thought": (chosen and chosen.thought) or None,
    }
