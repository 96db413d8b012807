"""The runs of a folder by name: what `show DIR` says of each of them, and its figures. Functions may be called from any thread.

What is read of a run is kept until a file of it changes.
"""

import os
from collections.abc import Hashable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from msgspec import Struct, structs

from pipeline.analysis.headline import SUFFIX
from pipeline.analysis.progress import RunState, run_folders, run_state
from pipeline.errors import InputError, UsageError, did_you_mean
from pipeline.files import storable
from pipeline.show.sections import RunFigures, run_figures
from pipeline.store.folder import FILE, is_held
from pipeline.store.query import TABLES, Query

DEPTH = 3
"""How many levels down runs are looked for: those of a sweep are in `SWEEP/runs`."""


class ListedRun(Struct, frozen=True):
    """A run of the folder: its line, or what is wrong with it."""

    name: str
    """The path of its folder within the one that is looked at."""
    state: RunState | None
    flaw: str = ""
    times_as_fast: float | None = None
    """Its problems/s over those of its own baseline, where there is one."""


def runs_by_name(shelf: Path) -> dict[str, Path]:
    """The run folders in `shelf`, or the one that it is, latest first. A name is text that a URL can hold, also of a folder whose name is
    not UTF-8."""
    if (shelf / FILE).is_file():
        return {storable(shelf.resolve().name): shelf}
    return {storable(run.relative_to(shelf).as_posix()): run for run in run_folders(shelf, DEPTH)}


def listed_runs(shelf: Path) -> list[ListedRun]:
    """Every run, latest first; one that cannot be read with the reason."""
    found = [_listed(name, folder, is_held(folder), _files(folder)) for name, folder in runs_by_name(shelf).items()]
    finished = [each.state for each in found if each.state and each.state.state == "finished"]
    rates = {state.folder: state.problems_per_s for state in finished if state.problems_per_s}
    ratios = {name: rates[name] / rates[name + SUFFIX] for name in rates if name + SUFFIX in rates}
    return [structs.replace(each, times_as_fast=ratios.get(each.name)) for each in found]


def folder_of(shelf: Path, name: str) -> Path:
    """The folder of the run of this name; raises `UsageError` where there is none."""
    folders = runs_by_name(shelf)
    if name not in folders:
        raise UsageError(f"{shelf}: no run {name!r}; {did_you_mean(name, folders)}")
    return folders[name]


def figures_of(folder: Path) -> RunFigures:
    """The figures of a run; raises `InputError` where it cannot be read."""
    return _figures(folder, _files(folder))


@lru_cache(8)
def _figures(folder: Path, files: Hashable) -> RunFigures:
    with Query(folder) as db:
        return run_figures(folder, db)


@lru_cache(4096)
def _listed(name: str, folder: Path, held: bool, files: Hashable) -> ListedRun:
    """A list of a thousand runs is asked for again and again while one of them goes on."""
    try:
        return ListedRun(name, run_state(folder, name))
    except InputError as error:
        return ListedRun(name, None, str(error))


def _files(folder: Path) -> Hashable:
    """What tells the files of a run from those that it had: their names, sizes and times."""
    found = []
    for place in (folder, *(folder / table for table in TABLES)):
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                with suppress(OSError):
                    about = entry.stat()
                    found.append((entry.path, about.st_size, about.st_mtime_ns))
    return tuple(sorted(found))
