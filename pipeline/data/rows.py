"""The rows of Parquet, JSON lines and CSV files: a path enters, records leave, one at a time and in file order.

A file is never in memory as a whole and never written. A fault of the file raises `InputError`, or one of `DAMAGE` while
its rows are read; a fault of one row leaves as a `Flaw` in its place. Text files may be gzipped; a UTF-8 byte order mark
is skipped. What the columns mean is decided elsewhere.
"""

import csv
import gzip
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import msgspec

from pipeline.errors import InputError, reason

MAX_ROW_BYTES = 16 << 20
"""Most bytes of a row; a longer one is a `Flaw`."""
MAX_COLUMNS = 10_000
"""Most columns of a file; one with more is refused."""
BOM = b"\xef\xbb\xbf"
PARQUET_LIMITS = {"thrift_string_size_limit": 32 << 20, "thrift_container_size_limit": 100_000}
"""Options of `pyarrow.parquet.ParquetFile`: a footer that asks for longer texts or lists (of columns, row groups) is refused unread."""
DAMAGE = (OSError, EOFError, zlib.error)
"""The errors that a damaged file raises while it is read."""


class Flaw(Exception):
    """What is wrong with one row; the text is a clause."""


Record = Mapping[str, Any] | Flaw
"""One row: values by column, or what is wrong with it."""


class Source(Protocol):
    """An open file of rows, in one format."""

    @property
    def names(self) -> Mapping[str, None]:
        """The names of the columns, in order; of JSON lines those met so far."""

    def records(self, wanted: tuple[str, ...] | None) -> Iterator[tuple[int, Record]]:
        """Every row with its number, from 1: those of the `wanted` columns that it has, None: all of them, or a `Flaw`."""


def open_source(path: Path) -> Source:
    """The file at `path`, in the format that its suffix names; raises `InputError` where it cannot be read as that."""
    form = _form(path)
    try:
        return form(path)
    except DAMAGE as error:
        raise InputError(str(path), reason(error)) from error


class JsonLines:
    """A file of one JSON object a line; blank lines are skipped, and are no rows."""

    BLANK = re.compile(rb"\s*")
    MOST_NAMES = 1000
    """Most names of columns remembered for error messages."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.names: dict[str, None] = {}
        self._decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

    def records(self, wanted: tuple[str, ...] | None) -> Iterator[tuple[int, Record]]:
        """See `Source.records`."""
        row = 0
        with _text_lines(self._path) as lines:
            for line in lines.each():
                if not isinstance(line, Flaw) and line.isspace():
                    lines.skip(self.BLANK)
                    continue
                row += 1
                record = line if isinstance(line, Flaw) else self._record(line, wanted)
                if isinstance(record, Flaw) and lines.number != row:
                    record = Flaw(f"line {lines.number}: {record}")
                yield row, record

    def _record(self, line: bytes, wanted: tuple[str, ...] | None) -> Record:
        try:
            raw = self._decode(line.decode())
            if len(self.names) < self.MOST_NAMES:
                self.names.update(dict.fromkeys(raw))
            return {name: _value(name, raw[name]) for name in (raw if wanted is None else wanted) if name in raw}
        except UnicodeDecodeError:
            return Flaw("not UTF-8")
        except RecursionError:
            return Flaw("nested too deeply")
        except Flaw as flaw:
            return flaw
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
        raise InputError(str(self._path), "one JSON array over many lines; write one object a line, or name the file .json")


def _value(name: str, raw: msgspec.Raw) -> Any:
    """The value of a field; raises `Flaw` for JSON whose numbers no computer holds, which is all that it can be refused for."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.ValidationError:
        raise Flaw(f"`{name}` holds a number that is out of range") from None


class JsonArray(JsonLines):
    """A file that is one JSON array of objects, which is read as a whole; larger files should be JSON lines."""

    MAX_BYTES = 1 << 30

    def records(self, wanted: tuple[str, ...] | None) -> Iterator[tuple[int, Record]]:
        """See `Source.records`."""
        with _text_lines(self._path) as lines:
            content = lines.rest(self.MAX_BYTES)
        if content is None:
            raise InputError(str(self._path), f"a JSON array of more than {self.MAX_BYTES >> 30} GiB; write one object a line (.jsonl)")
        try:
            rows = msgspec.json.decode(content, type=list[msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(str(self._path), f"not a JSON array: {reason(error)}") from error
        for row, line in enumerate(rows, 1):
            yield row, self._record(bytes(line), wanted)

    def _no_object(self, line: bytes) -> Flaw:
        return Flaw("not a JSON object")


def json_source(path: Path) -> Source:
    """A file called `.json`: one JSON array, or one object a line."""
    with _text_lines(path) as lines:
        lines.skip(JsonLines.BLANK)
        first = next(lines.each(), b"")
    is_array = not isinstance(first, Flaw) and first.lstrip().startswith(b"[")
    return (JsonArray if is_array else JsonLines)(path)


class Csv:
    """A file of values under a header, separated by commas, semicolons, tabs or bars; quoted fields may hold them, and line breaks."""

    SEPARATORS = ",;\t|"
    BLANK = re.compile(rb"[\r\n]*")

    def __init__(self, path: Path) -> None:
        self._path = path
        # A limit of the process, only ever raised: the default refuses fields over 128 KiB.
        csv.field_size_limit(max(csv.field_size_limit(), MAX_ROW_BYTES))
        with _text_lines(path) as lines:
            self._separator = self._found_separator(next(lines.each(), b""))
        with _text_lines(path) as lines:
            header = next(self._rows(lines), [])
        if isinstance(header, Flaw):
            raise InputError(str(path), f"the header is {header}")
        if not header:
            raise InputError(str(path), "holds no rows")
        self.names = _distinct(path, header)

    def records(self, wanted: tuple[str, ...] | None) -> Iterator[tuple[int, Record]]:
        """See `Source.records`."""
        places = {name: place for place, name in enumerate(self.names) if wanted is None or name in wanted}
        with _text_lines(self._path) as lines:
            for row, fields in enumerate(islice(self._rows(lines), 1, None), 1):
                if isinstance(fields, Flaw):
                    yield row, fields
                elif len(fields) != len(self.names):
                    yield row, Flaw(f"{len(fields)} fields, the header has {len(self.names)}")
                else:
                    yield row, {name: fields[place] for name, place in places.items()}

    def _found_separator(self, header: bytes | Flaw) -> str:
        """The separator that is most frequent in the first line outside quotes, of equals the first of `SEPARATORS`."""
        if isinstance(header, Flaw):
            return self.SEPARATORS[0]
        plain = re.sub(r'"[^"]*"', "", _escaped(header))
        return max(self.SEPARATORS, key=plain.count)

    def _rows(self, lines: "LineReader") -> Iterator[list[str] | Flaw]:
        reader = csv.reader(map(_escaped, lines), delimiter=self._separator, strict=True)
        while True:
            lines.new_row()
            try:
                fields = next(reader)
                "".join(fields).encode()
                if fields:
                    yield fields
                else:
                    lines.skip(self.BLANK)
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
    """A Parquet file; only the wanted columns are read, a few hundred rows at a time, fewer where they are large."""

    BATCH_ROWS = 256
    BATCH_BYTES = 16 << 20
    MAX_EXPANDED_BYTES = 256 << 20
    """Most bytes of rows read together, if each of them were as large as it can be."""
    MAX_DICTIONARY_BYTES = 2 << 20
    """Largest dictionary of a column that is taken for harmless; writers stop using a dictionary at 1 MiB."""
    MAX_RATIO = 8
    """Compression ratio beyond which a few bytes may stand for large texts."""
    LARGE_BYTES = 64 << 20
    """A larger file is read through a buffer, which Arrow makes as large as a damaged file says that a page is, up to 2 GiB."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa  # heavy: imported only where Parquet is read
        import pyarrow.parquet as pq

        self._pa = pa
        try:
            # Opened by the bytes of its path, which need not be UTF-8.
            buffer = 1 << 20 if path.stat().st_size > self.LARGE_BYTES else 0
            self._file = pq.ParquetFile(pa.OSFile(os.fsencode(path)), pre_buffer=False, buffer_size=buffer, **PARQUET_LIMITS)
            names = self._file.schema_arrow.names
        except (pa.ArrowException, OSError, ValueError) as error:  # the last for names that are not UTF-8
            if "Exceeded size limit" in str(error):
                most = f"{PARQUET_LIMITS['thrift_container_size_limit']:,}"
                raise InputError(str(path), f"has more than {most} columns or row groups, or is damaged") from error
            raise InputError(str(path), f"not a complete Parquet file: {reason(error)}") from error
        self.names = _distinct(path, names)

    def records(self, wanted: tuple[str, ...] | None) -> Iterator[tuple[int, Record]]:
        """See `Source.records`."""
        columns = [name for name in (self.names if wanted is None else wanted) if name in self.names]
        row = 0
        try:
            for group in range(self._file.num_row_groups):
                for batch in self._file.iter_batches(self._at_once(group, columns), [group], columns):
                    for record in self._records(batch):
                        row += 1
                        yield row, record
        except (self._pa.ArrowException, ValueError) as error:
            raise OSError(reason(error)) from error

    def _at_once(self, group: int, columns: Sequence[str]) -> int:
        """How many rows of a row group to read together: `BATCH_BYTES` of them, fewer where repeated texts may take far more memory."""
        for _ in self._file.iter_batches(1, [group], columns):
            break  # a damaged description of a column is an error here; asked for below, it would end the process (std::terminate)
        about, paths = self._file.metadata.row_group(group), self._file.schema
        read = tuple(f"{name}." for name in columns)
        chunks = [about.column(place) for place in range(about.num_columns) if f"{paths.column(place).path}.".startswith(read)]
        size: int = sum(chunk.total_uncompressed_size for chunk in chunks) // max(1, about.num_rows)
        largest: int = max((chunk.total_uncompressed_size for chunk in chunks if self._may_explode(chunk)), default=0)
        return max(1, min(self.BATCH_ROWS, self.BATCH_BYTES // max(1, size), self.MAX_EXPANDED_BYTES // max(1, largest)))

    def _may_explode(self, chunk: Any) -> bool:
        """Whether rows may be far larger in memory than in the file: a dictionary holds a text once, however many rows repeat it."""
        if not chunk.has_dictionary_page or chunk.total_uncompressed_size <= self.MAX_DICTIONARY_BYTES:
            return False
        dictionary = chunk.data_page_offset - (chunk.dictionary_page_offset or 0)
        return bool(dictionary > self.MAX_DICTIONARY_BYTES or chunk.total_uncompressed_size > self.MAX_RATIO * chunk.total_compressed_size)

    def _records(self, batch: Any) -> Iterator[Record]:
        if batch.nbytes <= MAX_ROW_BYTES:
            with suppress(ValueError, OverflowError):  # the first for what is not UTF-8 too
                yield from batch.to_pylist()
                return
        yield from (self._record(batch.slice(place, 1)) for place in range(batch.num_rows))

    def _record(self, row: Any) -> Record:
        if row.nbytes > MAX_ROW_BYTES:
            return Flaw(f"longer than {MAX_ROW_BYTES >> 20} MiB")
        try:
            record: Record = row.to_pylist()[0]
        except UnicodeDecodeError:
            return Flaw("not UTF-8")
        except (ValueError, OverflowError) as error:
            return Flaw(f"a value in it cannot be read ({reason(error)})")
        return record


FORMS: dict[str, Callable[[Path], Source]] = {
    ".parquet": Parquet,
    ".jsonl": JsonLines,
    ".ndjson": JsonLines,
    ".json": json_source,
    ".csv": Csv,
    ".tsv": Csv,
}


def _form(path: Path) -> Callable[[Path], Source]:
    if path.is_dir():
        raise InputError(str(path), "is a directory; expected a file")
    if not path.is_file():
        raise InputError(str(path), "is not a regular file" if path.exists() else "no such file")
    inner = path.name.lower().removesuffix(".gz")
    suffix = Path(inner).suffix
    if suffix not in FORMS or (suffix == ".parquet" and inner != path.name.lower()):
        expected = "expected .parquet, .jsonl, .ndjson, .json, .csv or .tsv, the text formats also with .gz"
        raise InputError(str(path), f"unknown kind of file `{''.join(path.suffixes[-2:])}`; {expected}")
    return FORMS[suffix]


def _distinct(path: Path, names: Sequence[str]) -> dict[str, None]:
    """`names` as the ordered keys of a dictionary; raises `InputError` where there are too many or two are the same."""
    if len(names) > MAX_COLUMNS:
        raise InputError(str(path), f"has {len(names):,} columns, more than {MAX_COLUMNS:,}")
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise InputError(str(path), f"has the column `{twice}` twice")
    return dict.fromkeys(names)


class LineReader:
    """Reads the lines of a text file; the lines of one row together have at most `MAX_ROW_BYTES`, or `Flaw` is raised."""

    def __init__(self, stream: BufferedReader | gzip.GzipFile) -> None:
        self._stream, self._room = stream, MAX_ROW_BYTES
        self.number = 0
        """The number of the last line that was read, from 1."""
        if stream.peek(3)[:3] == BOM:
            stream.read(3)

    def new_row(self) -> None:
        """The next line starts a new row."""
        self._room = MAX_ROW_BYTES

    def __iter__(self) -> "LineReader":
        return self

    def __next__(self) -> bytes:
        line = self._stream.readline(self._room + 1)
        self._room -= len(line)
        if not line:
            raise StopIteration
        self.number += 1
        if self._room < 0:
            while line and not line.endswith(b"\n"):
                line = self._stream.readline(1 << 16)
            raise Flaw(f"longer than {MAX_ROW_BYTES >> 20} MiB")
        return line

    def skip(self, blank: re.Pattern[bytes]) -> None:
        """Skip the lines that are next and `blank`, many at once: a few bytes of a compressed file may stand for millions of them."""
        while found := blank.match(ahead := self._stream.peek(1)):
            whole = ahead.rfind(b"\n", 0, found.end()) + 1
            if not whole:
                return
            self._stream.read(whole)
            self.number += ahead.count(b"\n", 0, whole)

    def rest(self, most: int) -> bytes | None:
        """All that follows, at once; None where it is more than `most` bytes."""
        content = self._stream.read(most + 1)
        return None if len(content) > most else content

    def each(self) -> Iterator[bytes | Flaw]:
        """All lines, each a row of its own; in place of one that is too long, a `Flaw`."""
        while True:
            self.new_row()
            try:
                yield next(self)
            except Flaw as flaw:
                yield flaw
            except StopIteration:
                return


@contextmanager
def _text_lines(path: Path) -> Iterator[LineReader]:
    zipped = path.suffix.lower() == ".gz"
    with gzip.GzipFile(path) if zipped else path.open("rb") as stream:
        head = stream.peek(64)[:64]
        if head[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in head:
            raise InputError(str(path), "not UTF-8 text, but UTF-16 or something binary")
        yield LineReader(stream)


def _escaped(line: bytes) -> str:
    """`line` as text; bytes that are not UTF-8 become lone surrogates, which fail when the text is encoded."""
    return line.decode(errors="surrogateescape")
