"""One run folder, here and in a store: files that one side has and the other lacks are copied, and what is copied opens at any moment.

    STAGING/HASH/state.json     which version of each file is in the store, and the lock of this machine
    STAGING/HASH/NAME/          the run folder

A run writes the rows of calls, then their step's, then the chain's. So the sizes of the files are taken in the reverse
order, and up to these sizes they are uploaded in the order in which they are written: each chain in the store has its steps and calls
there, at every moment, and a write-ahead file that ends in the middle of a row is what a killed process leaves, too. Downloads go the
other way round.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from pipeline.errors import InputError, RunFolderError, UsageError, boundary
from pipeline.files import new_file
from pipeline.remote.object_store import CHUNK, MissingObject, ObjectStore, endpoint
from pipeline.remote.url import SCHEMES, Url
from pipeline.store.folder import FILE as CARD
from pipeline.store.folder import LOCK, PROBLEMS

FOLDER_VARIABLE = "PIPELINE_STAGING"
"""The environment variable that names another folder for the copies of all runs."""
LAST_WRITTEN_FIRST = (CARD, "chains", "steps", "calls", "")
"""The files and folders of a run: each is written after those that follow it."""
_ROWS = re.compile(r"[^/]+/(part|wal)-\d+\.(parquet|arrows)")
_LOCAL = re.compile(rf"(.*/)?(\..*|{re.escape(LOCK)}|.*\.tmp)")
"""Files that stay on this machine: locks and drafts."""


class CopiedFile(Struct, frozen=True):
    """A version of a file that both sides have."""

    size: int
    mtime_ns: int
    tag: str
    """What the store calls this version."""


class CopyState(Struct):
    """What is known of the copy in the store."""

    lock: str = ""
    """The lock that this machine has put there, and has not removed."""
    files: dict[str, CopiedFile] = {}


class RunCopy:
    """The folder of this machine for a run with a URL. Methods raise `RunFolderError` where it cannot be read or written."""

    def __init__(self, url: Url) -> None:
        if not url.name:
            raise UsageError(f"{url}: names a bucket; expected a folder in it, such as {SCHEMES[url.scheme].replace('PATH', 'runs/mine')}")
        self.url = url
        digest = blake2b(f"{url} {endpoint(url)}".encode(), digest_size=8).hexdigest()
        self.place = _all_copies() / digest
        """What is locked by the process that uploads."""
        self.folder = self.place / url.name
        self.state = CopyState()
        with suppress(OSError, msgspec.MsgspecError):
            self.state = msgspec.json.decode((self.place / "state.json").read_bytes(), type=CopyState)
        if not (self.folder / CARD).exists():
            self.state.files = {}  # the user has removed the folder

    def save(self) -> None:
        """Write the state, durably."""
        with boundary(RunFolderError, f"{self.place}: cannot be written", foreign=OSError):
            self.place.mkdir(parents=True, exist_ok=True)
            with new_file(self.place / "state.json") as draft:
                draft.write_bytes(msgspec.json.encode(self.state))

    def note(self, listing: dict[str, str]) -> None:
        """Note the objects that a killed process of this machine has uploaded without doing so: some may be gone here."""
        for name, tag in listing.items():
            if name not in self.state.files and not _LOCAL.fullmatch(name):
                self.state.files[name] = CopiedFile(-1, 0, tag)

    def changed(self) -> dict[str, tuple[int, int]]:
        """The size and time of each file of which the store has no version, or another one; those first that were written last."""
        known = {name: (file.size, file.mtime_ns) for name, file in self.state.files.items()}
        return {name: version for name, version in self._versions().items() if known.get(name) != version}

    def is_same(self, listing: dict[str, str]) -> bool:
        """True if the store, which lists these objects, has the rows that it had when it was last copied to or from."""
        known = {name: file.tag for name, file in self.state.files.items()}
        return _rows_of(listing) == _rows_of(known)

    @property
    def is_ahead(self) -> bool:
        """True if rows are here that are not in the store."""
        return any(map(_is_data, self.changed()))

    def upload(self, store: ObjectStore, before_each: Callable[[], object] = lambda: None) -> None:
        """Bring the store up to date with this machine; `before_each` is called before every object.

        After an error it may be repeated. Where a file is replaced meanwhile, what is left is for the next time.
        """
        changed = self.changed()
        if CARD in self.state.files and not (self.folder / CARD).exists():
            raise RunFolderError(f"{self.folder / CARD}: is gone; nothing more is uploaded to {self.url}")
        gone = [name for name in self.state.files if not (self.folder / name).exists()]
        try:
            with suppress(FileNotFoundError), boundary(RunFolderError, f"{self.folder}: cannot be read", foreign=PermissionError):
                for name, (size, mtime_ns) in reversed(changed.items()):
                    before_each()
                    with (self.folder / name).open("rb") as file:
                        tag = store.write(name, _content(file, size))
                    self.state.files[name] = CopiedFile(size, mtime_ns, tag)
                for name in gone:
                    before_each()
                    store.delete(name)
                    del self.state.files[name]
        finally:
            self.save()

    def download(self, store: ObjectStore) -> int:
        """Bring this machine up to date with the store; the number of files that were downloaded. Raises `StoreError`."""
        count, there = 0, set[str]()
        try:
            for place in LAST_WRITTEN_FIRST:
                while True:  # a file that is gone before it is downloaded was replaced by another one
                    # The list is new for each place: what is written later may need files that were not there.
                    listed = {name: tag for name, tag in store.list().items() if name.startswith(place) and not _LOCAL.fullmatch(name)}
                    found = {name: self._download(store, name, listed[name]) for name in listed if name not in there}
                    count += sum(new for new in found.values() if new is not None)
                    there.update(name for name, new in found.items() if new is not None)
                    if None not in found.values():
                        break
            for name in [name for name in self._versions() if _is_data(name) and name not in there]:
                (self.folder / name).unlink(missing_ok=True)
            self.state.files = {name: file for name, file in self.state.files.items() if name in there}
        finally:
            self.save()
        return count

    def _download(self, store: ObjectStore, name: str, tag: str) -> bool | None:
        """Download an object unless this machine has it; True if it was downloaded, None if it is gone."""
        path, known = self.folder / name, self.state.files.get(name)
        if known is not None and known.tag == tag and path.is_file() and _version(path) == (known.size, known.mtime_ns):
            return False
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise InputError(str(self.url), f"holds an object {name!r}, which is not a file of a run")
        with boundary(RunFolderError, f"{path}: cannot be written", foreign=OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with new_file(path) as draft:
                    tag = store.download(name, draft)
            except MissingObject:
                return None
            self.state.files[name] = CopiedFile(*_version(path), tag)
        return True

    def _versions(self) -> dict[str, tuple[int, int]]:
        """The size and time of each file that belongs into the store, those first that were written last."""
        found: dict[str, tuple[int, int]] = {}
        with boundary(RunFolderError, f"{self.folder}: cannot be read", foreign=OSError):
            for place in LAST_WRITTEN_FIRST:
                for path in _files(self.folder / place):
                    name = path.relative_to(self.folder).as_posix()
                    if name not in found and not _LOCAL.fullmatch(name):
                        with suppress(FileNotFoundError):  # it has got its name, or was replaced, meanwhile
                            found[name] = _version(path)
        return found


def _is_data(name: str) -> bool:
    """True if a file holds what a run is, unlike a report about it."""
    return name in (CARD, PROBLEMS) or _ROWS.fullmatch(name) is not None


def _rows_of(tags: dict[str, str]) -> dict[str, str]:
    return {name: tag for name, tag in tags.items() if _is_data(name)}


def _all_copies() -> Path:
    """Where the folders of all runs with URLs are."""
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "speculative-pipeline" / "runs"


def _files(place: Path) -> Iterator[Path]:
    """A file, or all files below a folder, those of the highest number first: parts are numbered without a gap, at every moment."""
    if place.is_file():
        yield place
    for folder, folders, names in os.walk(place):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(folder, name) for name in sorted(names, reverse=True))


def _version(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _content(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file, which may be growing."""
    while size > 0 and (chunk := file.read(min(CHUNK, size))):
        size -= len(chunk)
        yield chunk
