"""What a sweep will run: options and graphs enter, points in the order in which they run leave. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from msgspec import Struct

from pipeline.analysis.points import Coordinates
from pipeline.errors import UsageError
from pipeline.graph.plan import Plan
from pipeline.runtime.admission.admission import AdmissionName
from pipeline.runtime.schedule import ScheduleName


class SweepOptions(Struct, frozen=True, kw_only=True):
    """The options of a sweep, as a user gives them."""

    graphs: tuple[Path, ...]
    input: Path
    batch_sizes: tuple[int, ...]
    schedules: tuple[ScheduleName, ...] = ("pipelined",)
    admission: AdmissionName = "cache"
    order: str = "input"
    """See `RunOptions.order`."""
    vary: dict[str, tuple[str, ...]] = {}
    """Values of params that vary, by the param's name; every combination is a curve of its own."""
    repeats: int = 3
    """Runs of every point; simulated ones run once, because they would be equal."""
    baseline: Path | None = None
    """The graph of the target alone; by default `target.yaml` beside the first graph, else the bundled one."""
    engines: Path | None = None
    """An engines file for all graphs."""
    settings: tuple[str, ...] = ()
    """Settings for all graphs, as `NAME=VALUE`."""
    columns: dict[str, str] = {}
    samples: int = 1
    limit: int | None = None
    """Number of problems that are solved; by default all."""
    seed: int = 0
    output: Path | None = None
    """The sweep's folder; by default `sweeps/GRAPH-TIME`."""
    resume: bool = False
    """Go on with the sweep in `output`: points that are finished are not run again."""
    processes: int | None = None
    """Most points on simulated engines that run side by side, each in a process; None: as many as there are cores. 1: one after the
    other in this process, as points on real engines always run."""


class System(Struct, frozen=True, kw_only=True):
    """One graph with one setting of the params that vary."""

    graph: Path
    settings: tuple[str, ...]
    """All settings of the graph, as `NAME=VALUE`."""
    plan: Plan
    varied: dict[str, bool | int | float | str]
    """Values of the params that vary."""
    baseline: bool
    """Whether this is the target alone, with which the others are compared."""

    @property
    def label(self) -> str:
        """The graph's name and the params that vary: `speccot candidates=5`."""
        return " ".join([self.plan.name, *(f"{name}={value}" for name, value in self.varied.items())])


class PlannedPoint(Struct, frozen=True, kw_only=True):
    """A point that is to be run."""

    system: System
    coordinates: Coordinates

    @property
    def name(self) -> str:
        """The name of its folder, which does not depend on the other points of the sweep."""
        coordinates = self.coordinates
        text = f"{coordinates.system} {coordinates.schedule} b{coordinates.batch_size} r{coordinates.repeat}"
        return re.sub(r"[^\w.=+-]+", "_", text)


def combinations(vary: Mapping[str, Sequence[str]], params: Mapping[str, object]) -> list[dict[str, str]]:
    """Every choice of a value for each varied param that a graph with `params` has; one empty choice where it has none."""
    own = {name: values for name, values in vary.items() if name in params}
    return [dict(zip(own, values, strict=True)) for values in product(*own.values())]


def check_varied(vary: Mapping[str, Sequence[str]], graphs: Mapping[str, Mapping[str, object]]) -> None:
    """Raise `UsageError` for a param that none of the graphs has, or a value that is named twice; `graphs`: params by name."""
    for name, values in vary.items():
        if not any(name in params for params in graphs.values()):
            known = ", ".join(sorted({param for params in graphs.values() for param in params})) or "none"
            raise UsageError(
                f"--vary {name}: {' and '.join(graphs)} {'has' if len(graphs) == 1 else 'have'} no such param; there are {known}"
            )
        if len(set(values)) < len(values):
            raise UsageError(f"--vary {name}={','.join(values)}: a value is named twice")


def planned_points(systems: Sequence[System], options: SweepOptions, repeats: int) -> list[PlannedPoint]:
    """All points in the order in which they run: each repeat runs all of them, every second one in reverse order, so that a drift of the
    machine affects all points alike."""
    found: list[PlannedPoint] = []
    for repeat in range(repeats):
        once = list(_round(systems, options, repeat))
        found += once if repeat % 2 == 0 else reversed(once)
    return found


def _round(systems: Sequence[System], options: SweepOptions, repeat: int) -> Iterator[PlannedPoint]:
    for batch_size in options.batch_sizes:
        for system in systems:
            for schedule in _schedules(system, options):
                if schedule == "sequential" and batch_size != min(options.batch_sizes):
                    continue  # one chain at a time, whatever the batch size
                coordinates = Coordinates(
                    system=system.label,
                    graph=system.plan.name,
                    params=system.varied,
                    schedule=schedule,
                    batch_size=1 if schedule == "sequential" else batch_size,
                    repeat=repeat,
                    baseline=system.baseline,
                )
                yield PlannedPoint(system=system, coordinates=coordinates)


def _schedules(system: System, options: SweepOptions) -> Sequence[ScheduleName]:
    """The schedules of a system. The target alone has one call a chain, for which all schedules are the same."""
    return ("pipelined",) if system.baseline else options.schedules
