"""Files of problems: paths, folders and patterns enter, the rows of their files leave, file after file.

Parquet, Arrow, JSON lines and CSV are read a block at a time. A file that cannot be read raises `InputError`; a line that is no JSON object
leaves as a `Flaw`, so that the others continue.
"""

import csv
import glob
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from pipeline.errors import InputError, boundary

BATCH_ROWS = 256
"""Maximum number of rows of a Parquet or Arrow file in memory at once."""
HEAD = 1 << 16
"""Bytes read at the start of a file to tell its compression, its encoding and the header of a CSV file."""
CSV_BLOCK = 16 << 20
"""Bytes of a CSV file parsed together; a longer row is refused."""
CODECS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
"""The first bytes of compressed files, and pyarrow's name of the compression."""
OTHERS = {
    b"PAR1": "is a Parquet file; name it .parquet",
    b"ARROW1": "is an Arrow file; name it .arrow",
    b"PK\x03\x04": "is a ZIP archive or a spreadsheet; unpack it, or save it as CSV",
    b"\xfd7zXZ\x00": "is compressed by xz; unpack it, or compress it with gzip or zstd",
    b"version https://git-lfs": "is a Git LFS pointer, not the file; fetch the file with `git lfs pull`",
    b"\xff\xfe": "is UTF-16; save it as UTF-8",
    b"\xfe\xff": "is UTF-16; save it as UTF-8",
}
"""The first bytes of files that are no text, and what each is."""
BOM = b"\xef\xbb\xbf"
MAGIC = "*?["
"""Characters that make a path a pattern, unless a file has that name."""
DEPTH = 3
"""How many folders deep files are looked for: CONFIG/data/FILE in a snapshot of the hub."""
_ABOUT = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
_CACHED = re.compile(r"(?:cache|tmp)[\w-]*\.arrow")
_SPLIT = re.compile(r"(?<![a-z])(?:(train)(?:ing)?|(test)(?:ing)?|(validation|valid|val|dev)|(eval)(?:uation)?)(?![a-z])")
"""A split in the name of a file, by the rule of the library `datasets`."""
_JSON = msgspec.json.Decoder(dict[str, Any])


class Flaw(Exception):
    """What is wrong with one row; the text is a clause."""


Record = Mapping[str, Any] | Flaw
"""One row: its values by column, or what is wrong with it."""


def rows_of(path: Path) -> Iterator[Record]:
    """The rows of one file, in the format that its suffix names. Raises `InputError`."""
    if not path.is_file():
        what = "is a directory; expected a file" if path.is_dir() else "is not a regular file" if path.exists() else "no such file"
        raise InputError(str(path), what)
    form = form_of(path.name)
    if not form:
        *others, last = FORMS
        raise InputError(
            str(path), f"unknown file type `{path.suffix}`; expected {', '.join(others)} or {last}, or a text format with .gz or .zst"
        )
    with boundary(InputError, str(path), foreign=(pa.ArrowException, OSError, EOFError, UnicodeError)):
        yield from FORMS[form](path)


def records_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows of an Arrow batch."""
    batch.validate(full=True)  # reading a damaged one would end the process
    for start in range(0, batch.num_rows, BATCH_ROWS):
        yield from batch.slice(start, BATCH_ROWS).to_pylist()


def _parquet(path: Path) -> Iterator[Record]:
    with pq.ParquetFile(path, pre_buffer=False) as file:
        _distinct(path, file.schema_arrow.names)
        for batch in file.iter_batches(BATCH_ROWS):
            yield from records_of(batch)


def _arrow(path: Path) -> Iterator[Record]:
    """An Arrow file or stream, as Feather version 2 and the library `datasets` write it."""
    with pa.OSFile(str(path)) as file:
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        with pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file) as reader:
            _distinct(path, reader.schema.names)
            batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
            yield from (record for batch in batches for record in records_of(batch))


def _json(path: Path) -> Iterator[Record]:
    """One object a line, or one array of objects."""
    with _text(path) as text:
        if text.peek(HEAD).lstrip().startswith(b"["):
            try:
                found = json.loads(text.read())
            except (ValueError, RecursionError) as error:
                raise InputError(str(path), f"is not a JSON array: {error}; write one object per line") from error
            yield from (each if isinstance(each, dict) else Flaw("not a JSON object") for each in found)
            return
        for number, line in enumerate(text, 1):
            if line.strip() and (line[0] < 128 or line.decode(errors="replace").strip()):  # U+2028 is white space, too
                yield _object(number, line)


def _object(number: int, line: bytes) -> Record:
    try:
        return _JSON.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        try:
            found = json.loads(line.decode().strip())  # it takes NaN, as Python writes it, and a U+2028 at the end
        except (ValueError, RecursionError):
            return Flaw(f"line {number} is not JSON ({error})")
        return found if isinstance(found, dict) else Flaw(f"line {number} is not a JSON object")


def _csv(path: Path) -> Iterator[Record]:
    """Every value of a CSV file is text: 007 stays 007."""
    separator = "\t" if ".tsv" in path.suffixes else ","
    with _text(path) as text:
        names = next(csv.reader(io.StringIO(text.peek(HEAD).decode(errors="replace")), delimiter=separator), None)
        if not names:
            raise InputError(str(path), "holds no rows")
        _distinct(path, names)
        kinds = pa_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False)
        form = pa_csv.ParseOptions(delimiter=separator, newlines_in_values=True)
        with pa_csv.open_csv(text, pa_csv.ReadOptions(use_threads=False, block_size=CSV_BLOCK), form, kinds) as reader:
            yield from (record for batch in reader for record in records_of(batch))


def _text(path: Path) -> io.BufferedReader:
    """The bytes of a text file, decompressed and without a byte-order mark; raises `InputError` for a file that is no text."""
    with path.open("rb") as file:
        start = file.read(8)
    codec = next((codec for magic, codec in CODECS.items() if start.startswith(magic)), None)
    text = io.BufferedReader(pa.input_stream(str(path), compression=codec), HEAD)
    head = text.peek(HEAD)
    for magic, what in OTHERS.items():
        if head.startswith(magic):
            raise InputError(str(path), what)
    if b"\0" in head[:64]:
        raise InputError(str(path), "is not UTF-8 text; save it as UTF-8")
    if head.startswith(BOM):
        text.read(len(BOM))
    return text


def _distinct(path: Path, names: Sequence[str]) -> None:
    if twice := [f"`{name}`" for name, count in Counter(names).items() if count > 1]:
        raise InputError(str(path), f"has the column {twice[0]} twice")


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
    text = str(path)
    if path.is_dir():
        for depth in range(1, DEPTH + 1):
            names = [str(each.relative_to(path)) for each in path.glob("/".join("*" * depth)) if each.is_file()]
            if found := files_among(text, names):
                return [path / name for name in found]
        raise InputError(text, f"has no file that ends in {', '.join(FORMS)}")
    if path.exists() or not any(sign in text for sign in MAGIC):
        return [path]
    matched = sorted(Path(each) for each in glob.glob(text, recursive=True) if Path(each).is_file())
    if not matched:
        raise InputError(text, "no file matches this pattern")
    return matched


def files_among(where: str, names: Iterable[str]) -> list[str]:
    """The files below a folder, named from there, that hold its problems: all of a known format at the least depth, in order.

    Raises `InputError` where they are in several folders or of several splits, one of which has to be named.
    """
    known = [name for name in names if is_problems_file(name)]
    least = min((name.count("/") for name in known), default=0)
    found = sorted(name for name in known if name.count("/") == least)
    folders = sorted({name.rpartition("/")[0] for name in found})
    if len(folders) > 1:
        raise InputError(where, f"has files in several folders, {', '.join(folders[:10])}; choose one: {where.rstrip('/')}/{folders[0]}")
    splits = Counter(map(split_of, found))
    if len(splits) > 1:
        listed = ", ".join(f"{split or 'others'} ({count} {'file' if count == 1 else 'files'})" for split, count in sorted(splits.items()))
        one = next(name for name in found if split_of(name) in ("test", min(splits, key=lambda split: split != "test")))
        raise InputError(where, f"has files of several splits, {listed}; choose one, as a file or a pattern: {where.rstrip('/')}/{one}")
    return found


def is_problems_file(name: str) -> bool:
    """Whether a file may hold problems, by its name below a folder; hidden files and those that libraries keep beside data may not."""
    *folders, own = name.split("/")
    hidden = any(part.startswith(".") for part in (*folders, own))
    return bool(form_of(own)) and not hidden and own not in _ABOUT and not _CACHED.fullmatch(own)


def split_of(name: str) -> str:
    """The split in the name of a file; empty where there is none."""
    found = _SPLIT.search(name.rpartition("/")[2].lower())
    return "" if found is None else "validation" if found[3] else str(found[found.lastindex or 0])
