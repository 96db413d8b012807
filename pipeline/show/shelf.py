"""The runs of a folder, open for questions: names enter, what `show DIR` says of each run and open queries leave.

A query stays open until a file of its run changes, so that a run in progress is read as it is now and another one only once.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from msgspec import Struct

from pipeline.analysis.progress import ACTIVE
from pipeline.analysis.run_list import RunState, run_folders, run_state
from pipeline.errors import InputError, UsageError, did_you_mean
from pipeline.store.folder import FILE, is_held
from pipeline.store.query import TABLES, Query
from pipeline.text import storable

DEPTH = 3
"""How many levels down runs are looked for: those of a sweep are in `SWEEP/runs`."""
MOST_OPEN = 8
"""Queries that are open at once."""


class ListedRun(Struct, frozen=True):
    """A run of the folder: its line, or what is wrong with it."""

    name: str
    """The path of its folder within the one that is looked at."""
    state: RunState | None
    flaw: str = ""


class _Slot:
    """An open query and what the files of its run were when it was opened; for the thread that has the lock."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.query: Query | None = None
        self.files: object = None

    def close(self) -> None:
        if self.query is not None:
            self.query.close()
        self.query = None


class Shelf:
    """The runs in `folder`, or the one that it is. Methods may be called from any thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = Lock()
        self._slots: dict[tuple[Path, bool], _Slot] = {}
        self._states: dict[str, tuple[object, RunState]] = {}
        """Runs at which nobody is at work, with their files: a list of a thousand is asked for again and again."""
        self._flaws: dict[str, tuple[object, str]] = {}
        """Flaws that were met when a run was opened, with the files that had them."""

    def folders(self) -> dict[str, Path]:
        """The run folders by name, latest first. A name is text that a URL can hold, also of a folder whose name is not UTF-8."""
        if (self.folder / FILE).is_file():
            return {storable(self.folder.resolve().name): self.folder}
        return {storable(run.relative_to(self.folder).as_posix()): run for run in run_folders(self.folder, DEPTH)}

    def runs(self) -> list[ListedRun]:
        """Every run, latest first; one that cannot be read with the reason."""
        return [self._listed(name, folder) for name, folder in self.folders().items()]

    def listed(self, name: str) -> ListedRun:
        """The run of this name; raises `UsageError` where there is none."""
        return self._listed(name, self.folder_of(name))

    def folder_of(self, name: str) -> Path:
        """The folder of the run of this name; raises `UsageError` where there is none."""
        folders = self.folders()
        if name not in folders:
            raise UsageError(f"{self.folder}: no run {name!r}; {did_you_mean(name, folders)}")
        return folders[name]

    @contextmanager
    def query(self, name: str, *, takes_long: bool = False) -> Iterator[Query]:
        """The run of this name open for a thread; what `takes_long` keeps nobody else waiting.

        Raises `UsageError` where there is no such run, and `InputError` where it cannot be read.
        """
        folder = self.folder_of(name)
        slot = self._slot((folder, takes_long))
        with slot.lock:
            files = _files(folder)
            if slot.query is None or slot.files != files:
                slot.close()
                slot.query, slot.files = self._opened(name, folder), files
            yield slot.query

    def interrupt(self) -> None:
        """Let whoever asks a query now be told that it was interrupted."""
        for slot in list(self._slots.values()):
            if (query := slot.query) is not None:
                query.interrupt()

    def close(self) -> None:
        """Close all queries."""
        for slot in self._slots.values():
            with slot.lock:
                slot.close()

    def _slot(self, key: tuple[Path, bool]) -> _Slot:
        with self._lock:
            self._slots[key] = slot = self._slots.pop(key, None) or _Slot()
            for old in list(self._slots)[:-MOST_OPEN]:
                if self._slots[old].lock.acquire(blocking=False):
                    gone = self._slots.pop(old)
                    gone.close()
                    gone.lock.release()
            return slot

    def _opened(self, name: str, folder: Path) -> Query:
        try:
            return Query(folder)
        except InputError as error:
            self._flaws[name] = (_files(folder), str(error))
            raise

    def _listed(self, name: str, folder: Path) -> ListedRun:
        flawed, flaw = self._flaws.get(name, (None, ""))
        files, known = _files(folder), self._states.get(name)
        try:
            state = known[1] if known is not None and known[0] == files and not is_held(folder) else run_state(folder, name)
        except InputError as error:
            return ListedRun(name, None, str(error))
        if state.state not in ACTIVE:
            self._states[name] = files, state
        return ListedRun(name, state, flaw if flaw and flawed == files else "")


def _files(folder: Path) -> object:
    """What tells the files of a run from those that it had: their names, sizes and times."""
    found = []
    for place in (folder, *(folder / table for table in TABLES)):
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                with suppress(OSError):
                    about = entry.stat()
                    found.append((entry.path, about.st_size, about.st_mtime_ns))
    return sorted(found)
