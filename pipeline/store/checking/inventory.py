"""The files of a run folder against its manifest: each file is sound, or it is foreign, doubled, swapped, changed or missing.

Nothing is written, except by `complete_manifest`. Folders of earlier versions have no manifest; of their files nothing more is known
than that they can be read.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pyarrow as pa
from msgspec import Struct

from pipeline.errors import InputError, boundary, reason
from pipeline.files import check_own_folder, flaw_of
from pipeline.store.manifest import Entry, Label, Manifest, Tables, number_of, stands
from pipeline.store.part_file import Fingerprint, fingerprint, read_footer
from pipeline.store.wal import wal_schema

MAIN = ("calls", "steps", "chains")
"""The tables that a run writes."""
PART, WAL = "part-[0-9]*.parquet", "wal-[0-9]*.arrows"
Verdict = Literal["sound", "unlisted", "changed", "swapped", "doubled", "foreign", "irregular", "damaged", "missing"]
REFUSED: tuple[Verdict, ...] = ("swapped", "doubled", "foreign", "irregular", "damaged", "missing")
"""Verdicts with which a run is not resumed: its rows would not be those that it wrote."""
NOT_OURS: tuple[Verdict, ...] = ("doubled", "foreign")
"""Verdicts of files that readers leave out, which loses nothing of the run."""


class Found(Struct, frozen=True):
    """One file of a table, there or missing."""

    table: str
    file: str
    verdict: Verdict
    why: str = ""
    """What is wrong with it, as a clause after its name."""
    home: str = ""
    """Of a doubled or swapped file: where its rows belong, such as `calls/part-00001.parquet`."""

    def __str__(self) -> str:
        return f"{self.table}/{self.file} {self.why}"


class Inventory(Struct, frozen=True):
    """The files of all tables of a run folder."""

    folder: Path
    files: tuple[Found, ...]
    listed: bool
    """Whether the folder has a manifest."""

    def of(self, *verdicts: Verdict) -> list[Found]:
        """The files with one of these verdicts."""
        return [found for found in self.files if found.verdict in verdicts]


def take_inventory(folder: Path) -> Inventory:
    """The files of all tables in `folder`, each with a verdict. Raises `InputError` where the folder cannot be listed."""
    with boundary(InputError, str(folder), foreign=OSError):
        tables = _present_tables(folder)
        judges = _Judge(folder)
        files = [found for table in sorted({*tables, *judges.tables}) for found in judges.table(table)]
    return Inventory(folder, tuple(files), judges.manifest is not None)


def check_files(folder: Path) -> list[str]:
    """Notices of flaws in the files of a run that do not prevent its resumption; raises `InputError` for those that do."""
    found = take_inventory(folder)
    if refused := found.of(*REFUSED):
        more = f", and {len(refused) - 5} more" if len(refused) > 5 else ""
        what = f"{'; '.join(map(str, refused[:5]))}{more}"
        raise InputError(str(folder), f"{what}; nothing was changed; to repair: pipeline runs check {folder} --repair")
    if not found.listed and found.files:
        return [f"{folder}: has no manifest of its files, so missing or foreign ones cannot be detected; one is written now"]
    return [f"{folder}: {each}; its rows are used as they are" for each in found.of("changed", "unlisted")]


def flaws(folder: Path) -> list[str]:
    """Notices of files of a run folder that are missing, and of those that are left out when it is read."""
    said = {"missing": "its rows are not shown", "swapped": "its rows are shown", "changed": "its rows are shown as they are"}
    said |= dict.fromkeys(NOT_OURS, "it is left out")
    if not folder.is_dir():
        return []
    found = take_inventory(folder).of("missing", "swapped", "changed", *NOT_OURS)
    return [f"{folder}: {each}; {said[each.verdict]}" for each in found]


def our_files(folder: Path, table: str) -> list[Path]:
    """The files of a table that hold rows of this run, in order of their numbers: its parts, and each write-ahead file that is no part.

    Raises `InputError` for a pipe or another irregular file, other than a link to a part, or where the folder cannot be listed. A part
    of the listed size is taken for the listed one, and without a manifest every file for the run's own.
    """
    with boundary(InputError, str(folder), foreign=OSError):
        found = list(_Judge(folder, [table], by_size=True).present(table))
    for each in found:
        if each.verdict == "irregular":
            raise InputError(str(folder / table / each.file), each.why)
    held = {number_of(each.file): each.file for each in found if each.verdict not in NOT_OURS and each.file.startswith("wal-")}
    held |= {number_of(each.file): each.file for each in found if each.verdict not in NOT_OURS and each.file.startswith("part-")}
    return [folder / table / held[number] for number in sorted(held)]


def open_manifest(folder: Path) -> Manifest | None:
    """The manifest of a locked run folder, for writing; None where it has none. Raises `OSError`."""
    manifest = Manifest.read(folder)
    if manifest is not None:
        manifest.settle()
    return manifest


def complete_manifest(folder: Path) -> Manifest:
    """The manifest of a locked run folder, for writing, with all parts that are there and readable. Raises `OSError`."""
    judge = _Judge(folder)
    manifest = open_manifest(folder) or Manifest.new(folder, judge.run or None)
    for table in _present_tables(folder):
        listed = manifest.tables.get(table, {})
        parts = [each for each in judge.present(table) if each.file.startswith("part-")]
        new = [each for each in parts if each.verdict in ("unlisted", "changed") or (each.verdict == "sound" and each.file not in listed)]
        entries = [entry for each in new if (entry := _entry_of(folder / table / each.file)) is not None]
        numbers = {entry.number for entry in entries}
        if entries:
            manifest.list_all(table, [*(entry for entry in listed.values() if entry.number not in numbers), *entries])
    return manifest


def misplaced(wal: Path, manifest: Manifest | None) -> bool:
    """Whether a write-ahead file says of itself that it belongs to another run, table or place."""
    label = label_of(wal)
    here = (wal.parent.name, int(number_of(wal.name)))
    return label is not None and ((label.table, label.number) != here or (manifest is not None and label.run != manifest.run))


def _entry_of(part: Path) -> Entry | None:
    """The entry for a part as it is; None where it cannot be read."""
    with suppress(OSError, pa.ArrowException):
        if (found := fingerprint(part)) is not None:
            return Entry(part.name, read_footer(part).num_rows, found.bytes, found.digest)
    return None


def label_of(file: Path) -> Label | None:
    """What a part or write-ahead file says of itself; None where it is irregular or cannot be read, too."""
    with suppress(OSError, pa.ArrowException):
        if flaw_of(file) is None:
            schema = wal_schema(file) if file.name.startswith("wal-") else read_footer(file)
            return None if schema is None else Label.of(schema.metadata)
    return None


def _present_tables(folder: Path) -> list[str]:
    """The tables that have a folder; raises `OSError` where one cannot be listed."""
    found = sorted(place.name for place in folder.iterdir() if place.is_dir() and not place.name.startswith(".")) if folder.is_dir() else []
    tables = [name for name in found if name in MAIN or _names(folder / name)]
    for name in tables:
        check_own_folder(folder / name)
    return tables


def _names(place: Path) -> list[str]:
    """The names of the parts and write-ahead files in a table's folder, write-ahead files first: they become parts, never the reverse."""
    if not place.is_dir():
        return []
    next(place.iterdir(), None)  # `glob` says nothing of a folder that cannot be listed
    return [file.name for pattern in (WAL, PART) for file in sorted(place.glob(pattern))]


class _Judge:
    """Judges the files of one run folder; its manifest is read after the names, so that a live run is never ahead of it."""

    def __init__(self, folder: Path, tables: Sequence[str] = MAIN, *, by_size: bool = False) -> None:
        self._folder, self._by_size = folder, by_size
        self._all_names = {table: _names(folder / table) for table in tables}
        self.manifest = Manifest.read(folder)
        self.tables: Tables = {}
        if self.manifest is not None:
            self.tables = self.manifest.tables if by_size else self.manifest.settled()
        self.run = self.manifest.run if self.manifest else "" if by_size else self._most_common_run()

    def table(self, table: str) -> Iterator[Found]:
        """Every file of a table, missing ones included."""
        yield from self.present(table)
        for entry in self.tables.get(table, {}).values():
            if not stands(self._folder / table, entry.file):
                yield Found(table, entry.file, "missing", "is missing")

    def present(self, table: str) -> Iterator[Found]:
        """Every file of a table that is there."""
        names = self._all_names.get(table)
        for name in _names(self._folder / table) if names is None else names:
            with suppress(FileNotFoundError):  # it has become a part meanwhile
                yield self._wal(table, name) if name.startswith("wal-") else self._part(table, name)

    def _part(self, table: str, name: str) -> Found:
        path, entry = self._folder / table / name, self.tables.get(table, {}).get(name)
        if flaw := flaw_of(path, follow=self._by_size):
            return Found(table, name, "irregular", flaw)
        if self._by_size and (self.manifest is None or (entry is not None and path.stat().st_size == entry.bytes)):
            return Found(table, name, "sound")
        there = fingerprint(path)
        if there is None:
            return Found(table, name, "damaged", "is not a complete Parquet file")
        if entry is not None and (there.bytes, there.digest) == (entry.bytes, entry.digest):
            return Found(table, name, "sound")
        try:
            label = Label.of(read_footer(path).metadata)
        except (OSError, pa.ArrowException) as error:
            return Found(table, name, "damaged", f"cannot be read: {reason(error)}")
        if wrong := self._misplaced(table, name, label, there):
            return wrong
        if entry is not None:
            return Found(table, name, "changed", "was changed by another program")
        if not self._lists(table):
            return Found(table, name, "sound")
        if label is None:
            return Found(table, name, "foreign", "is not of this run: the manifest does not list it")
        return Found(table, name, "unlisted", "is not in the manifest")

    def _wal(self, table: str, name: str) -> Found:
        path = self._folder / table / name
        if flaw := flaw_of(path):
            return Found(table, name, "irregular", flaw)
        if self._by_size and self.manifest is None:
            return Found(table, name, "sound")
        try:
            schema = wal_schema(path)
        except pa.ArrowException as error:
            return Found(table, name, "damaged", f"cannot be read: {reason(error)}")
        if schema is None:
            return Found(table, name, "sound")  # no row of it can be read
        label = Label.of(schema.metadata)
        if label is None and self._lists(table):
            return Found(table, name, "foreign", "is not of this run: nothing in it says so")
        return self._misplaced(table, name, label, None) or Found(table, name, "sound")

    def _misplaced(self, table: str, name: str, label: Label | None, there: Fingerprint | None) -> Found | None:
        """The verdict where a file says of itself that it belongs elsewhere; None where it does not, or where another program made the
        part `there` of one of the run's."""
        if label is None or table not in MAIN:
            return None
        if label.run != self.run:
            return Found(table, name, "foreign", "is of another run")
        kind, ending = ("part", "parquet") if name.startswith("part-") else ("wal", "arrows")
        home = f"{label.table}/{kind}-{label.number:05}.{ending}"
        if home == f"{table}/{name}" or (there is not None and self.manifest is not None and there not in self.manifest.parts):
            return None
        if self._is_at_home(home):
            return Found(table, name, "doubled", f"is a copy of {home}", home)
        return Found(table, name, "swapped", f"holds what belongs in {home}", home)

    def _is_at_home(self, home: str) -> bool:
        """Whether the file that belongs at `home` is there, or what it has become."""
        table, _, name = home.partition("/")
        part = self._folder / table / f"part-{number_of(name)}.parquet"
        label = label_of(part if part.exists() else self._folder / home)
        return label is not None and (label.run, label.table, label.number) == (self.run, table, int(number_of(name)))

    def _lists(self, table: str) -> bool:
        """Whether the manifest lists the files of this table; those of other programs and of earlier versions it may not."""
        return self.manifest is not None and (table in MAIN or table in self.tables)

    def _most_common_run(self) -> str:
        """The run that most parts of a folder without a manifest say they belong to; empty where they say nothing."""
        labels = (label_of(self._folder / table / name) for table, names in self._all_names.items() for name in names)
        runs = Counter(label.run for label in labels if label is not None)
        return runs.most_common(1)[0][0] if runs else ""
