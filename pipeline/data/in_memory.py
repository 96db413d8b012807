"""Problems that a caller holds in memory: texts, mappings, `Problem`s or a table enter, the same `Problem`s leave as from JSON lines.

They are encoded once and read back line by line, so that a value means what it would mean in a file.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pyarrow as pa
from msgspec import Struct

from pipeline.data.formats import records_of
from pipeline.data.part import ALL, RowSet
from pipeline.data.problems import Fingerprint, Problem, Problems
from pipeline.data.requests.chat import ChainSettings
from pipeline.data.rows import Flaw, Record, Source, as_text, plain
from pipeline.data.text_files import JsonLines
from pipeline.errors import InputError, RunFolderError, boundary
from pipeline.files import new_file


class Frame(Protocol):
    """A table with the Arrow C stream interface: of Arrow, pandas, polars and others."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The table as a capsule."""


def is_frame(problems: Any) -> bool:
    """Whether `problems` is a table: of Arrow, pandas, polars, or anything else with the Arrow C stream interface or `to_dict`."""
    return hasattr(problems, "__arrow_c_stream__") or (hasattr(problems, "to_dict") and hasattr(problems, "columns"))


def rows_of(frame: Any) -> Iterator[Record]:
    """The rows of a table."""
    try:
        batches = list(pa.RecordBatchReader.from_stream(frame)) if hasattr(frame, "__arrow_c_stream__") else None
    except (pa.ArrowException, UnicodeError, ValueError, TypeError):  # a column of mixed types, or a text that is no UTF-8
        if not hasattr(frame, "to_dict"):
            raise
        batches = None
    if batches is not None:
        yield from (record for batch in batches for record in records_of(batch))
        return
    columns = _columns(frame)
    yield from (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))


def _columns(frame: Any) -> dict[str, list[Any]]:
    """The columns of a table that Arrow cannot take whole: of pandas with the numbers in their own width."""
    if hasattr(frame, "items"):
        return {
            str(name): [None if null else value for value, null in zip(each.to_numpy(), each.isna(), strict=True)]
            for name, each in frame.items()
        }
    found = frame.to_dict().items()
    return {str(name): list(values.values() if isinstance(values, Mapping) else values) for name, values in found}


class ProblemList(Problems):
    """Problems given in memory; like `Problems` of a file they can be iterated any number of times."""

    def __init__(self, problems: Iterable[str | Mapping[str, Any] | Problem | Flaw], columns: Mapping[str, str], part: RowSet) -> None:
        super().__init__(Path("problems"), columns, part)
        wanted, text = frozenset(self._columns.wanted), self._columns.name("problem")
        rows = ({text: each} if isinstance(each, str) else each for each in problems)
        self._lines = [_line(row, problem, wanted) for row, problem in enumerate(rows, 1)]

    def save(self, path: Path) -> None:
        """Write the problems as a JSON lines file, with which the run can be resumed; raises `RunFolderError`."""
        with boundary(RunFolderError, f"{path}: cannot be written", foreign=OSError), new_file(path) as draft:
            draft.write_bytes(self._content)

    @property
    def _content(self) -> bytes:
        return b"".join((msgspec.json.encode({"flaw": str(line)}) if isinstance(line, Flaw) else line) + b"\n" for line in self._lines)

    def _open(self) -> Source:
        return EncodedLines(self._lines)

    def _version(self) -> tuple[int, ...]:
        return ()

    def _sha256(self) -> str:
        return hashlib.sha256(self._content).hexdigest()


class RequestedProblems(Problems):
    """The problems of a run that are requests, and come while it goes on: none at first."""

    def __init__(self) -> None:
        super().__init__(Path("requests"), {}, ALL)

    def check(self) -> Fingerprint:
        return Fingerprint(hashlib.sha256(b"").hexdigest(), 0, 0)

    def _open(self) -> Source:
        return EncodedLines([])

    def _version(self) -> tuple[int, ...]:
        return ()


class EncodedLines(JsonLines):
    """A `Source` of JSON lines that are encoded in memory, or of what is wrong with one."""

    def __init__(self, lines: list[bytes | Flaw]) -> None:
        super().__init__(Path("problems"))
        self._lines = lines

    def records(self, wanted: tuple[str, ...] | None) -> Iterator[tuple[int, Record]]:
        for row, line in enumerate(self._lines, 1):
            yield row, line if isinstance(line, Flaw) else self._record(line, wanted)


def _line(row: int, problem: Mapping[str, Any] | Problem | Flaw, wanted: frozenset[str]) -> bytes | Flaw:
    """A problem as a line of JSON, or why its row holds none; raises `InputError` for what is no mapping."""
    if isinstance(problem, Flaw):
        return problem
    if not isinstance(problem, Mapping | Struct):
        what = f"expected a problem's text or a mapping with the key `problem`, got `{type(problem).__name__}`"
        raise InputError(f"problems, item {row}", what)
    fields = dict(problem) if isinstance(problem, Mapping) else _fields(row, problem)
    try:
        found = {name: _as_in_a_file(name, value) if name in wanted else _beside(value) for name, value in fields.items()}
        return msgspec.json.encode(found, enc_hook=plain)
    except Flaw as flaw:
        return flaw
    except UnicodeEncodeError:
        return Flaw("contains a lone surrogate, which is not a character")
    except (TypeError, ValueError, RecursionError) as error:
        return Flaw(f"cannot be written as JSON: {error}")


def _fields(row: int, problem: Problem) -> dict[str, Any]:
    """The fields of a `Problem` as columns have them; raises `InputError` where no column has one of them."""
    if problem.settings != ChainSettings():
        what = "has settings of its own, which only a request can say; give it as a line of an OpenAI batch"
        raise InputError(f"problems, item {row}", f"{what}: a mapping with custom_id, method, url and body")
    fields: dict[str, Any] = msgspec.to_builtins(problem)
    if problem.history:
        fields["problem"] = [*fields["history"], {"role": "user", "content": problem.problem}]
    return fields


def _as_in_a_file(name: str, value: Any) -> Any:
    """A value of which JSON would make another one, as a Parquet file would give it; others as they are. Raises `Flaw`."""
    value = plain(value) if hasattr(value, "dtype") else value
    if isinstance(value, float) and abs(value) < 2**53:
        return value
    return as_text(name, value) if isinstance(value, bytes | Decimal | float | date | time) else value


def _beside(value: Any) -> msgspec.Raw:
    """A value that no problem needs, and that spoils none: what has no form in JSON as text."""
    try:
        return msgspec.Raw(msgspec.json.encode(value, enc_hook=_plain_or_text))
    except (TypeError, ValueError):
        return msgspec.Raw(json.dumps(value, default=str).encode())


def _plain_or_text(value: Any) -> Any:
    try:
        return plain(value)
    except TypeError:
        return str(value)
