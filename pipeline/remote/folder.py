"""Run folders by URL: the two ways to have one on this machine, for a command or a call of the Python API.

A machine that writes a run has an object `run.lock` in its folder, which is created only where there is none and names the machine. It
is removed at the end; what a dead machine has left is replaced by `take_over`, which stops that machine if it is still alive.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import msgspec
from msgspec import Struct

from pipeline.errors import PipelineError, RunFolderError, StoreError, UsageError
from pipeline.remote.copy import RunCopy
from pipeline.remote.object_store import ObjectStore
from pipeline.remote.url import parse_url
from pipeline.store.folder import FILE as CARD
from pipeline.store.folder import LOCK, hold, is_held

EVERY_S = 60.0
"""Seconds between two uploads."""
LAST_RETRY_S = 120.0
"""Seconds for which the end of a run waits for a store that does not answer."""
TakeNotice = Callable[[str], object]
"""Shows a message to the user."""


class WriterLock(Struct, frozen=True):
    """The content of the lock object."""

    id: str
    host: str
    pid: int
    since: str

    @classmethod
    def new(cls) -> "WriterLock":
        """A lock of this process."""
        now = datetime.now(UTC).isoformat(" ", "seconds")
        return cls(uuid4().hex, socket.gethostname(), os.getpid(), now)

    @classmethod
    def read(cls, store: ObjectStore) -> "WriterLock | None":
        """The lock that is in a store."""
        content = store.read(LOCK)
        try:
            return None if content is None else msgspec.json.decode(content, type=cls)
        except msgspec.DecodeError as error:
            raise StoreError(f"{store.url}/{LOCK}", f"is not a lock of a run ({error}); remove it") from error

    def __str__(self) -> str:
        return f"process {self.pid} of {self.host}"


class Lost(StoreError):
    """Another machine writes the folder now."""


@contextmanager
def written_folder(text: str, tell: TakeNotice, *, new: bool, take_over: bool = False) -> Iterator[Path]:
    """The folder for a run that is written to a URL, uploaded while the body works and at its end; of a `file://` URL its path.

    `new`: there must be no run yet; otherwise the one that is there is brought here. `take_over`: even if another machine holds it.
    Raises `UsageError` before the body where the folder is in use or not what this machine knows of it, and `RunFolderError` after it
    where not everything could be uploaded.
    """
    url = parse_url(text)
    if isinstance(url, Path):
        yield url
        return
    copy = RunCopy(url)
    with written(copy, tell, new=new, take_over=take_over):
        yield copy.folder


@contextmanager
def written(copy: RunCopy, tell: TakeNotice, *, new: bool = False, take_over: bool = False) -> Iterator[None]:
    """Hold a run folder, here and in the store, while the body writes in it; as `written_folder`."""
    if is_held(copy.place):
        raise UsageError(f"{copy.url}: another process of this machine is at work in it; wait for its end")
    with hold(copy.place):
        writer = Writer(copy, tell)
        writer.claim(new=new, take_over=take_over)
        with writer.uploading():
            yield


class Writer:
    """This machine as the writer of one folder."""

    def __init__(self, copy: RunCopy, tell: TakeNotice) -> None:
        self._copy, self._tell, self._store = copy, tell, ObjectStore(copy.url)
        self._ended = threading.Event()
        self._lost: Lost | None = None

    def claim(self, *, new: bool, take_over: bool) -> None:
        """Become the writer, with the folder as the store has it, or as it is here where nobody else has written since."""
        copy, store = self._copy, self._store
        listing = store.list()
        if CARD in listing and new:
            raise UsageError(f"{copy.url}: already contains a run; add --resume to resume it, or choose another URL with --output")
        if listing.keys() - {LOCK} and CARD not in listing and not copy.state.lock:
            raise UsageError(f"{copy.url}: holds other objects and no run; choose another URL with --output")
        ours = self._lock(take_over)
        try:
            if ours:
                copy.note(listing)
            else:
                bring_here(store, copy, self._tell)
        except BaseException:
            self._unlock()
            raise

    def _lock(self, take_over: bool) -> bool:
        """Put a lock into the store; True if the last one there was of this machine, whose process was killed."""
        copy, store, mine = self._copy, self._store, WriterLock.new()
        before, copy.state.lock = copy.state.lock, mine.id
        content = msgspec.json.encode(mine)
        held = None if store.create(LOCK, content) else WriterLock.read(store)
        ours = held is not None and held.id == before
        if held is not None and held.id != mine.id:
            if not ours and not take_over:
                remedy = "wait for its end, or if it is dead continue its run with `pipeline resume --take-over`"
                raise UsageError(f"{copy.url}: {held} has been at work in it since {held.since}; {remedy}")
            store.write(LOCK, content)
        copy.save()
        return ours

    def _unlock(self) -> None:
        with suppress(StoreError):
            self._store.delete(LOCK)
            self._copy.state.lock = ""
            self._copy.save()

    @contextmanager
    def uploading(self) -> Iterator[None]:
        """Upload what the body writes, now and then and when it has ended; not where the user breaks off."""
        thread = threading.Thread(target=self._loop, name=f"upload {self._copy.url}", daemon=True)
        thread.start()
        broken_off = False
        try:
            yield
        except KeyboardInterrupt:
            broken_off = True
            raise
        finally:
            self._ended.set()
            thread.join()
            if not broken_off:
                self._finish()

    def _loop(self) -> None:
        while not self._ended.wait(EVERY_S):
            try:
                self._copy.upload(self._store, self._check_mine)
            except Lost as error:
                self._lost = error
                self._tell(str(error))
                return
            except (PipelineError, OSError):
                continue  # it is tried again, and told at the end

    def _finish(self) -> None:
        """Upload what is left, and remove the lock; raises `RunFolderError` where that was in vain."""
        copy, self._store = self._copy, ObjectStore(self._copy.url, LAST_RETRY_S)
        try:
            if self._lost is not None:
                raise self._lost
            copy.upload(self._store, self._check_mine)
            self._check_mine()
        except Lost as error:
            raise RunFolderError(f"{error}; its rows so far are in {copy.folder}") from error
        except StoreError as error:
            remedy = f"the run is whole in {copy.folder}, and `pipeline resume {copy.url}` uploads the rest"
            raise RunFolderError(f"{copy.url}: not everything is uploaded: {error.what}; {remedy}") from error
        self._unlock()

    def _check_mine(self) -> None:
        """Raise `Lost` where another machine has taken the folder over."""
        lock = WriterLock.read(self._store)
        if lock is None or lock.id != self._copy.state.lock:
            by = "another machine" if lock is None else str(lock)
            raise Lost(str(self._copy.url), f"{by} has taken the run over, and nothing more is uploaded from this one")


def bring_here(store: ObjectStore, copy: RunCopy, tell: TakeNotice) -> None:
    """Make the folder of this machine what the store has; raises `StoreError` where that would lose rows."""
    listing = store.list()
    if CARD not in listing or (copy.state.files and copy.is_same(listing)):
        return  # where a machine died before it had uploaded a `run.json` there is nothing to resume
    if (copy.folder / CARD).exists() and copy.is_ahead:
        what = f"has been written by another machine since, and {copy.folder} holds rows that it lacks"
        raise StoreError(str(copy.url), f"{what}; to continue from what the store has, remove that folder")
    if count := copy.download(store):
        tell(f"{copy.url}: {count:,} files downloaded to {copy.folder}")


class FetchedRun:
    """The run at a URL for a command that reads it, in the folder of this machine; uploaded again where the command writes into it.

    Where a process of this machine writes the run, its own folder is read as it is.
    """

    def __init__(self, copy: RunCopy, tell: TakeNotice) -> None:
        self.folder = copy.folder
        self._copy, self._tell, self._store = copy, tell, ObjectStore(copy.url)
        self._held = ExitStack()
        self._elsewhere: WriterLock | None = None

    def refresh(self) -> None:
        """Download what has changed. Raises `StoreError` where there is no run, or this machine has rows that the store lacks."""
        copy, store = self._copy, self._store
        if is_held(copy.place):
            return
        if CARD not in store.list() and not (copy.folder / CARD).exists():
            raise StoreError(str(copy.url), "there is no run; expected a folder with a run.json")
        lock = WriterLock.read(store)
        if lock is not None and lock.id == copy.state.lock:
            return  # the process was killed here, and has left more here than there
        bring_here(store, copy, self._tell)
        copy.state.lock = ""
        self._hold(lock)

    def close(self) -> None:
        """Upload what the command has written into the folder; raises `RunFolderError` where that fails."""
        copy = self._copy
        self._held.close()
        changed = ", ".join(sorted(copy.changed())[:5])
        if not changed or is_held(copy.place) or copy.state.lock:
            return  # the process of this machine that writes the run, or resumes it, uploads them
        if self._elsewhere is not None:
            self._tell(f"not uploaded, as {self._elsewhere} is at work in {copy.url}: {changed}, which is in {copy.folder}")
            return
        try:
            with written(copy, self._tell):
                pass
        except (StoreError, UsageError) as error:
            raise RunFolderError(f"{error}; not uploaded: {changed}, which is in {copy.folder}") from error

    def _hold(self, lock: WriterLock | None) -> None:
        """Hold the folder while another machine writes the run, so that commands of this one do not write into it."""
        if lock is None:
            self._held.close()
        elif self._elsewhere is None:
            with suppress(UsageError):  # another reader of this machine holds it already
                self._held.enter_context(hold(self.folder))
                (self.folder / LOCK).write_text(f"{lock.pid} of {lock.host}")
        self._elsewhere = lock


def fetched_folder(text: str, tell: TakeNotice) -> tuple[Path, FetchedRun | None]:
    """The folder with a copy of the run at a URL, and what brings it up to date again; of a `file://` URL its path alone."""
    url = parse_url(text)
    if isinstance(url, Path):
        return url, None
    fetched = FetchedRun(RunCopy(url), tell)
    fetched.refresh()
    return fetched.folder, fetched
