"""The formats of input files by their names: a path enters, an open `Source` of rows leaves, or the reason why there is none.

Parquet and Arrow files are read a few hundred rows at a time; their heavy imports wait for such a file.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.data import rows
from pipeline.data.rows import DAMAGE, Flaw, Record, Source, distinct, shortest
from pipeline.data.text_files import Csv, JsonLines, json_source
from pipeline.errors import InputError, reason

PARQUET_LIMITS = {"thrift_string_size_limit": 32 << 20, "thrift_container_size_limit": 100_000}
"""Options of `pyarrow.parquet.ParquetFile`: a footer that asks for longer texts or lists (of columns, row groups) is refused unread."""
BATCH_ROWS = 256
"""Most rows that are read together."""


class ParquetFile:
    """A Parquet file; only the wanted columns are read, a few hundred rows at a time, fewer where they are large."""

    remark = ""
    BATCH_BYTES = 16 << 20
    MAX_EXPANDED_BYTES = 256 << 20
    """Most bytes of rows read together, if each of them were as large as it can be."""
    MAX_DICTIONARY_BYTES = 2 << 20
    """Largest dictionary of a column that is taken for harmless; writers stop using a dictionary at 1 MiB."""
    MAX_RATIO = 8
    """Compression ratio above which a few bytes may expand to large texts."""
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
        self.names = distinct(path, names)

    def records(self, wanted: tuple[str, ...] | None) -> Iterator[tuple[int, Record]]:
        columns = [name for name in (self.names if wanted is None else wanted) if name in self.names]
        row = 0
        try:
            for group in range(self._file.num_row_groups):
                for batch in self._file.iter_batches(self._at_once(group, columns), [group], columns):
                    for record in records_of(batch):
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
        return max(1, min(BATCH_ROWS, self.BATCH_BYTES // max(1, size), self.MAX_EXPANDED_BYTES // max(1, largest)))

    def _may_explode(self, chunk: Any) -> bool:
        """Whether rows may be far larger in memory than in the file: a dictionary holds a text once, however many rows repeat it."""
        if not chunk.has_dictionary_page or chunk.total_uncompressed_size <= self.MAX_DICTIONARY_BYTES:
            return False
        dictionary = chunk.data_page_offset - (chunk.dictionary_page_offset or 0)
        return bool(dictionary > self.MAX_DICTIONARY_BYTES or chunk.total_uncompressed_size > self.MAX_RATIO * chunk.total_compressed_size)


class ArrowFile:
    """An Arrow file or stream, which a Feather file (version 2) is too and the library `datasets` writes."""

    remark = ""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self._pa, self._path = pa, path
        try:
            with self._open() as reader:
                names = reader.schema.names
        except (pa.ArrowException, OSError, ValueError) as error:
            raise InputError(str(path), f"not a complete Arrow file: {reason(error)}") from error
        self.names = distinct(path, names)

    def records(self, wanted: tuple[str, ...] | None) -> Iterator[tuple[int, Record]]:
        row = 0
        try:
            with self._open() as reader:
                stream = hasattr(reader, "__iter__")
                for batch in reader if stream else map(reader.get_batch, range(reader.num_record_batches)):
                    batch.validate(full=True)  # what is damaged is an error here; read, it would end the process
                    columns = [name for name in (self.names if wanted is None else wanted) if name in self.names]
                    for record in records_of(batch.select(columns)):
                        row += 1
                        yield row, record
        except (self._pa.ArrowException, ValueError) as error:
            raise OSError(reason(error)) from error

    def _open(self) -> Any:
        file = self._pa.OSFile(os.fsencode(self._path))
        head = file.read(6)
        file.seek(0)
        if head.startswith(b"FEA1"):
            raise InputError(str(self._path), "is Feather version 1, an obsolete format; write it as version 2, or as Parquet")
        return self._pa.ipc.open_file(file) if head == b"ARROW1" else self._pa.ipc.open_stream(file)


def records_of(batch: Any) -> Iterator[Record]:
    """The rows of a record batch, a `Flaw` in place of one that cannot be read. Numbers of half and single precision become the shortest
    decimals that denote them in that width, as they were written: 0.3, not 0.30000001192092896."""
    narrow = {field.name: make for field in batch.schema if (make := _narrow(field.type)) is not None}
    for start in range(0, batch.num_rows, BATCH_ROWS):
        for record in _records(batch.slice(start, BATCH_ROWS)):
            yield record if isinstance(record, Flaw) or not narrow else record | {name: make(record[name]) for name, make in narrow.items()}


def _narrow(kind: Any) -> Callable[[Any], Any] | None:
    """What makes the values of a type what they were written as; None where they are that already."""
    import pyarrow as pa

    if pa.types.is_float16(kind) or pa.types.is_float32(kind):
        number: Callable[[float], Any] = kind.to_pandas_dtype()
        return lambda value: value if value is None else shortest(value, number)
    if pa.types.is_dictionary(kind):
        return _narrow(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        each = _narrow(kind.value_type)
        return None if each is None else (lambda values: values if values is None else [each(value) for value in values])
    if pa.types.is_struct(kind):
        parts: dict[str, Callable[[Any], Any]] = {field.name: make for field in kind if (make := _narrow(field.type)) is not None}
        return (
            None
            if not parts
            else (lambda values: values if values is None else values | {name: make(values[name]) for name, make in parts.items()})
        )
    return None


def _records(batch: Any) -> Iterator[dict[str, Any] | Flaw]:
    if batch.nbytes <= rows.MAX_ROW_BYTES:
        with suppress(ValueError, OverflowError):  # the first for what is not UTF-8 too
            yield from batch.to_pylist()
            return
    yield from (_record(batch.slice(place, 1)) for place in range(batch.num_rows))


def _record(row: Any) -> dict[str, Any] | Flaw:
    if row.nbytes > rows.MAX_ROW_BYTES:
        return Flaw(f"longer than {rows.MAX_ROW_BYTES >> 20} MiB")
    try:
        record: dict[str, Any] = row.to_pylist()[0]
    except UnicodeDecodeError:
        return Flaw("not UTF-8")
    except (ValueError, OverflowError) as error:
        return Flaw(f"a value in it cannot be read ({reason(error)})")
    return record


FORMS: dict[str, Callable[[Path], Source]] = {
    ".parquet": ParquetFile,
    ".arrow": ArrowFile,
    ".feather": ArrowFile,
    ".jsonl": JsonLines,
    ".ndjson": JsonLines,
    ".json": json_source,
    ".csv": Csv,
    ".tsv": Csv,
}
PACKED = (".gz", ".bz2", ".zst", ".lz4", ".xz")
"""What the name of a compressed text file ends in."""
BINARY = (".parquet", ".arrow", ".feather")


def form_of(name: str) -> str:
    """The key of `FORMS` for a file of this name; empty where it is of no known format."""
    inner = Path(name.lower())
    packed = inner.suffix in PACKED
    suffix = Path(inner.stem).suffix if packed else inner.suffix
    return suffix if suffix in FORMS and not (packed and suffix in BINARY) else ""


def open_source(path: Path) -> Source:
    """The file at `path`, in the format that its suffix names; raises `InputError` where it cannot be read as that."""
    if path.is_dir():
        raise InputError(str(path), "is a directory; expected a file")
    if not path.is_file():
        raise InputError(str(path), "is not a regular file" if path.exists() else "no such file")
    form = form_of(path.name)
    if not form:
        *others, last = FORMS
        expected = f"expected {', '.join(others)} or {last}, the text formats also with {', '.join(PACKED)}"
        raise InputError(str(path), f"unknown file type `{''.join(path.suffixes[-2:])}`; {expected}")
    try:
        return FORMS[form](path)
    except DAMAGE as error:
        raise InputError(str(path), reason(error)) from error
