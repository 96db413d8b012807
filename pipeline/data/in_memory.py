"""Problems that a caller holds in memory: mappings or `Problem`s enter, the same `Problem`s leave as from a JSON lines file.

They are encoded once and read back line by line, so that a value means what it would mean in a file.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from pipeline.data.part import Part
from pipeline.data.problems import Problem, Problems
from pipeline.data.rows import JsonLines, Record, Source
from pipeline.errors import InputError, RunFolderError, boundary
from pipeline.files import new_file


class ProblemList(Problems):
    """Problems given in memory; like `Problems` of a file they can be iterated any number of times."""

    def __init__(self, problems: Iterable[Mapping[str, Any] | Problem], columns: Mapping[str, str], part: Part) -> None:
        super().__init__(Path("problems"), columns, part)
        self._lines = [_line(row, problem) for row, problem in enumerate(problems, 1)]

    def save(self, path: Path) -> None:
        """Write the problems as a JSON lines file, with which the run can be resumed; raises `RunFolderError`."""
        with boundary(RunFolderError, f"{path}: cannot be written", foreign=OSError), new_file(path) as draft:
            draft.write_bytes(self._content)

    @property
    def _content(self) -> bytes:
        return b"".join(line + b"\n" for line in self._lines)

    def _open(self) -> Source:
        return EncodedLines(self._lines)

    def _version(self) -> tuple[int, ...]:
        return ()

    def _sha256(self) -> str:
        return hashlib.sha256(self._content).hexdigest()


class EncodedLines(JsonLines):
    """A `Source` of JSON lines that are encoded in memory."""

    def __init__(self, lines: list[bytes]) -> None:
        super().__init__(Path("problems"))
        self._lines = lines

    def records(self, wanted: tuple[str, ...] | None) -> Iterator[tuple[int, Record]]:
        """See `Source.records`."""
        for row, line in enumerate(self._lines, 1):
            yield row, self._record(line, wanted)


def _line(row: int, problem: Mapping[str, Any] | Problem) -> bytes:
    if not isinstance(problem, Mapping | Struct):
        raise InputError(f"problems, item {row}", f"expected a mapping with the key `problem`, got `{type(problem).__name__}`")
    fields = dict(problem) if isinstance(problem, Mapping) else msgspec.to_builtins(problem)
    try:
        return msgspec.json.encode(fields, enc_hook=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"problems, item {row}", f"cannot be written as JSON: {error}") from error


def _plain(value: Any) -> Any:
    """The builtin value of a number or array of numpy, pandas or Arrow, and the text of a path; raises `TypeError` for other types."""
    for method in ("tolist", "as_py"):
        if callable(found := getattr(value, method, None)):
            return found()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a value is of type `{type(value).__name__}`")
