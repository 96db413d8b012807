"""Run folders by URL: the copy on this machine in which a command reads or writes, and what brings the store up to date with it.

    STAGING/HASH/NAME/          the run folder
    STAGING/HASH/writes         the session in it that this machine writes, or was killed while it did

A run writes the rows of a call, then those of its step, then that of the chain. So file sizes are taken in the reverse
order, and up to these sizes they are uploaded in the order in which they are written: each chain in the store has its steps and calls
there, at every moment, and a write-ahead file that ends in the middle of a row is what a killed process leaves, too. `run.json` is last,
every time: a run that has ended there is whole, and one that is `running` there with an old `run.json` has lost its machine.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from pipeline.errors import InputError, PipelineError, RunFolderError, StoreError, UsageError, boundary
from pipeline.files import new_file
from pipeline.remote.store import MissingFile, RemoteFiles, Stamp, endpoint
from pipeline.remote.url import SCHEMES, Url, parse_url
from pipeline.store.folder import FILE as CARD
from pipeline.store.folder import LOCK, PROBLEMS, is_held

EVERY_S = 60.0
"""Seconds between two uploads."""
ALIVE_S = 180.0
"""The age of a `run.json` in the store from which on the machine that wrote it is taken to be gone."""
LAST_RETRY_S, AGAIN_S = 120.0, 5.0
"""Seconds for which the end of a run waits for a store that does not answer, and between two attempts."""
FOLDER_VARIABLE = "PIPELINE_STAGING"
"""The environment variable that names another folder for the copies of all runs."""
LAST_WRITTEN_FIRST = (CARD, "chains", "steps", "calls", "")
"""The files and folders of a run: each is written after those that follow it."""
_LOCAL = re.compile(rf"(.*/)?(\..*|{re.escape(LOCK)}|.*\.tmp)")
"""Files that stay on this machine: locks and drafts."""
TakeNotice = Callable[[str], object]
"""Shows a message to the user."""


@contextmanager
def written_folder(text: str, tell: TakeNotice, *, new: bool) -> Iterator[Path]:
    """The folder for a run that is written to a URL, uploaded while the body works and at its end; of a `file://` URL its path.

    `new`: there must be no run yet; otherwise the one that is there is brought here. Raises `UsageError` before the body where the folder
    is in use, and `RunFolderError` after it where not everything could be uploaded.
    """
    url = parse_url(text)
    if isinstance(url, Path):
        yield url
        return
    copy = _RunCopy(url, tell)
    copy.claim(new=new)
    with copy.uploading():
        yield copy.folder


def fetched_folder(text: str, tell: TakeNotice) -> tuple[Path, Callable[[], None] | None]:
    """The folder with a copy of the run at a URL, and what brings it up to date again; of a `file://` URL its path alone."""
    url = parse_url(text)
    if isinstance(url, Path):
        return url, None
    copy = _RunCopy(url, tell)
    copy.fetch()
    return copy.folder, copy.fetch


class _SessionOfRun(Struct, frozen=True):
    """What of a `run.json` says which session of which run it is."""

    folder_id: str
    status: str
    sessions: tuple[dict[str, object], ...] = ()

    @property
    def begun(self) -> tuple[object, ...]:
        """The run, and when its last session started."""
        return self.folder_id, self.sessions[-1]["started_unix_ns"] if self.sessions else None

    @property
    def goes_on(self) -> bool:
        return self.status in ("starting", "running")


class _Continued(StoreError):
    """Another machine has continued the run."""


class _RunCopy:
    """The folder of this machine for a run with a URL. Methods raise `RunFolderError` where it cannot be read or written."""

    def __init__(self, url: Url, tell: TakeNotice) -> None:
        if not url.name:
            raise UsageError(f"{url}: names a bucket; expected a folder in it, such as {SCHEMES[url.scheme].replace('PATH', 'runs/mine')}")
        self._url, self._tell, self._store = url, tell, RemoteFiles(url)
        digest = blake2b(f"{url} {endpoint(url)}".encode(), digest_size=8).hexdigest()
        self.folder = _all_copies() / digest / url.name
        self._mark = self.folder.parent / "writes"
        self._uploaded: dict[str, Stamp] = {}
        """The versions of the files here that are in the store."""
        self._claimed: tuple[object, ...] | None = None
        """The session that the store had when this machine began to write; None where it had none."""
        self._ended = threading.Event()

    def claim(self, *, new: bool) -> None:
        """Become the writer, with the folder as the store has it, or as it is here where this machine was killed while it wrote it."""
        if is_held(self.folder):
            raise UsageError(f"{self._url}: another process of this machine is at work in it; wait for its end")
        there = self._store.list()
        if CARD in there and new:
            raise UsageError(f"{self._url}: already contains a run; add --resume to resume it, or choose another URL with --output")
        if there and CARD not in there and not (self.folder / CARD).exists():
            raise UsageError(f"{self._url}: holds other files and no run; choose another URL with --output")
        if CARD not in there:
            return
        card = self._card_there()
        self._claimed = card.begun
        if self._is_ahead(card):
            return
        if card.goes_on and (age := time.time() - there[CARD][1] / 1e9) < ALIVE_S:
            what = f"another machine is at work in it: its run.json was written {max(0.0, age):.0f} s ago"
            raise UsageError(f"{self._url}: {what}; wait for its end, or {ALIVE_S:.0f} s if that machine is gone")
        self._download()

    def fetch(self) -> None:
        """Download what has changed, but where this machine writes the run or was killed while it did. Raises `StoreError` where there is
        none."""
        if is_held(self.folder):
            return
        try:
            if not self._is_ahead(self._card_there()):
                self._download()
        except MissingFile as error:
            if not (self.folder / CARD).exists():
                raise StoreError(str(self._url), "there is no run; expected a folder with a run.json") from error

    @contextmanager
    def uploading(self) -> Iterator[None]:
        """Upload every minute while the body works, and what is left at its end."""
        thread = threading.Thread(target=self._upload_on, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()
            self._finish()

    def _upload_on(self) -> None:
        while not self._ended.wait(EVERY_S):
            try:
                self._upload()
            except _Continued as error:
                self._tell(str(error))
                return
            except (PipelineError, OSError):
                continue  # it is tried again, and told at the end

    def _finish(self) -> None:
        """Upload what is left; raises `RunFolderError` where that was in vain."""
        until = time.monotonic() + LAST_RETRY_S
        while True:
            try:
                self._upload()
                break
            except _Continued as error:
                raise RunFolderError(f"{error}; the rows of this machine are in {self.folder}") from error
            except StoreError as error:
                if time.monotonic() < until:
                    time.sleep(AGAIN_S)
                    continue
                remedy = f"the run is whole in {self.folder}, and `pipeline resume {self._url}` uploads the rest"
                raise RunFolderError(f"{self._url}: not everything is uploaded: {error.what}; {remedy}") from error
        for name, (size, mtime_ns) in self._store.list().items():  # so that nothing of it is downloaded again
            if self._uploaded.get(name, (-1, 0))[0] == size:
                os.utime(self.folder / name, ns=(mtime_ns, mtime_ns))

    def _upload(self) -> None:
        """Bring the store up to date with this machine. Where a file is replaced meanwhile, what is left is for the next time."""
        versions = self._versions()
        if CARD not in versions:
            return  # not begun, or withdrawn
        with suppress(MissingFile):
            if self._card_there().begun not in (self._claimed, self._card_here().begun):
                raise _Continued(str(self._url), "another machine has continued the run, and nothing more is uploaded from this one")
        with suppress(FileNotFoundError), boundary(RunFolderError, f"{self.folder}: cannot be read", foreign=PermissionError):
            self._mark.write_text(repr(self._card_here().begun))
            for name, version in reversed(versions.items()):
                if name == CARD or self._uploaded.get(name) != version:
                    with (self.folder / name).open("rb") as file:
                        # `run.json` may be another file by now, and longer.
                        self._store.upload(name, iter([file.read()]) if name == CARD else _content(file, version[0]))
                    self._uploaded[name] = version
            for name in self._store.list():
                if _is_data(name) and name not in versions:  # what has replaced it was uploaded
                    self._store.delete(name)

    def _download(self) -> None:
        """Bring this machine up to date with the store."""
        for _ in range(3):
            with suppress(MissingFile):  # a file that is gone before it is downloaded was replaced by another one
                self._download_once()
                return
        raise StoreError(str(self._url), "its files change while they are read; try again")

    def _download_once(self) -> None:
        self._mark.unlink(missing_ok=True)
        listed = {name: stamp for name, stamp in self._store.list().items() if not _LOCAL.fullmatch(name)}
        here, count = self._versions(), 0
        for place in LAST_WRITTEN_FIRST:
            for name in [name for name in listed if name.startswith(place) and here.get(name) != listed[name]]:
                if ".." in Path(name).parts:
                    raise InputError(str(self._url), f"holds a file {name!r}, which is not one of a run")
                path = self.folder / name
                with boundary(RunFolderError, f"{path}: cannot be written", foreign=OSError):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with new_file(path) as draft:
                        self._store.download(name, draft)
                    os.utime(path, ns=(listed[name][1],) * 2)
                here[name], count = listed[name], count + 1
        for name in filter(_is_data, here.keys() - listed.keys()):
            (self.folder / name).unlink(missing_ok=True)
        if count:
            self._tell(f"{self._url}: {count:,} files downloaded to {self.folder}")

    def _is_ahead(self, there: _SessionOfRun) -> bool:
        """True if this machine wrote the session that goes on in the store: rows are here that are not there."""
        return there.goes_on and self._mark.exists() and self._mark.read_text() == repr(there.begun)

    def _card_here(self) -> _SessionOfRun:
        return _decoded((self.folder / CARD).read_bytes(), str(self.folder / CARD))

    def _card_there(self) -> _SessionOfRun:
        return _decoded(self._store.read(CARD), f"{self._url}/{CARD}")

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


def _decoded(card: bytes, where: str) -> _SessionOfRun:
    try:
        return msgspec.json.decode(card, type=_SessionOfRun)
    except msgspec.MsgspecError as error:
        raise InputError(where, f"is not the file of a run: {error}") from error


def _is_data(name: str) -> bool:
    """True if a file holds what a run is, unlike a report about it."""
    return name in (CARD, PROBLEMS) or "/" in name


def _all_copies() -> Path:
    """Where the folders of all runs with URLs are."""
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
