"""The formats of input files by their names: a path enters, an open `Source` of rows leaves, or the reason why there is none."""

from collections.abc import Callable
from pathlib import Path

from pipeline.data.columnar import Arrow, Parquet
from pipeline.data.rows import DAMAGE, Source
from pipeline.data.text_files import Csv, JsonLines, json_source
from pipeline.errors import InputError, reason

FORMS: dict[str, Callable[[Path], Source]] = {
    ".parquet": Parquet,
    ".arrow": Arrow,
    ".feather": Arrow,
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
