"""One machine that writes the run folder at a URL: it claims the folder, uploads in the background, and gives the folder back.

A writer has an object `.writer-NAME` in the folder, which it writes again every few seconds. While it is fresh no other machine writes
there; one that takes over from a dead machine removes its object, which stops that machine if it is still alive. A killed process resumes
under the same name, which is kept in the staging folder.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pipeline.errors import PipelineError, RunFolderError, StoreError, UsageError, boundary
from pipeline.remote.object_store import ObjectStore, Seen
from pipeline.remote.staging import Staging
from pipeline.remote.transfer import FIRST_S, MOST_S, download, patiently, upload
from pipeline.store.folder import hold, is_held
from pipeline.store.manifest import FILE as MANIFEST
from pipeline.store.run_file import FILE as CARD

EVERY_S = 1.0
"""Seconds between two looks at the folder for files to upload."""
REFRESH_S = 20.0
"""Seconds after which a writer says again that it lives."""
FRESH_S = 90.0
"""Seconds after which a writer that said nothing counts as dead. Clocks may differ by less than the rest of it."""
LOOK_S = 1.0
"""Seconds between two looks at a writer that may be dead."""
PATIENCE = "PIPELINE_UPLOAD_PATIENCE_S"
"""The environment variable with the seconds for which the end of a run waits for a store that does not answer."""
PATIENCE_S, MOST_PATIENCE_S = 120.0, 1e6
PREFIX = ".writer-"
OPEN, CLOSED = b"open\n", b"closed\n"

Tell = Callable[[str], object]
"""Shows a message to the user."""


class Lost(StoreError):
    """Another machine writes the folder now."""


@contextmanager
def writing(store: ObjectStore, staging: Staging, tell: Tell, *, new: bool = False) -> Iterator[None]:
    """Hold the folder, here and in the store, while the body works in it; what it writes is uploaded meanwhile, the rest at the end.

    Raises `UsageError` before the body where the folder is in use, `new` and not empty, or not what this machine knows of it, and
    `RunFolderError` after it where not everything could be uploaded.
    """
    if is_held(staging.place):
        raise UsageError(f"{staging.url}: another process of this machine is at work in it; wait for its end")
    with hold(staging.place):
        writer = Writer(store, staging, tell)
        writer.claim(new=new)
        writer.start()
        try:
            yield
        except KeyboardInterrupt:
            writer.stop()
            raise
        except BaseException:
            writer.stop()
            writer.finish()
            raise
        writer.stop()
        writer.finish()


class Writer:
    """This machine as the writer of one folder. For one thread at a time, besides its own."""

    def __init__(self, store: ObjectStore, staging: Staging, tell: Tell) -> None:
        self._store, self._staging, self._tell = store, staging, tell
        self._mine = f"{PREFIX}{staging.state.writer}"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=f"upload {staging.url}", daemon=True)
        self._said_s = 0.0
        self._lost: Lost | None = None
        self._patience_s = patience()

    def claim(self, *, new: bool) -> None:
        """Become the writer, with the folder as the store has it, or as it is here where nobody else has written since."""
        staging, store = self._staging, self._store
        listing = store.list()
        self._check_empty(listing, new)
        listing = self._listed_when_free(listing)
        staging.save()
        store.write(self._mine, OPEN)
        self._said_s = time.monotonic()
        try:
            if self._busy(now := store.list()):
                raise UsageError(f"{staging.url}: another machine has begun to work in it at the same time; try again")
            if self._mine not in listing or staging.is_gone:
                bring_here(store, staging, listing, self._tell, self._say_at_work)
        except BaseException:
            with suppress(StoreError):
                if self._mine not in listing:
                    store.delete(self._mine)
            raise
        for other in self._others(now):
            store.delete(other)

    def start(self) -> None:
        """Upload from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after what it is uploading."""
        self._ended.set()
        self._thread.join()

    def finish(self) -> None:
        """Upload what is left, waiting for a store that does not answer; raises `RunFolderError` where that was in vain."""
        staging = self._staging
        try:
            if self._lost is not None:
                raise self._lost
            with boundary(RunFolderError, f"{staging.folder}: cannot be read", foreign=OSError):
                patiently(self._last, self._patience_s)
        except Lost as error:
            raise RunFolderError(f"{error}; what it has is in {staging.folder}") from error
        except StoreError as error:
            if not staging.changed():
                return  # only the word that this writer has ended is missing
            remedy = f"the run is whole in {staging.folder}, and `pipeline resume {staging.url}` uploads the rest"
            raise RunFolderError(f"{staging.url}: not everything is uploaded: {error.what}; {remedy}") from error

    def _last(self) -> None:
        self._check_mine()
        if self._staging.changed():
            upload(self._store, self._staging, before_each=self._say_at_work)
            self._check_mine()
        if self._staging.files():
            self._store.write(self._mine, CLOSED)
        else:
            self._store.delete(self._mine)

    def _loop(self) -> None:
        pause = EVERY_S
        while not self._ended.wait(pause):
            try:
                self._look()
                pause = EVERY_S
            except Lost as error:
                self._lost = error
                self._tell(str(error))
                return
            except (PipelineError, OSError):  # at the end it is tried again, and told
                pause = min(max(2 * pause, FIRST_S), MOST_S)

    def _look(self) -> None:
        if self._staging.changed():
            self._check_mine()
            upload(self._store, self._staging, before_each=self._say_at_work)
        self._say_at_work()

    def _say_at_work(self) -> None:
        """Write this writer's object again where that is due."""
        if time.monotonic() >= self._said_s + REFRESH_S:
            self._check_mine()
            self._store.write(self._mine, OPEN)
            self._said_s = time.monotonic()

    def _check_mine(self) -> None:
        """Raise `Lost` where another machine has taken the folder over."""
        if self._mine not in self._store.list(below=False):
            raise Lost(str(self._staging.url), "another machine has taken the run over, and nothing more is uploaded from this one")

    def _check_empty(self, listing: dict[str, Seen], new: bool) -> None:
        """Raise `UsageError` if the content of the folder in the store prevents a run from starting or being resumed."""
        if CARD in listing and new:
            remedy = "add --resume to resume it, or choose another URL with --output"
            raise UsageError(f"{self._staging.url}: already contains a run; {remedy}")
        if CARD not in listing and listing and not any(name.startswith(PREFIX) for name in listing):
            raise UsageError(f"{self._staging.url}: holds other objects and no run; choose another URL with --output")

    def _listed_when_free(self, listing: dict[str, Seen]) -> dict[str, Seen]:
        """The objects in the folder when no other writer is at work: one that may be dead is given the time in which it would be heard of.

        Raises `UsageError` where it is heard of.
        """
        first: dict[str, Seen] | None = None
        while busy := self._busy(listing):
            if first is None:
                first, age_s = busy, min(map(age, busy.values()))
                what = f"waiting up to {FRESH_S - age_s:.0f} s to see whether it still is"
                self._tell(f"{self._staging.url}: another machine was at work in it {age_s:.0f} s ago; {what}")
            elif busy.items() - first.items():
                raise UsageError(f"{self._staging.url}: another machine is at work in it; wait for its end")
            time.sleep(LOOK_S)
            listing = self._store.list()
        return listing

    def _busy(self, listing: dict[str, Seen]) -> dict[str, Seen]:
        """The objects of other writers that have not ended and may live."""
        return {name: seen for name, seen in self._others(listing).items() if at_work(self._store, name, seen)}

    def _others(self, listing: dict[str, Seen]) -> dict[str, Seen]:
        return {name: seen for name, seen in listing.items() if name.startswith(PREFIX) and name != self._mine}


def patience() -> float:
    """The seconds for which the end of a run waits for the store; raises `UsageError`."""
    text = os.environ.get(PATIENCE) or str(PATIENCE_S)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MOST_PATIENCE_S:
        raise UsageError(f"{PATIENCE}={text}: expected a number of seconds from 0 to {MOST_PATIENCE_S:,.0f}")
    return seconds


def bring_here(
    store: ObjectStore, staging: Staging, listing: dict[str, Seen], tell: Tell, before_each: Callable[[], object] = lambda: None
) -> None:
    """Make the folder of this machine what the store has, which lists these objects; raises `StoreError` where that would lose rows."""
    if CARD not in listing or (not staging.is_gone and staging.is_based_on(listing, store.read(MANIFEST))):
        return  # where a machine died before it had uploaded a `run.json` there is nothing to resume
    if staging.is_ahead:
        what = f"has been written by another machine since, and {staging.folder} holds rows that it lacks"
        raise StoreError(str(staging.url), f"{what}; to continue from what the store has, remove that folder")
    if count := download(store, staging, before_each):
        tell(f"{staging.url}: {count:,} files downloaded to {staging.folder}")


def at_work(store: ObjectStore, writer: str, seen: Seen) -> bool:
    """Whether a writer has not ended, and was heard of a short time ago."""
    return age(seen) < FRESH_S and store.read(writer) == OPEN


def age(seen: Seen) -> float:
    """The seconds since an object was written."""
    return max(time.time() - seen.mtime_ns / 1e9, 0.0)
