"""The problems of a run in its own folder: the input enters when the run begins, a table `problems` leaves, which takes its place later.

With it a run can be resumed, reported and exported wherever its input has gone, and all columns of the input stay with the answers.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pipeline.data.part import ALL
from pipeline.data.problems import Problem, Problems, open_problems
from pipeline.data.requests.chat import ChainSettings
from pipeline.data.rows import Flaw, Record, Source
from pipeline.errors import BadRow, InputError
from pipeline.graph.prompts import Message
from pipeline.store.events import ProblemRow
from pipeline.store.parts import has_table, read_batches
from pipeline.store.run_file import RunInput
from pipeline.store.run_store import RunStore

TABLE = "problems"
AT_ONCE = 512
"""Rows that are written together."""
COLUMNS = ("input_row", "problem_id", "problem", "reference_answer", "options", "grader", "history", "flaw", "settings")
_HISTORY = msgspec.json.Decoder(tuple[Message, ...])
_SETTINGS = msgspec.json.Decoder(ChainSettings)
_RECORD = msgspec.json.Decoder(dict[str, Any])


def keep_problems(folder: Path, problems: Problems) -> None:
    """Write the `problems`, which have been checked, into the run folder as its table `problems`, in place of an earlier one.

    Raises `InputChanged` where they are not what they were, `RunFolderError` where the folder cannot be written.
    """
    waiting: list[ProblemRow] = []
    with RunStore(folder).replace(TABLE) as table:
        for item, record in problems.with_records():
            waiting.append(problem_row(item, record))
            if len(waiting) == AT_ONCE:
                table.append(waiting)
                waiting = []
        table.append(waiting)


def kept_problems(folder: Path, about: RunInput) -> Problems | None:
    """The problems that the run in `folder` has kept of the input that its `run.json` tells `about`; None where it has kept none."""
    return KeptProblems(folder, about) if has_table(folder, TABLE) else None


def solved_problems(folder: Path, about: RunInput, moved: Path | None = None) -> Problems:
    """The problems that the run in `folder` solved: those that it has kept or, else, those of its input file, which is where it was or at
    `moved`.

    Raises `InputError` where that file is gone or is another one.
    """
    if moved is None and (kept := kept_problems(folder, about)) is not None:
        return kept
    problems = open_problems(moved or about.file, about.columns, about.part)
    if not problems.path.exists():
        raise InputError(str(problems.path), "the input of this run is not here, and the run kept no copy of it; put it back")
    if problems.check().sha256 != about.sha256:
        raise InputError(
            str(problems.path), "is not what this run solved: it has other bytes, and the run kept no copy of it; put that file back"
        )
    return problems


class KeptProblems(Problems):
    """Problems from the table `problems` of a run folder, the same items as from the input file."""

    def __init__(self, folder: Path, about: RunInput) -> None:
        super().__init__(Path(about.file), {}, ALL)  # by which messages call it
        self._folder, self._about = folder, about

    def _open(self) -> Source:
        return _KeptRows(self._folder)

    def _clauses(self, source: Source, seen: object) -> Iterator[str]:
        return iter(())  # said when the run began

    def _item(self, row: int, record: Record) -> Problem | BadRow:
        """The item as it was kept: what its values mean was decided when the run began."""
        if isinstance(record, Flaw) or record["flaw"] is not None:
            known = {} if isinstance(record, Flaw) else record
            return BadRow(str(self.path), row, known.get("flaw") or str(record), known.get("problem_id"))
        return Problem(
            row,
            record["problem_id"],
            record["problem"],
            record["reference_answer"],
            tuple(record["options"]),
            record["grader"],
            _HISTORY.decode(record["history"]) if record["history"] else (),
            _SETTINGS.decode(record.get("settings") or "{}"),
        )

    def with_records(self) -> Iterator[tuple[Problem | BadRow, Record]]:
        """Read once, also before `check`: what is kept is not written anew."""
        for batch in read_batches(self._folder, TABLE, (*COLUMNS, "input")):
            for row in batch.to_pylist():
                yield self._item(row["input_row"], row), _whole(row)

    def _version(self) -> tuple[int, ...]:
        return ()

    def _sha256(self) -> str:
        return self._about.sha256


class _KeptRows:
    """A `Source` of the rows of the table `problems`."""

    remark = ""
    names = dict.fromkeys(("problem", "answer", "problem_id", "options", "grader"))

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def records(self, wanted: tuple[str, ...] | None) -> Iterator[tuple[int, Record]]:
        """Whatever is `wanted`."""
        for batch in read_batches(self._folder, TABLE, COLUMNS):
            for row in batch.to_pylist():
                yield row["input_row"], row


def _whole(row: dict[str, Any]) -> Record:
    return Flaw("its columns were not kept") if row["input"] is None else _RECORD.decode(row["input"])


def problem_row(item: Problem | BadRow, record: Record) -> ProblemRow:
    """The row of the table `problems` for an item, of which `record` is the whole row of the input."""
    kept = None if isinstance(record, Flaw) else _encoded(record)
    if isinstance(item, BadRow):
        return ProblemRow(
            input_row=item.row,
            problem_id=item.problem_id,
            problem=None,
            reference_answer=None,
            options=(),
            grader=None,
            history=None,
            flaw=item.what,
            input=kept,
        )
    return ProblemRow(
        input_row=item.row,
        problem_id=item.problem_id,
        problem=item.problem,
        reference_answer=item.answer,
        options=item.options,
        grader=item.grader,
        history=msgspec.json.encode(item.history).decode() if item.history else None,
        flaw=None,
        input=kept,
        settings=msgspec.json.encode(item.settings).decode() if item.settings != ChainSettings() else None,
    )


def _encoded(record: Any) -> str | None:
    """A row as JSON; None where it holds what no JSON can."""
    try:
        return msgspec.json.encode(record, enc_hook=str).decode()
    except (TypeError, ValueError, RecursionError, OverflowError):
        return None
