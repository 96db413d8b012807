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
import pyarrow.compute as pc

from pipeline.analysis.quality.votes import Sample, ballot
from pipeline.data.problems import Problem, open_problems
from pipeline.data.rows import Flaw
from pipeline.errors import InputError
from pipeline.grading.grader import Grader
from pipeline.store.events import UNFINISHED
from pipeline.store.kept_problems import kept_problems
from pipeline.store.read import read_batches
from pipeline.store.run_file import RunFile

WINDOW = 16_384
"""Problems whose thoughts are in memory together."""
CHAIN = ("input_row", "sample_index", "chain_id", "answer", "reference_answer", "correct", "stop_reason", "error_type", "error_message")
OURS = ("problem_id", "problem", "answer", "reference_answer", "correct", "status", "error", "samples", "votes", "thought")
"""Names of the columns that are not the input's; of the input's own, those with one of these names are called `input_NAME`."""

Row = dict[str, Any]


def answer_rows(run: Path, *, thoughts: bool = False) -> Iterator[Row]:
    """One row for each problem of the run folder `run`, with `thoughts` also the thought that led to its answer.

    `status` is `done`, `failed` or `unfinished`. Of several samples the answer is that with most votes; `samples` says how many
    gave one, and `votes` how many gave which. Raises `InputError` where the folder cannot be read, or its input is gone and was not kept.
    """
    record = RunFile.read(run)
    chains = _chains(run)
    with Grader() as grader:  # starts no process but for answers that are written differently
        rows = _rows(run, record, chains, lambda a, b: grader.grade("math", a, b).correct is True)
        while window := list(islice(rows, WINDOW)):
            if thoughts:
                _add_thoughts(run, window)
            for row in window:
                row.pop("chain_id")
                yield row


def _chains(run: Path) -> pa.Table:
    """The chains of a run, by problem and sample."""
    batches = list(read_batches(run, "chains", CHAIN))
    if not batches:
        return pa.table({name: [] for name in CHAIN})
    return pa.Table.from_batches(batches).sort_by([("input_row", "ascending"), ("sample_index", "ascending")])


def _rows(run: Path, record: RunFile, chains: pa.Table, same: Any) -> Iterator[Row]:
    grouped = groupby(_dicts(chains), key=itemgetter("input_row"))
    row, samples = next(grouped, (None, iter(())))
    for item, own in _problems(run, record):
        mine: list[Row] = []
        if row == item.row:
            mine = list(samples)
            row, samples = next(grouped, (None, iter(())))
        asked = {"problem_id": item.problem_id, "problem": item.problem if isinstance(item, Problem) else None}
        yield {**asked, **_answered(mine, record.samples, same), **own}


def _dicts(table: pa.Table) -> Iterator[Row]:
    for batch in table.to_batches(max_chunksize=1024):
        yield from batch.to_pylist()


def _problems(run: Path, record: RunFile) -> Iterator[tuple[Any, Row]]:
    """Every row of the input, and its own columns."""
    kept = kept_problems(run, record.input)
    problems = kept or open_problems(record.input.file, record.input.columns, record.input.part)
    if kept is None and problems.check().sha256 != record.input.sha256:
        raise InputError(str(problems.path), "has changed since this run, which kept no copy of it")
    same = {record.input.columns.get(name, name) for name in ("problem", "problem_id")}
    for item, whole in problems.with_records():
        yield item, {} if isinstance(whole, Flaw) else {_own(name): value for name, value in whole.items() if name not in same}


def _own(name: str) -> str:
    return f"input_{name}" if name in OURS else name


def _answered(chains: Sequence[Mapping[str, Any]], samples: int, same: Any) -> Row:
    """What the `chains` of one problem came to."""
    done = [chain for chain in chains if chain["stop_reason"] not in UNFINISHED]
    failed = [chain for chain in chains if chain["stop_reason"] == "error"]
    answers = ballot([Sample(bool(chain["correct"]), chain["answer"]) for chain in done], same) if samples > 1 else []
    chosen = done[answers[0].first] if answers else next(iter((*done, *failed)), None)
    found: Row = {
        "answer": chosen["answer"] if chosen else None,
        "reference_answer": next((chain["reference_answer"] for chain in chains), None),
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
    texts: dict[str, list[str]] = {row["chain_id"]: [] for row in rows if row["chain_id"] is not None}
    wanted = pa.array(texts, pa.string())
    for batch in read_batches(run, "steps", ["chain_id", "step_text"]):
        here = batch.filter(pc.is_in(batch.column("chain_id"), wanted))
        for name, text in zip(here.column("chain_id").to_pylist(), here.column("step_text").to_pylist(), strict=True):
            texts[name].append(text)
    for row in rows:
        row["thought"] = "".join(texts.get(row["chain_id"], ())) or None
