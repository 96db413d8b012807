"""Several files of problems as one: paths and patterns enter, the problems of all of them leave, file after file.

Rows are counted on from file to file. Every file must have the columns; `sha256` is that of the digests of all files.
"""

import glob
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.data.part import ALL, Part
from pipeline.data.problems import Problems
from pipeline.data.rows import FORMS, Record, Source
from pipeline.errors import InputError

MAGIC = "*?["
"""Characters that make a path a pattern, where no file is called so."""


def files_of(path: Path) -> list[Path]:
    """The file at `path`; of a folder all files of a known kind in it, of a pattern such as `data/*.jsonl` all that fit, sorted by name.

    Raises `InputError` where there is none.
    """
    text = str(path)
    if path.is_dir():
        found = [each for each in path.iterdir() if each.is_file() and _known(each)]
        what = f"has no file that ends in {', '.join(FORMS)}"
    elif not path.exists() and any(sign in text for sign in MAGIC):
        found = [Path(each) for each in glob.glob(text, recursive=True) if Path(each).is_file()]
        what = "no file matches this pattern"
    else:
        return [path]
    if not found:
        raise InputError(text, what)
    return sorted(found)


def open_files(paths: Sequence[Path], columns: Mapping[str, str] | None = None, part: Part = ALL) -> Problems:
    """The problems in the rows of `part` of the files that these paths, folders and patterns name; raises `InputError` as `files_of` does,
    and for an unknown name among `columns`."""
    files = [file for path in paths for file in files_of(path)]
    return Problems(files[0], columns or {}, part) if len(files) == 1 else ManyFiles(files, columns or {}, part)


def _known(path: Path) -> bool:
    return Path(path.name.lower().removesuffix(".gz")).suffix in FORMS


class ManyFiles(Problems):
    """The problems of several files."""

    def __init__(self, paths: Sequence[Path], columns: Mapping[str, str], part: Part) -> None:
        super().__init__(paths[0], columns, part)
        self._files = [Problems(path, columns, ALL) for path in paths]
        self.path = Path(f"{paths[0]} and {len(paths) - 1} more")

    def _open(self) -> Source:
        return _Joined(self._files)

    def _version(self) -> tuple[int, ...]:
        return tuple(number for each in self._files for number in each._version())

    def _sha256(self) -> str:
        return hashlib.sha256("\n".join(each._sha256() for each in self._files).encode()).hexdigest()


class _Joined:
    """A `Source` of the rows of several files, which are opened one at a time: a folder may hold more than a process may have open."""

    def __init__(self, files: Sequence[Problems]) -> None:
        self._files = files
        self._source: Source | None = None
        """That of the file that is being read."""
        self._read: dict[str, None] = {}

    @property
    def names(self) -> Mapping[str, None]:
        """See `Source.names`: those of any file, as far as they were read."""
        return self._read if self._source is None else {**self._read, **self._source.names}

    def records(self, wanted: tuple[str, ...] | None) -> Iterator[tuple[int, Record]]:
        """See `Source.records`; every file must have the columns, one of JSON lines in any of its rows."""
        before = row = 0
        for file in self._files:
            self._source = file._open()
            for number, record in self._source.records(wanted):
                row = before + number
                yield row, record
            file._check_columns(self._source.names)
            self._read.update(self._source.names)
            before = row
