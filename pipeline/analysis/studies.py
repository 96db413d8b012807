"""What a study shows: its folder enters, the papers' tables over its runs leave, and which of its points are compared with each other.

A study is a sweep whose file `sweep.json` says so; runs that are not finished are in no table.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from pipeline.analysis.compare import read_runs
from pipeline.analysis.facts import of_facts
from pipeline.analysis.papers import paper_table
from pipeline.analysis.points import Point
from pipeline.analysis.tables import Table
from pipeline.errors import InputError, UsageError, boundary
from pipeline.graph.spec import Param

SWEEP = "sweep.json"
"""The file in the folder of a sweep that says what its points share."""


class StudyTables(Struct, frozen=True, kw_only=True):
    """Tables over some of the runs of a study."""

    names: tuple[str, ...]
    """As of `compare --table`."""
    runs: tuple[str, ...]
    """The folders of the runs, in the folder `runs` of the study."""


class Place(Struct, frozen=True, kw_only=True):
    """What a run is among those that it is compared with, as fields of its `Coordinates`; in another part of the study it may be something
    else."""

    system: str
    params: dict[str, Param]
    engines: str
    baseline: bool
    unlike: tuple[str, ...]


class Study(Struct, frozen=True, kw_only=True):
    """What a study compares and shows."""

    name: str
    title: str
    source: str
    """Paper, table or figure, and section."""
    small: bool
    """Whether this is its small form, which is not what the source measured."""
    tables: tuple[StudyTables, ...]
    groups: dict[str, dict[str, Place]]
    """By heading, the folders of the points that are compared with each other: over the same problems, with the same values of the params
    that the baseline has as well."""

    rewards: dict[str, tuple[str, ...]] = {}
    """By reward model the folders of the runs whose steps it scores."""

    @property
    def heading(self) -> str:
        """Its title and source."""
        small = ", in its small form" if self.small else ""
        return f"{self.title} ({self.source}{small})" if self.source else f"{self.title}{small}"


class _Card(Struct, frozen=True):
    """What is read of `sweep.json`."""

    study: Study | None = None


def read_study(folder: Path) -> Study | None:
    """The study in `folder`, None where that holds another sweep; raises `InputError` for a file that is none of a sweep."""
    with boundary(InputError, str(folder / SWEEP), foreign=(OSError, msgspec.MsgspecError)):
        return msgspec.json.decode((folder / SWEEP).read_bytes(), type=_Card).study


def study_tables(folder: Path, study: Study, points: Sequence[Point]) -> Iterator[str | Table]:
    """The tables of a study over its finished points; a sentence for one that cannot be made, for runs that are missing, and for what is
    simulated."""
    finished = {point.folder for point in points}
    empty = {point.folder for point in points if point.failed == point.chains}
    for tables in study.tables:
        there = [folder / "runs" / name for name in tables.runs if name in finished - empty]
        runs = read_runs(there, pooled=True) if there else []
        for name in tables.names if runs else ():
            try:
                yield paper_table(name, runs)
            except UsageError as error:
                yield f"{name}: {error}."
    missing = {name for tables in study.tables for name in tables.runs} - finished
    if missing:
        yield f"{len(missing)} runs of these tables are not finished: they are in none of them."
    if failed := [name for name in dict.fromkeys(name for tables in study.tables for name in tables.runs) if name in empty]:
        yield f"All chains failed in {', '.join(failed)}: in none of these tables."
    yield from _simulated(points)


def _simulated(points: Sequence[Point]) -> Iterator[str]:
    simulated = [point for point in points if point.simulated]
    if simulated:
        machines = list(dict.fromkeys(point.engines for point in simulated if point.engines))
        which = "All runs" if len(simulated) == len(points) else f"Runs on {', '.join(machines)}"
        yield f"{which} are simulated: their answers are invented, so that their accuracy means nothing. {of_facts(_facts(simulated))}"


def _facts(points: Sequence[Point]) -> list[Any]:
    return [facts for point in points for facts in point.facts.values()]


def grouped(study: Study, points: Sequence[Point]) -> Mapping[str, list[Point]]:
    """By heading the finished points that are compared with each other; nothing of groups without any."""
    by_folder = {point.folder: point for point in points}
    found = {
        heading: [structs.replace(by_folder[name], **structs.asdict(place)) for name, place in places.items() if name in by_folder]
        for heading, places in study.groups.items()
    }
    return {heading: members for heading, members in found.items() if members}
