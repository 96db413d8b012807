"""The runs of a folder, open for questions: names enter, what `show DIR` says of each run, open queries and figures leave.

A query stays open until a file of its run changes, so that a run in progress is read as it is now and another one only once.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from msgspec import Struct

from pipeline.analysis.headline import SUFFIX
from pipeline.analysis.progress import RunState, run_folders, run_state
from pipeline.errors import InputError, UsageError, did_you_mean
from pipeline.files import storable
from pipeline.show.sections import RunFigures, run_figures
from pipeline.store.folder import FILE, is_held
from pipeline.store.query import TABLES, Query

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
    times_as_fast: float | None = None
    """Its problems/s over those of its own baseline, where there is one."""


class OpenRun:
    """A run open for questions by one thread at a time, opened again once its files have changed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, Lock()
        self._query: Query | None = None
        self._files: object = None
        self._figures: RunFigures | None = None

    @contextmanager
    def query(self) -> Iterator[Query]:
        """The open run, for a thread; raises `InputError` where it cannot be read."""
        with self._lock:
            files = _files(self._folder)
            if self._query is None or self._files != files:
                self._query = self._figures = None
                self._query, self._files = Query(self._folder), files
            yield self._query

    def figures(self) -> RunFigures:
        """Its figures, worked out once."""
        with self.query() as query:
            self._figures = self._figures or run_figures(self._folder, query)
            return self._figures

    def interrupt(self) -> None:
        """Interrupt the query that is being asked."""
        if (query := self._query) is not None:
            query.interrupt()


class Shelf:
    """The runs in `folder`, or the one that it is. Methods may be called from any thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = Lock()
        self._runs: dict[tuple[Path, bool], OpenRun] = {}
        self._states: dict[str, tuple[object, RunState]] = {}
        """Runs at which nobody is at work, with their files: a list of a thousand is asked for again and again."""

    def folders(self) -> dict[str, Path]:
        """The run folders by name, latest first. A name is text that a URL can hold, also of a folder whose name is not UTF-8."""
        if (self.folder / FILE).is_file():
            return {storable(self.folder.resolve().name): self.folder}
        return {storable(run.relative_to(self.folder).as_posix()): run for run in run_folders(self.folder, DEPTH)}

    def runs(self) -> list[ListedRun]:
        """Every run, latest first; one that cannot be read with the reason."""
        found = {name: self._listed(name, folder) for name, folder in self.folders().items()}
        return [_beside(each, found.get(name + SUFFIX)) for name, each in found.items()]

    def state(self, name: str) -> RunState:
        """The run of this name; raises `UsageError` where there is none, or it cannot be read."""
        listed = self._listed(name, self.folder_of(name))
        if listed.state is None:
            raise UsageError(listed.flaw)
        return listed.state

    def folder_of(self, name: str) -> Path:
        """The folder of the run of this name; raises `UsageError` where there is none."""
        folders = self.folders()
        if name not in folders:
            raise UsageError(f"{self.folder}: no run {name!r}; {did_you_mean(name, folders)}")
        return folders[name]

    def opened(self, name: str, *, slow: bool = False) -> OpenRun:
        """The run of this name, open a second time for what is `slow`; raises `UsageError` where there is none."""
        folder = self.folder_of(name)
        with self._lock:
            self._runs[folder, slow] = run = self._runs.pop((folder, slow), None) or OpenRun(folder)
            for old in list(self._runs)[:-MOST_OPEN]:
                del self._runs[old]  # its query is closed when the last thread leaves it
            return run

    def interrupt(self) -> None:
        """Interrupt all queries that are being asked."""
        for run in list(self._runs.values()):
            run.interrupt()

    def _listed(self, name: str, folder: Path) -> ListedRun:
        files, known = _files(folder), self._states.get(name)
        try:
            state = known[1] if known is not None and known[0] == files and not is_held(folder) else run_state(folder, name)
        except InputError as error:
            return ListedRun(name, None, str(error))
        if state.state != "running":
            self._states[name] = files, state
        return ListedRun(name, state)


def _beside(run: ListedRun, baseline: ListedRun | None) -> ListedRun:
    """A run with its ratio to its baseline."""
    rates = [each.state.problems_per_s for each in (run, baseline) if each and each.state and each.state.state == "finished"]
    if len(rates) < 2 or not rates[0] or not rates[1]:
        return run
    return ListedRun(run.name, run.state, run.flaw, rates[0] / rates[1])


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
