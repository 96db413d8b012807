"""Run folders by URL: the folder on this machine in which a command reads or writes, and what brings the other side up to date with it.

A run writes the rows of calls, then of their step, then of the chain. So file sizes are taken in the reverse order, and up to
these sizes files are uploaded in the order in which they are written: each chain in the store has its steps and calls there, at every
moment, and a write-ahead file that ends in the middle of a row is what a killed process leaves, too. `run.json` is last, every time: a run
that has ended there is whole, and one that is `running` there with an old `run.json` has lost its machine.
"""

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.errors import PipelineError, RunFolderError, StoreError, UsageError, boundary
from pipeline.remote.store import MissingFile, RemoteFiles, Stamp
from pipeline.remote.url import Url, parse_url
from pipeline.store.folder import FILE as CARD
from pipeline.store.folder import LOCK, read_card

EVERY_S, ALIVE_S = 60.0, 180.0
"""Seconds between two uploads, and the age of a `run.json` in the store from which on the machine that wrote it is taken to be gone."""
ORDER = ("calls", "steps", "chains", CARD)
"""The tables and files of a run in the order in which they are written, after all others."""


@contextmanager
def written_folder(text: str, *, new: bool) -> Iterator[Path]:
    """The folder for a run that is written to a URL, uploaded while the body works and at its end.

    `new`: there must be no run yet; otherwise the one that is there is brought here, unless this machine wrote it. Raises `UsageError`
    before the body where the URL is in use, and `RunFolderError` after it where not everything could be uploaded.
    """
    url = parse_url(text)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "speculative-pipeline" / "runs"
    copy = _RunCopy(url, cache / url.scheme / url.bucket / url.key)
    copy.claim(new=new)
    ended = threading.Event()
    thread = threading.Thread(target=copy.upload_until, args=(ended,), daemon=True)
    thread.start()
    try:
        yield copy.folder
    finally:
        ended.set()
        thread.join()
        what = f"{url}: not everything is uploaded; `pipeline resume {url}` uploads the rest of {copy.folder}"
        with boundary(RunFolderError, what, foreign=(StoreError, OSError)):
            copy.upload()


@contextmanager
def read_folder(text: str) -> Iterator[Path]:
    """A folder with the run at a URL, until the end."""
    url = parse_url(text)
    with TemporaryDirectory(prefix="run-") as place:
        copy = _RunCopy(url, Path(place, url.bucket, url.key))
        copy.download()
        yield copy.folder


class _RunCopy:
    """A folder of this machine and the URL of the same run. Methods raise `StoreError`, and `OSError` where the folder fails."""

    def __init__(self, url: Url, folder: Path) -> None:
        self._url, self.folder, self._store = url, folder, RemoteFiles(url)
        self._uploaded: dict[str, Stamp] = {}
        """The versions of the files here that are in the store."""

    def claim(self, *, new: bool) -> None:
        """Have the run here that is to be written; raises `UsageError` where that cannot be."""
        there = self._store.list()
        if there and (new or CARD not in there):
            raise UsageError(f"{self._url}: already holds {'a run' if CARD in there else 'other files'}; choose another URL with --output")
        if there:
            with TemporaryDirectory() as place:
                self._store.download(CARD, Path(place, CARD))
                card = read_card(Path(place))
            here = read_card(self.folder) if (self.folder / CARD).exists() else {}
            if here.get("folder_id") != card.get("folder_id") or len(here.get("sessions", ())) < len(card.get("sessions", ())):
                age = time.time() - there[CARD][1] / 1e9
                if card.get("status") == "running" and age < ALIVE_S:
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
        with suppress(FileNotFoundError):
            for name, version in reversed(versions.items()):
                if name == CARD or self._uploaded.get(name) != version:
                    # A write-ahead file grows; `run.json` may be another file by now.
                    self._store.upload(name, self.folder / name, version[0] if name.endswith(".log") else sys.maxsize)
                    self._uploaded[name] = version
            for name in self._store.list().keys() - versions.keys():
                if "/" in name:  # of a table, and not what a user has put beside them
                    self._store.delete(name)

    def download(self) -> None:
        """Have the run here as it is in the store."""
        for _ in range(3):
            shutil.rmtree(self.folder, ignore_errors=True)
            if CARD not in (listed := self._store.list()):
                raise StoreError(str(self._url), "there is no run; expected a folder with a run.json")
            with suppress(MissingFile):  # a file that is gone before it is downloaded was replaced by another one
                self._store.download(CARD, draft := self.folder / f".{CARD}.tmp")
                for name in sorted(listed.keys() - {CARD}, key=_rank, reverse=True):
                    self._store.download(name, self.folder / name)
                draft.replace(self.folder / CARD)  # last: with it the copy counts as one of the run
                return
        raise StoreError(str(self._url), "its files change while they are read; try again")

    def _versions(self) -> dict[str, Stamp]:
        """The versions of the files here that belong into the store, those first that were written last."""
        found: dict[str, Stamp] = {}
        for rank in reversed(range(-1, len(ORDER))):
            # The highest number first: parts are numbered without a gap, at every moment.
            for path in sorted(self.folder.rglob("*"), reverse=True):
                name = path.relative_to(self.folder).as_posix()
                if _rank(name) == rank and path.suffix != ".tmp" and path.name != LOCK and path.is_file():
                    with suppress(FileNotFoundError):
                        stat = path.stat()
                        found[name] = stat.st_size, stat.st_mtime_ns
        return found


def _rank(name: str) -> int:
    """The place of a file in `ORDER`; -1 where it has none."""
    return max((ORDER.index(part) for part in name.split("/") if part in ORDER), default=-1)
