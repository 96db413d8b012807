"""Files of problems: paths, folders and patterns enter, the rows of their files leave, file after file.

A file is read a block at a time. One that cannot be read raises `InputError`; a line that is no row leaves as a `Flaw`, so that the others
continue.
"""

import csv
import glob
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import InputError, reason

BATCH_ROWS = 256
"""Maximum number of rows of a Parquet or Arrow file in memory at once."""
_SPLIT = re.compile(r"(?<![a-z])(train|test|val|dev|eval)")


class Flaw(Exception):
    """What is wrong with one row; the text is a clause."""


Record = Mapping[str, Any] | Flaw
"""One row: its values by column, or what is wrong with it."""


def rows_of(path: Path) -> Iterator[Record]:
    """The rows of one file, in the format that its suffix names. Raises `InputError`."""
    if not path.is_file():
        raise InputError(str(path), "is not a file" if path.exists() else "no such file")
    if not (form := form_of(path.name)):
        raise InputError(str(path), f"unknown file type `{path.suffix}`; expected {', '.join(FORMS)}, or packed text ({', '.join(PACKED)})")
    try:
        yield from FORMS[form](path)
    except (pa.ArrowException, OSError, EOFError, ValueError, OverflowError, RecursionError, csv.Error) as error:
        raise InputError(str(path), reason(error)) from error


def records_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows of an Arrow batch."""
    batch.validate(full=True)  # reading a damaged one would end the process
    for start in range(0, batch.num_rows, BATCH_ROWS):
        yield from batch.slice(start, BATCH_ROWS).to_pylist()


def _parquet(path: Path) -> Iterator[Record]:
    with pq.ParquetFile(path, pre_buffer=False) as file:
        for batch in file.iter_batches(BATCH_ROWS):
            yield from records_of(batch)


def _arrow(path: Path) -> Iterator[Record]:
    """An Arrow file or stream, as Feather version 2 and the library `datasets` write it."""
    with pa.OSFile(str(path)) as file:
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        with pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file) as reader:
            batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
            yield from (record for batch in batches for record in records_of(batch))


def _json(path: Path) -> Iterator[Record]:
    """One object a line, or one array of objects."""
    with _text(path) as text:
        first = next(filter(str.strip, text), "")
        if first.lstrip().startswith("["):
            yield from (each if isinstance(each, dict) else Flaw("is not a JSON object") for each in json.loads(first + text.read()))
        else:
            yield from map(_object, chain([first] if first else [], filter(str.strip, text)))


def _object(line: str) -> Record:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Flaw(f"is not JSON: {error}")
    return found if isinstance(found, dict) else Flaw("is not a JSON object")


def _csv(path: Path) -> Iterator[Record]:
    """Every value is text: 007 stays 007."""
    csv.field_size_limit(1 << 24)  # characters of one value
    with _text(path) as text:
        rows = csv.reader(text, delimiter="\t" if ".tsv" in path.suffixes else ",", strict=True)
        names = next(rows, [])
        if len(set(names)) < len(names):
            raise InputError(str(path), f"has a column twice: {', '.join(names)}")
        for row in filter(None, rows):
            same = len(row) == len(names)
            yield dict(zip(names, row, strict=True)) if same else Flaw(f"has {len(row)} values for {len(names)} columns")


def _text(path: Path) -> io.TextIOWrapper:
    """A text file, decompressed as its suffix says. Bytes that are no UTF-8 are lone surrogates, so that they spoil no other row."""
    file = io.BufferedReader(pa.input_stream(str(path), compression="detect"), 1 << 16)
    return io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")


FORMS: dict[str, Callable[[Path], Iterator[Record]]] = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".feather": _arrow,
    ".jsonl": _json,
    ".ndjson": _json,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _csv,
}
PACKED = (".gz", ".zst", ".bz2", ".lz4")


def form_of(name: str) -> str:
    """The key of `FORMS` for a file of this name; empty for an unknown format."""
    inner = Path(name.lower())
    packed = inner.suffix in PACKED
    suffix = Path(inner.stem).suffix if packed else inner.suffix
    return suffix if suffix in FORMS and not (packed and FORMS[suffix] in (_parquet, _arrow)) else ""


def files_of(path: Path) -> list[Path]:
    """The file at `path`; of a folder those of `files_among`, of a pattern such as `data/*.jsonl` all that match, sorted by name.

    Raises `InputError` where there is none.
    """
    if path.is_dir():
        return [path / name for name in files_among(str(path), (str(each.relative_to(path)) for each in path.rglob("*") if each.is_file()))]
    if path.exists() or not glob.has_magic(str(path)):
        return [path]
    matched = sorted(each for each in map(Path, glob.glob(str(path), recursive=True)) if each.is_file())
    if not matched:
        raise InputError(str(path), "no file matches this pattern")
    return matched


def files_among(where: str, names: Iterable[str]) -> list[str]:
    """The files below a folder, named from there, that hold its problems: all of a known format at the least depth, in order.

    Raises `InputError` where there is none, and where they are in several folders or of several splits, one of which has to be named.
    """
    known = sorted(filter(is_problems_file, names))
    least = min((name.count("/") for name in known), default=0)
    found = [name for name in known if name.count("/") == least]
    if not found:
        raise InputError(where, f"has no file that ends in {', '.join(FORMS)}")
    first = {(name.rpartition("/")[0], tuple(_SPLIT.findall(name.rpartition("/")[2].lower())[:1])): name for name in reversed(found)}
    if len(first) > 1:
        one = min(first.values(), key=lambda name: "test" not in name)
        what = f"has files of several folders or splits, such as {', '.join(first.values())}"
        raise InputError(where, f"{what}; name one, or a pattern: {where.rstrip('/')}/{one}")
    return found


def is_problems_file(name: str) -> bool:
    """Whether a file may hold problems, by its name below a folder; hidden files and those that libraries keep beside data may not."""
    *_, own = parts = name.split("/")
    kept_beside = own.startswith(("cache-", "dataset_info", "dataset_dict")) or own == "state.json"
    return bool(form_of(own)) and not kept_beside and not any(part.startswith(".") for part in parts)
