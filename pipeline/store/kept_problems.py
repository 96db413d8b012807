"""The problems of a run: its input is read once, when the run begins, into `problems.parquet` of the run folder, and solved, reported and
exported from there. So nothing needs the input again, and all of its columns stay with the answers.

A server's problems come while it runs; its run folder has a table `problems` instead.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from pipeline.data.files import Flaw, Record
from pipeline.data.problems import DEFAULT, ChainSettings, Problem
from pipeline.data.reading import InputReading
from pipeline.errors import BadRow
from pipeline.graph.prompts import Message
from pipeline.options import MAX_ROWS, RowSet
from pipeline.store.folder import PROBLEMS
from pipeline.store.rows import ProblemRow, columns_of, schema_of
from pipeline.store.run_file import RunFile, RunInput
from pipeline.store.store import KEPT, ROWS_AT_ONCE, new_part, read_batches

SCHEMA = schema_of(ProblemRow)
_HISTORY = msgspec.json.Decoder(tuple[Message, ...])
_SETTINGS = msgspec.json.Decoder(ChainSettings)


class Problems:
    """The problems of a run, in the order of its input; they can be iterated any number of times."""

    def __init__(self, folder: Path | None, name: str, sha256: str, limit: int | None = None, remarks: Sequence[str] = ()) -> None:
        """`folder`: that holds them, None: there are none yet; `name`: of the input, in messages; `limit`: the last row to solve."""
        self.folder = None if folder is None else folder.absolute()  # as workers on other nodes read them
        self.name, self.limit, self.remarks = name, limit or MAX_ROWS, tuple(remarks)
        self._sha256 = sha256

    def __iter__(self) -> Iterator[Problem | BadRow]:
        return (self._item(row) for row in self._rows([*SCHEMA.names[:-2], "settings"]))

    def with_records(self) -> Iterator[tuple[Problem | BadRow, Record]]:
        """Each problem with its whole row: the values of all columns of the input."""
        return ((self._item(row), _record(row["input"])) for row in self._rows(SCHEMA.names))

    def counts(self, samples: int) -> RunInput:
        """The problems up to the limit as `run.json` counts them, with `samples` chains of each that does not say itself how many."""
        rows = 0
        own = list[int]()
        for batch in self._batches(["settings"]):
            rows += batch.num_rows
            found = (_SETTINGS.decode(text).samples for text in batch["settings"].drop_null().to_pylist())
            own += [each for each in found if each is not None]
        chains = (rows - len(own)) * samples + sum(own)
        return RunInput(sha256=self._sha256, rows=rows, chains=chains, samples=max([samples, *own]))

    @cached_property
    def graders(self) -> frozenset[str]:
        """The graders that problems name."""
        return frozenset(name for batch in self._batches(["grader"]) for name in batch["grader"].unique().to_pylist() if name)

    def copied(self, folder: Path, part: RowSet) -> "Problems":
        """Those of a `part`, in the `folder` of another run."""
        if self.folder is None:
            return self
        with new_part(folder / PROBLEMS, SCHEMA) as add:
            for batch in read_batches(self.folder, KEPT):
                inside = [part.shard is None or part.shard.holds(name) for name in batch["problem_id"].to_pylist()]
                add(batch.filter(pa.array(inside, pa.bool_())).cast(SCHEMA))
        return Problems(folder, self.name, self._sha256, part.limit, self.remarks)

    def _item(self, row: dict[str, Any]) -> Problem | BadRow:
        if row["flaw"] is not None:
            return BadRow(self.name, row["input_row"], row["flaw"], row["problem_id"])
        return Problem(
            row["input_row"],
            row["problem_id"],
            row["problem"],
            row["reference_answer"],
            tuple(row["options"]),
            row["grader"],
            _HISTORY.decode(row["history"]) if row["history"] else (),
            _SETTINGS.decode(row["settings"]) if row["settings"] else DEFAULT,
        )

    def _rows(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        return (row for batch in self._batches(columns) for row in batch.to_pylist())

    def _batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Batches of the rows up to the limit."""
        for batch in read_batches(self.folder, KEPT, ["input_row", *columns]) if self.folder is not None else ():
            inside = batch.slice(0, bisect_right(batch["input_row"], self.limit, key=pa.Int64Scalar.as_py))
            yield inside
            if inside.num_rows < batch.num_rows:
                return


def keep_problems(folder: Path, reading: InputReading, limit: int | None = None, told: Sequence[str] = ()) -> Problems:
    """Read an input, about which something was `told` already, into the folder of a run, whole. Raises `InputError`, and `RunFolderError`
    where the folder cannot be written."""
    with new_part(folder / PROBLEMS, SCHEMA) as add:
        rows = (problem_row(item, record) for item, record in reading)
        while waiting := list(islice(rows, ROWS_AT_ONCE)):
            add(columns_of(SCHEMA, waiting))
    return Problems(folder, reading.name, reading.sha256, limit, (*told, *reading.remarks))


def problem_row(item: Problem | BadRow, record: str | None) -> ProblemRow:
    """The row for a problem, of which `record` is the whole row of the input as JSON."""
    if isinstance(item, BadRow):
        return ProblemRow(input_row=item.row, problem_id=item.problem_id, flaw=item.what, input=record)
    return ProblemRow(
        input_row=item.row,
        problem_id=item.problem_id,
        problem=item.problem,
        reference_answer=item.answer,
        options=item.options,
        grader=item.grader,
        history=msgspec.json.encode(item.history).decode() if item.history else None,
        input=record,
        settings=None if item.settings == DEFAULT else msgspec.json.encode(item.settings).decode(),
    )


def _record(text: str | None) -> Record:
    return Flaw("its columns cannot be kept") if text is None else msgspec.json.decode(text)


def solved_problems(folder: Path, run: RunFile) -> Problems:
    """The problems of the `run` in `folder`."""
    return Problems(folder, run.options.input[0], run.input.sha256, run.options.limit)
