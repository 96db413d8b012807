"""A study is a list of points, and a point is the options of a run with a label: systems enter, points in the order in which they run
leave. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from pipeline.analysis.curves import Label, SweepCard
from pipeline.errors import UsageError
from pipeline.graph.plan import Plan
from pipeline.graph.spec import EngineSpec
from pipeline.options import RunOptions
from pipeline.study.systems import Matrix, System, read_systems, said

LEAST_TIMES = 16
"""Problems per place of the largest batch size, below which the tail decides the throughput."""


class Point(Struct, frozen=True, kw_only=True):
    """A run that is to be made."""

    label: Label
    options: RunOptions
    plan: Plan
    virtual: bool
    """Whether its time is simulated."""

    @property
    def folder(self) -> str:
        """The name of its run folder."""
        return self.label.folder

    @property
    def rows(self) -> tuple[Any, ...]:
        """What says which problems are solved."""
        return self.options.input, tuple(sorted(self.options.columns.items())), self.options.limit, self.options.random

    @property
    def run(self) -> Any:
        """What is equal of two points that would make the same run."""
        return self.plan.digest, self.plan.engines, structs.replace(self.options, graph=Path(), settings=())


class Study(Struct, frozen=True, kw_only=True):
    """All that a sweep or a study file runs, and how its folder is used."""

    name: str
    title: str = ""
    groups: dict[str, tuple[Point, ...]]
    """By heading the points that are compared with each other; points of one folder are one run."""
    tables: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The papers' tables, each with the folders of its runs."""
    told: tuple[str, ...] = ()
    """Notices about its systems and their engines."""
    folder: RunOptions
    """Its `output`, `resume` and `fail_on_error` hold for the whole folder."""

    @property
    def points(self) -> list[Point]:
        """Each run once, those on the same engines in sequence, so that engines are started as rarely as possible; every second repeat
        runs in reverse order, so that a drift of the machine affects all points alike."""
        found = {point.folder: point for points in self.groups.values() for point in points}
        engines = list(dict.fromkeys(repr(point.plan.engines) for point in found.values()))
        ordered = sorted(found.values(), key=lambda point: engines.index(repr(point.plan.engines)))
        last = max((point.label.repeat for point in ordered), default=-1)
        return [point for repeat in range(1 + last) for point in ordered[:: -1 if repeat % 2 else 1] if point.label.repeat == repeat]

    @property
    def card(self) -> SweepCard:
        """What its folder says of itself."""
        groups = {heading: tuple(point.label for point in points) for heading, points in self.groups.items()}
        return SweepCard(title=self.title, groups=groups, tables=self.tables)


def plan_sweep(matrix: Matrix) -> Study:
    """What a sweep from the command line runs; raises as `read_systems`, and where only some of its systems are simulated."""
    systems = read_systems(matrix)
    if len({system.virtual for system in systems}) > 1:
        simulated = ", ".join(dict.fromkeys(system.engines or system.name for system in systems if system.virtual))
        raise UsageError(f"--engines: {simulated} would run on simulated time, the others not; simulate all of them or none")
    name = next((system.plan.name for system in systems if not system.baseline), systems[0].plan.name)
    return Study(name=name, groups=grid(matrix, systems), folder=matrix.shared, told=tuple(dict.fromkeys(said(systems))))


def grid(matrix: Matrix, systems: Sequence[System]) -> dict[str, tuple[Point, ...]]:
    """By data set all points of these systems."""
    times = [(repeat, system) for repeat in range(matrix.repeats) for system in systems if not (repeat and system.virtual)]
    return {
        data: tuple(point for repeat, system in times for point in _points(matrix, system, data, rows, repeat))
        for data, rows in (matrix.data or {"": {}}).items()
    }


def _points(matrix: Matrix, system: System, data: str, rows: Mapping[str, Any], repeat: int) -> Iterator[Point]:
    """The points of a system over one data set. One chain at a time is the same at any batch size, and the target alone has one call a
    chain, for which all schedules are the same."""
    for schedule in ("pipelined",) if system.baseline else matrix.schedules:
        for size in matrix.batch_sizes if schedule != "sequential" else (1,):
            for seed in matrix.seeds:
                label = Label(
                    system=system.name,
                    engines=system.engines,
                    data=data,
                    schedule=schedule,
                    batch_size=size,
                    repeat=repeat,
                    seed=seed if len(matrix.seeds) > 1 else None,
                    baseline=system.baseline,
                )
                own: dict[str, Any] = {"schedule": schedule, "batch_size": size, "seed": seed, "output": None, "resume": False, **rows}
                yield Point(label=label, options=structs.replace(system.options, **own), plan=system.plan, virtual=system.virtual)


def same_engines(points: Sequence[Point]) -> Iterator[tuple[dict[str, EngineSpec], list[Point]]]:
    """`points` cut wherever other engines are needed than those that are open, each part with its engines by role."""
    part, open_ = list[Point](), dict[str, EngineSpec]()
    for point in points:
        own = point.plan.engines
        if part and not (own.items() <= open_.items() or open_.items() <= own.items()):
            yield open_, part
            part, open_ = [], {}
        part, open_ = [*part, point], {**open_, **own}
    if part:
        yield open_, part
