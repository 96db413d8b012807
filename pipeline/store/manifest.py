"""`manifest.jsonl` in a run folder: which parts and write-ahead files belong to each table, so that others are told from them.

Lines are only ever appended, each with a checksum, and a later line about a file replaces an earlier one. A part's line is durable before
the part has its name, that of a write-ahead file before the first rows are in it. So at every moment a file that holds rows has
a line, and at most the last line says what has not happened yet; `Manifest.settle` takes such a line back.

    {"run":"5f0c…","table":"calls","file":"part-00000.parquet","rows":65536,"bytes":9031477,"digest":"92ab…","crc32":"0f4be1d2"}
    {"run":"5f0c…","table":"calls","file":"wal-00001.arrows","crc32":"77c20a19"}
    {"run":"5f0c…","table":"chains","files":[{"file":"part-00000.parquet","rows":…},…],"crc32":"…"}     all files of the table

Besides, each of these files says itself where it belongs (`Label`, in the metadata of its Arrow schema).
"""

import os
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pyarrow as pa
from msgspec import Struct

from pipeline.files import check_own, open_regular, sync_data, sync_folder
from pipeline.store.part_file import Fingerprint, fingerprint

FILE = "manifest.jsonl"
_LABEL = b"pipeline.file"
_CRC = b',"crc32":"'


class Label(Struct, frozen=True):
    """What a part or a write-ahead file says of itself."""

    run: str
    """The random name of the run folder's manifest: unlike the run's own name no other folder has it, unless it is a copy."""
    table: str
    number: int
    """The number in the file's name."""

    @classmethod
    def of(cls, metadata: Mapping[bytes, bytes] | None) -> "Label | None":
        """The label in the metadata of a file or its schema; None in files of earlier versions, and in those that others wrote."""
        try:
            run, table, number = (metadata or {})[_LABEL].decode().split("/")
            return cls(run, table, int(number))
        except (KeyError, ValueError):
            return None

    def put_on(self, schema: pa.Schema) -> pa.Schema:
        """`schema` with this label in its metadata."""
        return schema.with_metadata({**(schema.metadata or {}), _LABEL: f"{self.run}/{self.table}/{self.number:05}".encode()})


class Entry(Struct, frozen=True, omit_defaults=True):
    """One file of a table. Of a write-ahead file, which grows, only the name is known."""

    file: str
    rows: int = 0
    bytes: int = 0
    digest: str = ""
    """`Fingerprint.digest` of a part."""

    @property
    def number(self) -> str:
        """The digits in the file's name."""
        return number_of(self.file)


class _Line(Struct, omit_defaults=True):
    run: str
    table: str
    file: str = ""
    rows: int = 0
    bytes: int = 0
    digest: str = ""
    removed: bool = False
    files: list[Entry] | None = None
    replaced: bool = False
    """Whether these files are about to take the place of the whole table."""

    @property
    def ahead(self) -> bool:
        """Whether the line is written before what it says happens."""
        return self.replaced or bool(self.digest)


Tables = dict[str, dict[str, Entry]]
"""The files of each table, by name."""


class Manifest:
    """The manifest of one run folder, read when it is made and kept up to date by its methods.

    For one process, which has locked the folder, and one thread at a time. Methods that write raise `OSError`, and leave what
    is written whole.
    """

    def __init__(self, folder: Path, run: str, tables: Tables, undone: tuple[str, dict[str, Entry]] | None = None) -> None:
        self.folder, self.run, self.tables = folder, run, tables
        self._undone = undone
        """Where the last line says what is to happen: its table, and the table's files without that line."""
        self.parts: set[Fingerprint] = set()
        """Every part that was ever listed."""

    @classmethod
    def read(cls, folder: Path) -> "Manifest | None":
        """The manifest in `folder`; None where it has none, or none of its lines is whole. Raises `OSError` where it cannot be read."""
        try:
            with open_regular(folder / FILE) as file:
                lines = [line for line in map(_decode, file.read().split(b"\n")) if line is not None]
        except FileNotFoundError:
            return None
        if not lines:
            return None
        tables: Tables = {}
        for line in lines[:-1]:
            _apply(tables, line)
        last = lines[-1]
        undone = (last.table, dict(tables.get(last.table, {}))) if last.ahead else None
        _apply(tables, last)
        found = cls(folder, lines[0].run, tables, undone)
        found.parts = {Fingerprint(line.bytes, line.digest) for line in lines if line.digest}
        found.parts |= {Fingerprint(entry.bytes, entry.digest) for line in lines for entry in line.files or () if entry.digest}
        return found

    @classmethod
    def new(cls, folder: Path, run: str | None = None) -> "Manifest":
        """An empty manifest for `folder`, with the random name `run` where its files have one already; it is on disk from its first
        line on."""
        return cls(folder, run or uuid.uuid4().hex[:16], {})

    def settle(self) -> None:
        """Take the last line back where the process that wrote it ended before it did what the line says."""
        if self._undone is not None and self.settled() is not self.tables:
            table, before = self._undone
            self.list_all(table, before.values())

    def settled(self) -> Tables:
        """The files of each table, without a last line that says what did not happen; nothing is written."""
        if self._undone is None:
            return self.tables
        table, before = self._undone
        now = self.tables.get(table, {})
        undone = before != now and not self._is_there(table, now) and self._is_there(table, before)
        return {**self.tables, table: before} if undone else self.tables

    def list_part(self, part: Path, rows: int, draft: Path) -> None:
        """List the part that `draft` is about to become, in place of the write-ahead file or the part with its number."""
        found = fingerprint(draft)
        assert found is not None, "the part is whole"
        self._append(_Line(self.run, part.parent.name, part.name, rows, found.bytes, found.digest))

    def list_wal(self, wal: Path) -> None:
        """List a new write-ahead file, in which there are no rows yet."""
        self._append(_Line(self.run, wal.parent.name, wal.name))

    def strike(self, file: Path) -> None:
        """Strike a file off that is about to be removed, if it is listed."""
        if file.name in self.tables.get(file.parent.name, {}):
            self._append(_Line(self.run, file.parent.name, file.name, removed=True))

    def list_all(self, table: str, entries: Iterable[Entry], *, replaced: bool = False) -> None:
        """List all files of a table, in place of those that are listed; `replaced`: they are about to take its place on disk, too."""
        self._append(_Line(self.run, table, files=list(entries), replaced=replaced))

    def _is_there(self, table: str, entries: Mapping[str, Entry]) -> bool:
        """Whether each of these files is there as it is listed."""
        place = self.folder / table
        for entry in entries.values():
            there = fingerprint(place / entry.file) if entry.digest else None
            if there != Fingerprint(entry.bytes, entry.digest) if entry.digest else not (place / entry.file).exists():
                return False
        return True

    def _append(self, line: _Line) -> None:
        path = self.folder / FILE
        check_own(path)
        there = path.exists()
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(file).st_size
            torn = size and os.pread(file, 1, size - 1) != b"\n"
            try:
                _write_all(file, (b"\n" if torn else b"") + _encode(line), size)
                sync_data(file)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(file, size)
                raise
        finally:
            os.close(file)
        if not there:
            sync_folder(self.folder)
        _apply(self.tables, line)
        self._undone = None


def stands(place: Path, name: str) -> bool:
    """Whether a listed file of the table in `place` is there, itself or as the part or write-ahead file with its number."""
    number = number_of(name)
    return any(os.path.lexists(place / other) for other in (name, f"part-{number}.parquet", f"wal-{number}.arrows"))


def number_of(name: str) -> str:
    """The digits in the name of a part or write-ahead file."""
    return name.partition(".")[0].rpartition("-")[2]


def _apply(tables: Tables, line: _Line) -> None:
    """Bring `tables` up to date with a later line."""
    files = tables.setdefault(line.table, {})
    if line.files is not None:
        tables[line.table] = {entry.file: entry for entry in line.files}
        return
    for file in [file for file in files if number_of(file) == number_of(line.file)]:
        del files[file]
    if not line.removed:
        files[line.file] = Entry(line.file, line.rows, line.bytes, line.digest)


def _encode(line: _Line) -> bytes:
    body = msgspec.json.encode(line)[:-1]
    return body + _CRC + b"%08x" % crc32(body) + b'"}\n'


def _decode(raw: bytes) -> _Line | None:
    """The line that `raw` holds; None where it is not as it was written."""
    body, _, end = raw.rpartition(_CRC)
    if not body or end != b"%08x" % crc32(body) + b'"}':
        return None
    try:
        return msgspec.json.decode(body + b"}", type=_Line)
    except msgspec.MsgspecError:
        return None


def _write_all(file: int, content: bytes, at: int) -> None:
    data: Any = memoryview(content)
    while data:
        written = os.pwrite(file, data, at)
        data, at = data[written:], at + written
