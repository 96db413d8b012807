"""The one reading of an input: its rows enter, each row that a run asks for leaves as a problem, in their order.

A fault of the input as a whole raises `InputError`; a fault of one row leaves as a `BadRow` in its place, so that the others continue.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

import msgspec

from pipeline.data.columns import Columns
from pipeline.data.files import Flaw, Record, files_of, rows_of
from pipeline.data.problems import Problem
from pipeline.errors import BadRow, InputError
from pipeline.options import ALL, MAX_ROWS, RowSet

HEAD_ROWS = 2000
"""Rows looked at before the first problem leaves, to see which columns there are and how numbers count options."""


class InputReading:
    """One reading of an input: gives each row that is asked for as a problem, with the whole row as JSON.

    Bad rows and others leave in their order. After the last one `sha256` identifies the input, and `remarks` are sentences for the user.
    """

    def __init__(
        self,
        name: str,
        rows: Iterable[Record],
        columns: Mapping[str, str] | None = None,
        part: RowSet = ALL,
        *,
        grader: str | None = None,
    ) -> None:
        """`name`: what messages call the input; `columns`: its columns by our names, where the user maps any; `grader`: how problems are
        graded that do not say it."""
        self.name, self._rows, self._mapped, self._part, self._grader = name, rows, columns or {}, part, grader
        self.sha256, self.remarks = "", list[str]()

    def __iter__(self) -> Iterator[tuple[Problem | BadRow, str | None]]:
        head = list(islice(rows := iter(self._rows), HEAD_ROWS))
        columns = Columns(self._mapped, [each for each in head if not isinstance(each, Flaw)], self.name, self._grader)
        self.remarks = [columns.remark] if columns.remark else []
        digest, total, bad, shard = hashlib.sha256(), 0, list[BadRow](), self._part.shard
        rows_by_id: dict[str, int] = {}
        for row, (record, text) in self._asked_for(_encoded(chain(head, rows), digest)):
            item = columns.problem(row, record)
            if shard is not None and not shard.holds(item.problem_id):
                continue
            total += 1
            if isinstance(item, BadRow):
                bad.append(item)
            elif columns.named and (first := rows_by_id.setdefault(item.problem_id, row)) != row:
                what = f"its `{columns.named}` is that of row {first} already; ids must differ, or map others: --column problem_id=NAME"
                raise InputError(f"{self.name}, row {row}", what)
            yield item, text
        self.sha256 = digest.hexdigest()
        self._check(total, bad)

    def _asked_for(self, rows: Iterator[tuple[Record, str | None]]) -> Iterable[tuple[int, tuple[Record, str | None]]]:
        sample = self._part.sample
        if sample is None:
            return enumerate(rows, 1)
        drawn = sample.drawn(enumerate(rows, 1))
        if len(drawn) < sample.rows:
            raise InputError(self.name, f"a sample of {sample.rows:,} rows was requested, but it has {len(drawn):,}")
        return drawn

    def _check(self, total: int, bad: Sequence[BadRow]) -> None:
        """Raise `InputError` for an input without problems; add a remark about the bad rows that are to be solved."""
        whole = self._part.shard is None
        if not total and whole:
            raise InputError(self.name, "holds no rows")
        if not (bad := [each for each in bad if each.row <= (self._part.limit or MAX_ROWS)]):
            return
        first = f"row {bad[0].row}: {bad[0].what}"
        if len(bad) == total and whole:
            raise InputError(self.name, f"no row holds a problem; {first}")
        self.remarks.append(f"{self.name}: {len(bad):,} of {total:,} rows hold no problem and will fail; {first}")


def _encoded(rows: Iterable[Record], digest: "hashlib._Hash") -> Iterator[tuple[Record, str | None]]:
    """Each row with its JSON, None where it has none, all of which `digest` takes in."""
    encode = msgspec.json.Encoder(enc_hook=str).encode
    for record in rows:
        text, found = b"null", record
        try:
            if not isinstance(record, Flaw):
                text = encode(record)
        except (TypeError, ValueError, RecursionError, OverflowError) as error:  # such as a byte that is no UTF-8
            found = Flaw(f"cannot be written as JSON: {error}")
        digest.update(text + b"\n")
        yield found, None if isinstance(found, Flaw) else text.decode()


def read_files(
    paths: Sequence[Path],
    columns: Mapping[str, str] | None = None,
    part: RowSet = ALL,
    *,
    names: Sequence[str] = (),
    grader: str | None = None,
) -> InputReading:
    """The reading of the files that these paths, folders and patterns name; `names`: what the user calls them, where that differs."""
    first = "stdin" if names and names[0] == "-" else (names or paths)[0]
    name = str(first) if len(paths) == 1 else f"{first} and {len(paths) - 1} more"
    return InputReading(name, (row for path in paths for file in files_of(path) for row in rows_of(file)), columns, part, grader=grader)


def read_problems(path: Path | str, columns: Mapping[str, str] | None = None) -> Iterator[Problem | BadRow]:
    """The problems in the rows of a file, folder or pattern."""
    return (item for item, _ in read_files([Path(path)], columns))
