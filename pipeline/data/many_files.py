"""Several files of problems as one: paths and patterns enter, the problems of all of them leave, file after file.

Rows are counted on from file to file. Every file must have the columns; `sha256` is that of the digests of all files.
"""

import glob
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.data.formats import FORMS, form_of
from pipeline.data.part import ALL, RowSet
from pipeline.data.problems import MAX_TOLD, Problems
from pipeline.data.rows import Record, Source
from pipeline.errors import InputError

MAGIC = "*?["
"""Characters that make a path a pattern, where no file is called so."""
DEPTH = 3
"""So deep below a folder its files are looked for: CONFIG/data/FILE of a snapshot of the hub."""
_ABOUT = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
"""Files that say something about a data set, as the library `datasets` writes them."""
_CACHED = re.compile(r"(?:cache|tmp)[\w-]*\.arrow")
_SPLIT = re.compile(r"(?<![a-z])(?:(train)(?:ing)?|(test)(?:ing)?|(validation|valid|val|dev)|(eval)(?:uation)?)(?![a-z])")
"""A split in the name of a file, told as the library `datasets` tells it."""


def files_of(path: Path) -> list[Path]:
    """The file at `path`; of a folder those of `files_among`, of a pattern such as `data/*.jsonl` all that fit, sorted by name.

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
    matched = [Path(each) for each in glob.glob(text, recursive=True) if Path(each).is_file()]
    if not matched:
        raise InputError(text, "no file matches this pattern")
    return sorted(matched)


def files_among(where: str, names: Iterable[str]) -> list[str]:
    """Those of the files below a folder, named from there, that hold its problems: all of a known kind that lie least deep, in order.

    Raises `InputError` where they are in several folders or of several splits, one of which has to be named.
    """
    known = [name for name in names if is_problems_file(name)]
    least = min((name.count("/") for name in known), default=0)
    found = sorted(name for name in known if name.count("/") == least)
    folders = sorted({name.rpartition("/")[0] for name in found})
    if len(folders) > 1:
        raise InputError(where, f"has files in several folders, {', '.join(folders[:10])}; choose one: {where.rstrip('/')}/{folders[0]}")
    splits: dict[str, int] = {}
    for name in found:
        splits[split_of(name)] = splits.get(split_of(name), 0) + 1
    if len(splits) > 1:
        told = ", ".join(f"{split or 'others'} ({count} {'file' if count == 1 else 'files'})" for split, count in sorted(splits.items()))
        one = next(name for name in found if split_of(name) in ("test", min(splits, key=lambda split: split != "test")))
        raise InputError(where, f"has files of several splits, {told}; choose one, as a file or a pattern: {where.rstrip('/')}/{one}")
    return found


def is_problems_file(name: str) -> bool:
    """Whether a file may hold problems, by its name below a folder; hidden files and those that libraries keep next to data may not."""
    *folders, own = name.split("/")
    hidden = any(part.startswith(".") for part in (*folders, own))
    return bool(form_of(own)) and not hidden and own not in _ABOUT and not _CACHED.fullmatch(own)


def split_of(name: str) -> str:
    """The split that a file is of, by its name; empty where that does not say."""
    found = _SPLIT.search(name.rpartition("/")[2].lower())
    return "" if found is None else "validation" if found[3] else str(found[found.lastindex or 0])


def open_files(paths: Sequence[Path], columns: Mapping[str, str] | None = None, part: RowSet = ALL) -> Problems:
    """The problems in the rows of `part` of the files that these paths, folders and patterns name; raises `InputError` as `files_of` does,
    and for an unknown name among `columns`."""
    found = {path: files_of(path) for path in paths}
    files = [file for path in paths for file in found[path]]
    problems = Problems(files[0], columns or {}, part) if len(files) == 1 else ManyFiles(files, columns or {}, part)
    problems.origin = tuple(_listed(path, here) for path, here in found.items() if here != [path])
    return problems


def _listed(path: Path, files: Sequence[Path]) -> str:
    """A sentence about which files a folder or a pattern was taken for."""
    names = [file.name for file in files]
    listed = ", ".join(names if len(names) <= 4 else [*names[:2], "...", names[-1]])
    return f"{path}: {len(names)} {'file' if len(names) == 1 else 'files'}: {listed}"


class ManyFiles(Problems):
    """The problems of several files."""

    def __init__(self, paths: Sequence[Path], columns: Mapping[str, str], part: RowSet) -> None:
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
        self.remark = ""

    @property
    def names(self) -> Mapping[str, None]:
        """Those of any file, as far as they were read."""
        return self._read if self._source is None else {**self._read, **self._source.names}

    def records(self, wanted: tuple[str, ...] | None) -> Iterator[tuple[int, Record]]:
        """Every file must have the columns, one of JSON lines in any of its rows. The flaws of a file are reported together with those of
        the files after it."""
        before = row = 0
        for place, file in enumerate(self._files):
            try:
                self._source = file._open()
                for number, record in self._source.records(wanted):
                    row = before + number
                    yield row, record
                file._check_columns(self._source.names)
            except InputError as error:
                raise InputError(error.where, "; ".join([error.what, *self._also_wrong(place + 1)])) from error
            if self._source.remark:
                self.remark = f"{file.path.name}: {self._source.remark}"
            self._read.update(self._source.names)
            before = row

    def _also_wrong(self, place: int) -> list[str]:
        """What is wrong with the files from `place` on, as far as it shows without reading their rows, a few of them."""
        told: list[str] = []
        for file in self._files[place:]:
            try:
                file._open()
            except InputError as error:
                told.append(str(error))
            if len(told) == MAX_TOLD - 1:
                break
        return told
