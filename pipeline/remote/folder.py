"""Run folders by URL: the folder on this machine in which a command reads or writes, and what brings the other side up to date with it.

A run writes the rows of calls, then of their step, then of the chain. So file sizes are taken in the reverse order, and up to
these sizes files are uploaded in the order in which they are written: each chain in the store has its steps and calls there, at every
moment, and a write-ahead file that ends in the middle of a row is what a killed process leaves, too. `run.json` is last, every time: a run
that has ended there is whole, and one that is `running` there with an old `run.json` has lost its machine.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import msgspec
from msgspec import Struct

from pipeline.errors import InputError, PipelineError, RunFolderError, StoreError, UsageError, boundary
from pipeline.files import new_file
from pipeline.remote.store import MissingFile, RemoteFiles, Stamp
from pipeline.remote.url import SCHEMES, Url, parse_url
from pipeline.store.folder import FILE as CARD
from pipeline.store.folder import LOCK, PROBLEMS, is_held

EVERY_S = 60.0
"""Seconds between two uploads."""
ALIVE_S = 180.0
"""The age of a `run.json` in the store from which on the machine that wrote it is taken to be gone."""
FOLDER_VARIABLE = "PIPELINE_STAGING"
"""The environment variable that names another place for the folders of runs that are written to URLs."""
LAST_WRITTEN_FIRST = (CARD, "chains", "steps", "calls", "")
"""The files and folders of a run: each is written after those that follow it."""
_LOCAL = re.compile(rf"(.*/)?(\..*|{re.escape(LOCK)}|.*\.tmp)")
"""Files that stay on this machine: locks and drafts."""


@contextmanager
def written_folder(text: str, *, new: bool) -> Iterator[Path]:
    """The folder for a run that is written to a URL, uploaded while the body works and at its end; of a `file://` URL its path.

    `new`: there must be no run yet; otherwise the one that is there is brought here, unless this machine wrote it. Raises `UsageError`
    before the body where the URL is in use, and `RunFolderError` after it where not everything could be uploaded.
    """
    url = parse_url(text)
    if isinstance(url, Path):
        yield url
        return
    folder = _staging() / url.scheme / url.bucket / url.key
    copy = _RunCopy(url, folder)
    copy.claim(new=new)
    ended = threading.Event()
    thread = threading.Thread(target=copy.upload_until, args=(ended,), daemon=True)
    thread.start()
    try:
        yield folder
    finally:
        ended.set()
        thread.join()
        what = f"{url}: not everything is uploaded; `pipeline resume {url}` uploads the rest of {folder}"
        with boundary(RunFolderError, what, foreign=StoreError):
            copy.upload()


@contextmanager
def read_folder(text: str) -> Iterator[tuple[Path, Callable[[], None] | None]]:
    """A folder with the run at a URL until the end, and what brings it up to date again; of a `file://` URL its path alone."""
    url = parse_url(text)
    if isinstance(url, Path):
        yield url, None
        return
    with TemporaryDirectory(prefix="run-") as place:
        copy = _RunCopy(url, Path(place) / url.name)
        copy.download()
        yield copy.folder, copy.download


class _StoredCard(Struct, frozen=True):
    """What of a `run.json` says which session of which run it is, and whether it goes on."""

    folder_id: str
    status: str
    sessions: tuple[dict[str, object], ...] = ()

    @classmethod
    def read(cls, content: bytes, where: str) -> "_StoredCard":
        """Raises `InputError` where it is none."""
        with boundary(InputError, where, foreign=msgspec.MsgspecError):
            return msgspec.json.decode(content, type=cls)

    @property
    def session(self) -> tuple[object, ...]:
        return self.folder_id, self.sessions[-1]["started_unix_ns"] if self.sessions else None


class _RunCopy:
    """A folder of this machine and the URL of the same run. Methods raise `StoreError`, and `RunFolderError` where the folder fails."""

    def __init__(self, url: Url, folder: Path) -> None:
        if not url.name:
            raise UsageError(f"{url}: names a bucket; expected a folder in it, such as {SCHEMES[url.scheme].replace('PATH', 'runs/mine')}")
        self._url, self.folder, self._store = url, folder, RemoteFiles(url)
        self._there: dict[str, Stamp] = {}
        """The versions of the files in the store that are here."""
        self._uploaded: dict[str, Stamp] = {}
        """The versions of the files here that are in the store."""

    def claim(self, *, new: bool) -> None:
        """Have the run here that is to be written; raises `UsageError` where that cannot be."""
        if is_held(self.folder):
            raise UsageError(f"{self._url}: another process of this machine is at work in it; wait for its end")
        there = self._store.list()
        if there and (new or CARD not in there):
            what = "already contains a run" if CARD in there else "holds other files and no run"
            raise UsageError(f"{self._url}: {what}; choose another URL with --output")
        if not there:
            return
        card, here = _StoredCard.read(self._store.read(CARD), f"{self._url}/{CARD}"), self.folder / CARD
        if not here.exists() or _StoredCard.read(here.read_bytes(), str(here)).session != card.session:
            age = time.time() - there[CARD][1] / 1e9
            if card.status in ("starting", "running") and age < ALIVE_S:
                what = f"another machine is at work in it: its run.json was written {max(0.0, age):.0f} s ago"
                raise UsageError(f"{self._url}: {what}; wait for its end, or {ALIVE_S:.0f} s if that machine is gone")
            self.download()
        self._uploaded = {name: each for name, each in self._versions().items() if name in there and there[name][0] == each[0]}

    def upload_until(self, ended: threading.Event) -> None:
        """Upload every minute."""
        while not ended.wait(EVERY_S):
            with suppress(PipelineError, OSError):  # it is tried again, and told at the end
                self.upload()

    def upload(self) -> None:
        """Bring the store up to date with this machine. Where a file is replaced meanwhile, what is left is for the next time."""
        versions = self._versions()
        if CARD not in versions:
            return  # not begun, or withdrawn
        with suppress(FileNotFoundError), boundary(RunFolderError, f"{self.folder}: cannot be read", foreign=PermissionError):
            for name, version in reversed(versions.items()):
                if name == CARD or self._uploaded.get(name) != version:
                    with (self.folder / name).open("rb") as file:
                        # `run.json` may be another file by now, and longer.
                        self._store.upload(name, iter([file.read()]) if name == CARD else _content(file, version[0]))
                    self._uploaded[name] = version
            for name in self._store.list():
                if _is_data(name) and name not in versions:  # a file that went since then may have a successor that is not uploaded
                    self._store.delete(name)

    def download(self) -> None:
        """Bring this machine up to date with the store."""
        for _ in range(3):
            with suppress(MissingFile):  # a file that is gone before it is downloaded was replaced by another one
                self._download_once()
                return
        raise StoreError(str(self._url), "its files change while they are read; try again")

    def _download_once(self) -> None:
        listed = {name: stamp for name, stamp in self._store.list().items() if not _LOCAL.fullmatch(name)}
        if CARD not in listed:
            raise StoreError(str(self._url), "there is no run; expected a folder with a run.json")
        if unsafe := next((name for name in listed if ".." in Path(name).parts), None):
            raise InputError(str(self._url), f"holds a file {unsafe!r}, which is not one of a run")
        self._there = {name: stamp for name, stamp in self._there.items() if name in listed}
        with boundary(RunFolderError, f"{self.folder}: cannot be written", foreign=OSError):
            for place in LAST_WRITTEN_FIRST:
                for name in [name for name in listed if name.startswith(place) and self._there.get(name) != listed[name]]:
                    path = self.folder / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with new_file(path) as draft:
                        self._store.download(name, draft)
                    self._there[name] = listed[name]
            for name in filter(_is_data, self._versions().keys() - listed.keys()):
                (self.folder / name).unlink(missing_ok=True)

    def _versions(self) -> dict[str, Stamp]:
        """The versions of the files here that belong into the store, those first that were written last."""
        found: dict[str, Stamp] = {}
        with boundary(RunFolderError, f"{self.folder}: cannot be read", foreign=OSError):
            for place in LAST_WRITTEN_FIRST:
                for path in _files(self.folder / place):
                    name = path.relative_to(self.folder).as_posix()
                    if name not in found and not _LOCAL.fullmatch(name):
                        found[name] = -1, 0
                        with suppress(FileNotFoundError):  # it was replaced meanwhile: an upload ends where it opens it
                            stat = path.stat()
                            found[name] = stat.st_size, stat.st_mtime_ns
        return found


def _is_data(name: str) -> bool:
    """True if a file holds what a run is, unlike a report about it."""
    return name in (CARD, PROBLEMS) or "/" in name


def _staging() -> Path:
    """Where the folders of runs are that are written to URLs."""
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "speculative-pipeline" / "runs"


def _files(place: Path) -> Iterator[Path]:
    """A file, or all files below a folder, the highest number first: parts are numbered without a gap, at every moment."""
    if place.is_file():
        yield place
    for folder, folders, names in os.walk(place):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(folder, name) for name in sorted(names, reverse=True))


def _content(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file, which may be growing."""
    while size > 0 and (chunk := file.read(min(1 << 20, size))):
        size -= len(chunk)
        yield chunk
