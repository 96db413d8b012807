"""Input rows, streamed: a Parquet, JSON lines or CSV file enters, `Problem`s leave, one at a time and in file order.

The file is never in memory as a whole and never written. A fault of the file raises `InputError`; a fault of one row
leaves as a `BadRow` in its place, so that the others go on. Text files may be gzipped; a UTF-8 byte order mark is skipped.
"""

import csv
import gzip
import hashlib
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from decimal import Decimal
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec import Struct

from pipeline.errors import BadRow, InputError, did_you_mean

COLUMNS = ("problem", "answer", "problem_id")
"""Our names of the columns; only `problem` must be there, unless one is mapped by `--column`."""
MAX_ROW_BYTES = 16 << 20
"""A longer row of a text file is a bad row."""
BOM = b"\xef\xbb\xbf"
FOREIGN = (OSError, EOFError, zlib.error)
"""What a damaged file raises while it is read."""


class Problem(Struct, frozen=True):
    """One input row."""

    row: int
    """From 1: the line of a JSON lines file; the record of a Parquet or CSV file (the header is not counted)."""
    problem_id: str
    """The row number where the row has none."""
    problem: str
    answer: str | None
    """The reference, as text; of a worked solution that ends in `#### ANSWER` (GSM8K) only what follows the mark."""


class Fingerprint(Struct, frozen=True):
    """What tells whether a run is resumed over the same input."""

    sha256: str
    """Of the file's bytes, hexadecimal."""
    rows: int
    """Rows within the limit, bad ones included."""
    bad_rows: int


class Problems:
    """The rows of one file. It can be iterated any number of times; each iteration reads the file anew."""

    def __init__(self, path: Path, columns: Mapping[str, str], limit: int | None) -> None:
        for ours in columns.keys() - set(COLUMNS):
            raise InputError(f"--column {ours}={columns[ours]}", f"no column of ours is named `{ours}`; {did_you_mean(ours, COLUMNS)}")
        self.path, self.limit, self._mapped = path, limit, columns
        self._theirs = {ours: columns.get(ours, ours) for ours in COLUMNS}

    def check(self) -> Fingerprint:
        """Read all rows once; raise `InputError` for any fault of the file as a whole: form, columns, repeated ids."""
        source = self._open()
        rows = bad = 0
        first_bad: BadRow | None = None
        hashes = array("q")
        for rows, item in enumerate(self._items(source), 1):  # noqa: B007
            if isinstance(item, BadRow):
                bad, first_bad = bad + 1, first_bad or item
            else:
                hashes.append(hash(item.problem_id))
        self._check_columns(source.names)
        if first_bad and bad == rows:
            raise InputError(str(self.path), f"no row holds a problem; row {first_bad.row}: {first_bad.what}")
        if not rows:
            raise InputError(str(self.path), "holds no rows")
        twice = first_duplicate(self._ids, np.frombuffer(hashes, np.int64))
        if twice:
            problem_id, row, again = twice
            raise InputError(f"{self.path}, row {again}", f"problem_id {problem_id!r} is taken by row {row} already")
        return Fingerprint(self._sha256(), rows, bad)

    def __iter__(self) -> Iterator[Problem | BadRow]:
        return self._items(self._open())

    def _open(self) -> "Source":
        form = _form(self.path)
        source = _guarded(self.path, lambda: form(self.path))
        if source.names:
            self._check_columns(source.names)
        return source

    def _items(self, source: "Source") -> Iterator[Problem | BadRow]:
        row = 0
        try:
            for row, record in islice(source.records(tuple(self._theirs.values())), self.limit):
                yield self._item(row, record)
        except FOREIGN as error:
            raise InputError(f"{self.path}, after row {row}", _sentence(error)) from error

    def _item(self, row: int, record: "Record") -> Problem | BadRow:
        try:
            if isinstance(record, Flaw):
                raise record
            return Problem(row, self._id(row, record), self._problem(record), self._answer(record))
        except Flaw as flaw:
            return BadRow(str(self.path), row, str(flaw))

    def _id(self, row: int, record: Mapping[str, Any]) -> str:
        theirs = self._theirs["problem_id"]
        if theirs not in record and "problem_id" not in self._mapped:
            return str(row)
        text = _scalar(theirs, record.get(theirs))
        if text is None or not text.strip():
            raise Flaw(f"`{theirs}` is empty")
        return text

    def _problem(self, record: Mapping[str, Any]) -> str:
        theirs = self._theirs["problem"]
        text = record.get(theirs)
        if text is not None and not isinstance(text, str):
            raise Flaw(f"`{theirs}` is {_kind(text)}, expected text")
        if text is None or not text.strip():
            raise Flaw(f"`{theirs}` is empty" if theirs in record else f"has no `{theirs}`")
        return text

    def _answer(self, record: Mapping[str, Any]) -> str | None:
        theirs = self._theirs["answer"]
        value = record.get(theirs)
        if isinstance(value, list):
            value = ", ".join(_scalar(theirs, each) or "" for each in value)
        text = (_scalar(theirs, value) or "").rpartition("####")[2].strip()
        return text or None

    def _check_columns(self, names: Iterable[str]) -> None:
        known = list(names)
        for ours, theirs in self._theirs.items():
            if theirs in known or not known or (ours not in self._mapped and ours != "problem"):
                continue
            there = ", ".join(f"`{name}`" for name in known[:20]) + (", ..." if len(known) > 20 else "")
            remedy = did_you_mean(theirs, known) if ours in self._mapped else f"pass --column {ours}=NAME"
            raise InputError(str(self.path), f"no column `{theirs}`; it has {there}" + (f"; {remedy}" if remedy[:5] != "known" else ""))

    def _ids(self) -> Iterator[tuple[int, str]]:
        return ((item.row, item.problem_id) for item in self if isinstance(item, Problem))

    def _sha256(self) -> str:
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def open_problems(path: Path | str, columns: Mapping[str, str] | None = None, limit: int | None = None) -> Problems:
    """The first `limit` rows of the file at `path`; `columns` maps our names of columns to the file's.

    Raises `InputError` for an unknown name among `columns`; the file is not touched before `check` or the first row.
    """
    return Problems(Path(path), columns or {}, limit)


def first_duplicate(
    ids: Callable[[], Iterable[tuple[int, str]]], hashes: "np.ndarray[Any, np.dtype[np.int64]]"
) -> tuple[str, int, int] | None:
    """The first id that occurs twice and its two rows, given the 64-bit hashes of all ids.

    Only when hashes repeat are the `ids` themselves read again, and only those whose hash repeats are kept.
    """
    ordered = np.sort(hashes)
    repeated = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    rows: dict[str, int] = {}
    for row, problem_id in ids() if repeated else ():
        if hash(problem_id) in repeated and rows.setdefault(problem_id, row) != row:
            return problem_id, rows[problem_id], row
    return None


class Flaw(Exception):
    """What is wrong with one row, as a clause."""


Record = Mapping[str, Any] | Flaw


class Source(Protocol):
    """One file in one format."""

    @property
    def names(self) -> Mapping[str, None]:
        """The columns, in order; of JSON lines those met so far."""

    def records(self, wanted: tuple[str, ...]) -> Iterator[tuple[int, Record]]:
        """Row numbers, and of each row the `wanted` columns that are there."""


class JsonLines:
    """One JSON object a line; blank lines are passed over."""

    MOST_NAMES = 1000

    def __init__(self, path: Path) -> None:
        self._path = path
        self.names: dict[str, None] = {}
        self._decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

    def records(self, wanted: tuple[str, ...]) -> Iterator[tuple[int, Record]]:
        with _text_lines(self._path) as lines:
            for row, line in enumerate(lines.each(), 1):
                if isinstance(line, Flaw):
                    yield row, line
                elif not line.isspace():
                    yield row, self._record(line, wanted)

    def _record(self, line: bytes, wanted: tuple[str, ...]) -> Record:
        try:
            raw = self._decode(line.decode())
            if len(self.names) < self.MOST_NAMES:
                self.names.update(dict.fromkeys(raw))
            return {name: msgspec.json.decode(raw[name]) for name in wanted if name in raw}
        except UnicodeDecodeError:
            return Flaw("not UTF-8")
        except RecursionError:
            return Flaw("nested too deeply")
        except msgspec.ValidationError:
            return self._no_object(line)
        except msgspec.DecodeError as error:
            return Flaw(f"not JSON ({error})")

    def _no_object(self, line: bytes) -> Flaw:
        if not line.lstrip().startswith(b"["):
            return Flaw("not a JSON object")
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            msgspec.json.decode(line)
            return Flaw("not a JSON object, but an array: write one object a line")
        if self.names:
            return Flaw("not JSON (an array that is not closed)")
        raise InputError(str(self._path), "one JSON array over many lines; write one object a line, as `jq -c '.[]'` does")


class Csv:
    """Comma-separated values under a header; quoted fields may hold commas and line breaks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # A limit of the process, only ever raised: the default refuses fields over 128 KiB.
        csv.field_size_limit(max(csv.field_size_limit(), MAX_ROW_BYTES))
        with _text_lines(path) as lines:
            header = next(self._rows(lines), [])
        if isinstance(header, Flaw):
            raise InputError(str(path), f"the header is {header}")
        if not header:
            raise InputError(str(path), "holds no rows")
        twice = next((name for name in header if header.count(name) > 1), None)
        if twice is not None:
            raise InputError(str(path), f"the header names the column `{twice}` twice")
        self.names: dict[str, None] = dict.fromkeys(header)

    def records(self, wanted: tuple[str, ...]) -> Iterator[tuple[int, Record]]:
        places = {name: place for place, name in enumerate(self.names) if name in wanted}
        with _text_lines(self._path) as lines:
            for row, fields in enumerate(islice(self._rows(lines), 1, None), 1):
                if isinstance(fields, Flaw):
                    yield row, fields
                elif len(fields) != len(self.names):
                    yield row, Flaw(f"{len(fields)} fields, the header has {len(self.names)}")
                else:
                    yield row, {name: fields[place] for name, place in places.items()}

    def _rows(self, lines: "Lines") -> Iterator[list[str] | Flaw]:
        reader = csv.reader(map(_escaped, lines), strict=True)
        while True:
            lines.new_row()
            try:
                fields = next(reader)
                "".join(fields).encode()
                if fields:
                    yield fields
            except StopIteration:
                return
            except UnicodeEncodeError:
                yield Flaw("not UTF-8")
            except csv.Error as error:
                unclosed = "unexpected end" in str(error)
                yield Flaw("a quote that is opened in it is never closed" if unclosed else f"not CSV ({error})")
            except Flaw as flaw:
                yield flaw


class Parquet:
    """A Parquet file; only the wanted columns are read, a few hundred rows at a time."""

    BATCH_ROWS = 256

    def __init__(self, path: Path) -> None:
        import pyarrow as pa  # heavy: only who reads Parquet pays for it
        import pyarrow.parquet as pq

        self._pa = pa
        try:
            self._file = pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
        except (pa.ArrowException, OSError) as error:
            raise InputError(str(path), f"not a whole Parquet file: {_sentence(error)}") from error
        self.names: dict[str, None] = dict.fromkeys(self._file.schema_arrow.names)

    def records(self, wanted: tuple[str, ...]) -> Iterator[tuple[int, Record]]:
        columns = [name for name in wanted if name in self.names]
        row = 0
        try:
            for batch in self._file.iter_batches(self.BATCH_ROWS, columns=columns):
                for record in self._records(batch):
                    row += 1
                    yield row, record
        except self._pa.ArrowException as error:
            raise OSError(_sentence(error)) from error

    def _records(self, batch: Any) -> Iterator[Record]:
        try:
            yield from batch.to_pylist()
        except UnicodeDecodeError:
            for place in range(batch.num_rows):
                try:
                    yield batch.slice(place, 1).to_pylist()[0]
                except UnicodeDecodeError:
                    yield Flaw("not UTF-8")


FORMS: dict[str, Callable[[Path], Source]] = {
    ".parquet": Parquet,
    ".jsonl": JsonLines,
    ".ndjson": JsonLines,
    ".json": JsonLines,
    ".csv": Csv,
}


def _form(path: Path) -> Callable[[Path], Source]:
    if path.is_dir():
        raise InputError(str(path), "is a folder; name a file in it")
    if not path.is_file():
        raise InputError(str(path), "is not a regular file" if path.exists() else "no such file")
    inner = path.name.lower().removesuffix(".gz")
    suffix = Path(inner).suffix
    if suffix not in FORMS or (suffix == ".parquet" and inner != path.name.lower()):
        expected = "expected .parquet, .jsonl, .ndjson, .json or .csv, the text formats also with .gz"
        raise InputError(str(path), f"unknown kind of file `{''.join(path.suffixes[-2:])}`; {expected}")
    return FORMS[suffix]


class Lines:
    """Lines of a text file; those of one row together are no longer than `MAX_ROW_BYTES`."""

    def __init__(self, stream: BufferedReader | gzip.GzipFile) -> None:
        self._stream, self._room = stream, MAX_ROW_BYTES
        if stream.peek(3)[:3] == BOM:
            stream.read(3)

    def new_row(self) -> None:
        """What is read next starts a row."""
        self._room = MAX_ROW_BYTES

    def __iter__(self) -> "Lines":
        return self

    def __next__(self) -> bytes:
        line = self._stream.readline(self._room + 1)
        self._room -= len(line)
        if not line:
            raise StopIteration
        if self._room < 0:
            while line and not line.endswith(b"\n"):
                line = self._stream.readline(1 << 16)
            raise Flaw(f"longer than {MAX_ROW_BYTES >> 20} MiB")
        return line

    def each(self) -> Iterator[bytes | Flaw]:
        """Lines that are a row each; in place of one that is too long, its flaw."""
        while True:
            self.new_row()
            try:
                yield next(self)
            except Flaw as flaw:
                yield flaw
            except StopIteration:
                return


@contextmanager
def _text_lines(path: Path) -> Iterator[Lines]:
    zipped = path.suffix.lower() == ".gz"
    with gzip.GzipFile(path) if zipped else path.open("rb") as stream:
        head = stream.peek(64)[:64]
        if head[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in head:
            raise InputError(str(path), "not UTF-8 text, but UTF-16 or something binary")
        yield Lines(stream)


def _escaped(line: bytes) -> str:
    """Text of `line`; bytes that are not UTF-8 become lone surrogates, which no encoder lets pass."""
    return line.decode(errors="surrogateescape")


def _guarded(path: Path, act: Callable[[], Source]) -> Source:
    try:
        return act()
    except FOREIGN as error:
        raise InputError(str(path), _sentence(error)) from error


def _sentence(error: BaseException) -> str:
    text = (getattr(error, "strerror", None) or str(error)).strip().splitlines()
    return text[0] if text else type(error).__name__


def _scalar(name: str, value: Any) -> str | None:
    """`value` as text: 27.0 is `27`; None where it is null or not a number."""
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float() | Decimal():
            number = float(value)
            if number != number:
                return None
            return str(int(number)) if abs(number) < 2**53 and value == int(number) else str(value)
    raise Flaw(f"`{name}` is {_kind(value)}, expected text or a number")


def _kind(value: Any) -> str:
    kinds: dict[type, str] = {bool: "true or false", int: "a number", float: "a number", list: "an array", dict: "an object"}
    return kinds.get(type(value), f"a {type(value).__name__}")
