"""The answers of a run for people and programs: a run folder enters, one row for each problem leaves, in the order of the input.

A row holds all columns of the input, what was answered and, where a problem has several samples, how they voted. One window of
problems is in memory at a time.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.analysis.quality.votes import Same, Sample, ballot
from pipeline.data.columns import ALIASES
from pipeline.data.files import Flaw, Record
from pipeline.data.problems import Problem
from pipeline.errors import BadRow
from pipeline.grading.grader import Grader
from pipeline.store.kept_problems import solved_problems
from pipeline.store.query import Query
from pipeline.store.rows import UNFINISHED
from pipeline.store.run_file import RunFile

WINDOW = 16_384
"""Problems whose thoughts are in memory together."""
CHAINS = """
SELECT input_row, chain_id, answer, reference_answer, correct, stop_reason, error_type, error_message
FROM chains ORDER BY input_row, sample_index"""
THOUGHTS = """
SELECT chain_id, string_agg(step_text, '' ORDER BY step_index) FROM steps WHERE chain_id IN (SELECT unnest($chains::VARCHAR[]))
GROUP BY chain_id"""
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
EXACT = 2**53
"""Up to which floating-point numbers hold every integer."""
Row = dict[str, Any]


class _Large(int):
    """An integer that no floating-point number is for certain."""


SCALARS = {bool: pa.bool_(), int: pa.int64(), _Large: pa.int64(), float: pa.float64(), str: pa.string()}


class Answers:
    """The answers of the run in a folder. Raises `InputError` where that cannot be read."""

    def __init__(self, run: Path, *, thoughts: bool = False) -> None:
        """`thoughts`: with the thought that led to each answer."""
        self._run, self._thoughts = run, thoughts
        self._record = RunFile.read(run)
        self._problems = solved_problems(run, self._record)

    def columns(self) -> dict[str, pa.DataType]:
        """The columns of all rows, in their order. One of the input has the type that all its values have in common, else text."""
        met: dict[str, set[type]] = {}
        for item, record in self._problems.with_records():
            for name, value in self._own(item, record).items():
                met.setdefault(name, set()).update(_kinds(value))
        left_out = {*(() if self._record.samples > 1 else ("samples", "votes")), "thought"}
        ours = {name: kind for name, kind in OURS.items() if name not in left_out}
        thought = {"thought": pa.string()} if self._thoughts else {}
        return ours | {name: _common(kinds) for name, kinds in met.items()} | thought

    def rows(self) -> Iterator[Row]:
        """One row for each problem.

        `status` is `done`, `failed` or `unfinished`. Of several samples the answer is that with most votes; `samples` says how many gave
        one, and `votes` how many gave which.
        """
        with Query(self._run) as db, Grader() as grader:  # starts no process but for answers that are written differently
            rows = self._rows(db, lambda a, b: grader.grade("math", a, b).correct is True)
            while window := list(islice(rows, WINDOW)):
                if self._thoughts:
                    _add_thoughts(self._run, window)
                for row in window:
                    row.pop("chain_id")
                    yield row

    def _rows(self, db: Query, same: Same) -> Iterator[Row]:
        chains = (chain for batch in db.batches(CHAINS) for chain in batch.to_pylist())
        grouped = groupby(chains, key=itemgetter("input_row"))
        row, samples = next(grouped, (None, iter(())))
        for item, record in self._problems.with_records():
            mine: list[Row] = []
            if row == item.row:
                mine = list(samples)
                row, samples = next(grouped, (None, iter(())))
            asked = {"problem_id": item.problem_id, "problem": item.problem if isinstance(item, Problem) else None}
            yield asked | _answered(mine, self._record.samples, same) | self._own(item, record)

    def _own(self, item: Problem | BadRow, record: Record) -> Row:
        """The columns of a row of the input that no column of ours repeats."""
        if isinstance(record, Flaw):
            return {}
        same = {self._record.input.columns.get(name, name) for name in ("problem", "problem_id")}
        if isinstance(item, Problem):
            same.update(name for name in ALIASES["problem"] if record.get(name) == item.problem)
        return {f"input_{name}" if name in OURS else name: value for name, value in record.items() if name not in same}


def _kinds(value: Any) -> set[type]:
    """The types that a column with this value has to hold."""
    if value is None:
        return set()
    if type(value) is not int or abs(value) <= EXACT:
        return {type(value)}
    return {int, _Large} if -(2**63) <= value < 2**63 else {str}


def _common(kinds: set[type]) -> pa.DataType:
    if kinds == {int, float}:
        return pa.float64()
    scalars = {SCALARS.get(kind, pa.string()) for kind in kinds}
    return scalars.pop() if len(scalars) == 1 else pa.string()


def _answered(chains: Sequence[Mapping[str, Any]], samples: int, same: Same) -> Row:
    """What the `chains` of one problem came to."""
    done = [chain for chain in chains if chain["stop_reason"] not in UNFINISHED]
    failed = [chain for chain in chains if chain["stop_reason"] == "error"]
    answers = ballot([Sample(bool(chain["correct"]), chain["answer"]) for chain in done], same) if samples > 1 else []
    chosen = done[answers[0].first] if answers else next(iter((*done, *failed)), None)
    found: Row = {
        "answer": chosen["answer"] if chosen else None,
        "reference_answer": chains[0]["reference_answer"] if chains else None,
        "correct": chosen["correct"] if chosen else None,
        "status": "done" if done else "failed" if failed else "unfinished",
        "error": None if done or not failed else f"{failed[0]['error_type']}: {failed[0]['error_message']}",
        "chain_id": chosen["chain_id"] if chosen else None,
    }
    if samples > 1:
        found |= {"samples": len(done), "votes": {answer.text: answer.votes for answer in answers}}
    return found


def _add_thoughts(run: Path, rows: Sequence[Row]) -> None:
    """Give each row the text of the thought of its chain."""
    with Query(run) as db:
        texts = dict(db.stream(THOUGHTS, chains=[row["chain_id"] for row in rows if row["chain_id"] is not None]))
    for row in rows:
        row["thought"] = texts.get(row["chain_id"]) or None
