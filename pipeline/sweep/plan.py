"""What a sweep will run: options and graphs enter, points in the order in which they run leave. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from pipeline.analysis.points import Coordinates
from pipeline.analysis.studies import Study
from pipeline.errors import UsageError
from pipeline.graph.files import shown
from pipeline.graph.plan import Plan
from pipeline.graph.rules import virtual_time
from pipeline.graph.spec import EngineSpec, Param
from pipeline.options import AdmissionKind, Columns, FailedShare, Limit, Random, Samples, ScheduleName, Seed


class Rows(NamedTuple):
    """Which problems are solved."""

    input: Path
    columns: tuple[tuple[str, str], ...]
    limit: int | None
    random: str | None


class SweepOptions(Struct, frozen=True, kw_only=True):
    """The options of a sweep, as a user gives them."""

    graphs: tuple[Path, ...]
    input: Path
    batch_sizes: tuple[int, ...]
    schedules: tuple[ScheduleName, ...] = ("pipelined",)
    admission: AdmissionKind = "cache"
    vary: dict[str, tuple[str, ...]] = {}
    """Values of params that vary, by the param's name; every combination is a separate curve."""
    choices: dict[Path, tuple[dict[str, str], ...]] = {}
    """By graph the values of params, a curve for each of these choices; without them those that `vary` gives."""
    repeats: int = 3
    """Runs of every point; simulated ones run once, because they would be equal."""
    baseline: Path | None = None
    """The graph of the target alone; by default `target.yaml` next to the first graph, else the bundled one."""
    engines: tuple[Path, ...] = ()
    """Engines files for all graphs; several are compared with each other. By default what the graphs name."""
    planned_engines: dict[str, dict[str, Any]] = {}
    """As in `RunOptions`, for all systems but those on `baseline_engines`."""
    baseline_engines: tuple[Path, ...] = ()
    """Engines files on which the target alone runs as well, such as one with token-level speculation."""
    settings: tuple[str, ...] = ()
    """Settings for all graphs and all engines files that have such a param, stage or role, as `NAME=VALUE`."""
    columns: Columns = {}
    samples: Samples = 1
    limit: Limit | None = None
    random: Random | None = None
    seed: Seed = 0
    output: Path | None = None
    """The sweep's folder; by default `sweeps/GRAPH-TIME`."""
    fail_on_error: FailedShare = 0.0
    """The sweep counts as failed (exit code 3) only if a larger share of all its chains failed."""
    warm_up: int = 32
    """Problems that every system solves on real engines before the first point."""
    resume: bool = False
    """Go on with the sweep in `output`: points that are finished are not run again."""
    workers: int | None = None
    """Most simulated points that run side by side, each in a process; None: as many as there are cores, 1: one after the other in this
    process. Those on real engines run one after the other."""

    @property
    def rows(self) -> "Rows":
        """What says which problems are solved; equal for sweeps over the same ones."""
        return Rows(self.input, tuple(sorted(self.columns.items())), self.limit, self.random)

    def bound(self, file: Path | None) -> Path | dict[str, dict[str, Any]] | None:
        """The engines of systems on an engines file, None for those that the graphs name; see `RunOptions.bound_engines`."""
        return file if file in self.baseline_engines else self.planned_engines or file


class SweepSystem(Struct, frozen=True, kw_only=True):
    """One graph on one engines file, with one setting of the params that vary."""

    graph: Path
    engines_file: Path | None
    """None: the engines that the graph names."""
    placement: str
    """The engines file's name where the sweep has several, else empty."""
    settings: tuple[str, ...]
    """All settings of graph and engines, as `NAME=VALUE`."""
    widened: tuple[str, ...] = ()
    """Those of `settings` that give it the memory of engines that it does not use."""
    plan: Plan
    engines: dict[str, EngineSpec]
    """The engines that are open while it runs, by role: those of the plan and those of the systems that it shares them with."""
    varied: dict[str, Param]
    """Values of the params that vary."""
    baseline: bool
    """True if this is the target alone, with which the others are compared."""
    unlike: tuple[str, ...] = ()
    """What is not as it is for the target alone, as clauses."""

    @property
    def virtual(self) -> bool:
        """Whether its engines compute on a simulated clock."""
        return virtual_time(self.engines, str(self.graph))

    @property
    def label(self) -> str:
        """The graph's name, the params that vary, and the engines file where there are several: `speccot candidates=5 on sim-2xh100`."""
        place = ["on", self.placement] if self.placement else []
        return " ".join(filter(None, [self.plan.name, shown(self.varied), *place]))


class PlannedPoint(Struct, frozen=True, kw_only=True):
    """A point that is to be run."""

    system: SweepSystem
    coordinates: Coordinates
    sweep: SweepOptions
    """The options that it shares with the points that it is compared with."""

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.coordinates.folder

    @property
    def options(self) -> dict[str, Any]:
        """The options that its run does not share with the others."""
        return {"batch_size": self.coordinates.batch_size, "schedule": self.coordinates.schedule}


class SweepPlan(Struct, frozen=True, kw_only=True):
    """All that a sweep or a study will run."""

    name: str
    options: SweepOptions
    """Those that are of the folder: `output`, `resume`, `workers`, `warm_up` and `fail_on_error`."""
    points: list[PlannedPoint]
    """In the order in which they run."""
    remarks: tuple[str, ...] = ()
    """Notices about its baselines and what is unlike."""
    study: Study | None = None

    @property
    def systems(self) -> list[SweepSystem]:
        """Each system once."""
        return list({point.system.label: point.system for point in self.points}.values())


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


def planned_points(systems: Sequence[SweepSystem], options: SweepOptions, repeats: int) -> list[PlannedPoint]:
    """All points in the order in which they run: each repeat runs all of them, every second one in reverse order, so that a drift of the
    machine affects all points alike."""
    found: list[PlannedPoint] = []
    for repeat in range(repeats):
        once = list(_round(systems, options, repeat))
        found += once if repeat % 2 == 0 else reversed(once)
    return found


def together(points: Sequence[PlannedPoint]) -> list[PlannedPoint]:
    """`points` with those of one repeat on the same engines in sequence, so that engines are started as rarely as possible; the first
    are those with most engines, which are likeliest to fail, and every second repeat continues with the engines of the one before."""
    counts = {repr(point.system.engines): len(point.system.engines) for point in points}
    order = {engines: place for place, engines in enumerate(sorted(counts, key=lambda engines: -counts[engines]))}

    def place(point: PlannedPoint) -> tuple[int, int]:
        repeat, engines = point.coordinates.repeat, order[repr(point.system.engines)]
        return repeat, engines if repeat % 2 == 0 else -engines

    return sorted(points, key=place)


def parts(points: Sequence[PlannedPoint]) -> list[list[PlannedPoint]]:
    """`points` cut wherever other engines are needed than before."""
    return [list(part) for _, part in groupby(points, key=lambda point: repr(point.system.engines))]


def _round(systems: Sequence[SweepSystem], options: SweepOptions, repeat: int) -> Iterator[PlannedPoint]:
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
                    engines=system.placement,
                    unlike=system.unlike,
                )
                yield PlannedPoint(system=system, coordinates=coordinates, sweep=options)


def _schedules(system: SweepSystem, options: SweepOptions) -> Sequence[ScheduleName]:
    """The schedules of a system. The target alone has one call a chain, for which all schedules are the same."""
    return ("pipelined",) if system.baseline else options.schedules
