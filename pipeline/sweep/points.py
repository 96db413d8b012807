"""The points of a sweep that is prepared, and how each is run: a planned point and open engines enter, a measured `Point` leaves."""

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct

from pipeline.analysis.points import Point, point_of_run
from pipeline.data.reading import read_files
from pipeline.engine import Engine, PrefixCacheReset
from pipeline.options import RunOptions
from pipeline.run.observer import Observer
from pipeline.run.prepare import Prepared, check_toys, prepare
from pipeline.run.run import opened_engines, solve
from pipeline.store.kept_problems import Problems, keep_problems
from pipeline.sweep.plan import PlannedPoint, Rows, SweepOptions, SweepPlan, SweepSystem

Keep = Callable[[PlannedPoint, Point], object]
"""Called with each point when it is finished."""


class PreparedSweep(Struct, frozen=True, kw_only=True):
    """A sweep whose options have been checked."""

    plan: SweepPlan
    folder: Path

    @property
    def options(self) -> SweepOptions:
        """Those of its folder."""
        return self.plan.options

    @property
    def planned_points(self) -> list[PlannedPoint]:
        """All points, in the order in which they are run."""
        return self.plan.points

    def run_of(self, planned: PlannedPoint, folder: Path, **changes: Any) -> AbstractContextManager[Prepared]:
        """One run of the system of a point in a new `folder`, which is held until the end; `changes` are options of that run alone."""
        system = planned.system
        return prepare(run_options(planned.sweep, system, folder, **changes), system.plan, virtual=system.virtual)


def prepare_sweep(plan: SweepPlan, folder: Path) -> PreparedSweep:
    """Check everything that can be checked before an engine starts; raises `GraphError`, `InputError` and `UsageError`."""
    kept: dict[Rows, Problems] = {}
    with TemporaryDirectory(prefix="problems-") as place:
        for point in plan.points:
            options, rows = run_options(point.sweep, point.system, folder), point.sweep.rows
            if rows not in kept:
                files = read_files([point.sweep.input], options.columns, options.part)
                part = Path(place, str(len(kept)))
                part.mkdir()
                kept[rows] = keep_problems(part, files, options.limit)
            check_toys(point.system.plan, options, kept[rows])
    return PreparedSweep(plan=plan, folder=folder)


def run_options(options: SweepOptions, system: SweepSystem, folder: Path, **changes: Any) -> RunOptions:
    """The options of one run of a sweep; `changes` are options of that run alone, such as its batch size."""
    own: dict[str, Any] = {
        "graph": system.graph,
        "input": (str(options.input),),
        "engines": system.engines_file,
        "planned_engines": bound if isinstance(bound := options.bound(system.engines_file), dict) else {},
        "settings": system.settings,
        "columns": options.columns,
        "samples": options.samples,
        "limit": options.limit,
        "random": options.random,
        "seed": options.seed,
        "admission": options.admission,
        "output": folder,
    }
    return RunOptions(**own | changes)


class SweepRunner:
    """Runs points on engines that are open for all of them, and has each kept when it is finished."""

    def __init__(self, prepared: PreparedSweep, observer: Observer, keep: Keep) -> None:
        self._prepared, self._observer, self._keep = prepared, observer, keep

    async def run(self, part: Sequence[PlannedPoint]) -> None:
        """Run the points of `part`, which need the same engines, one after the other; raises the error that ends a run early."""
        async with opened_engines(part[0].system.engines, self._observer) as engines:
            await self._warm_up(part, engines)
            for planned in part:
                await self._point(engines, planned)

    async def _warm_up(self, part: Sequence[PlannedPoint], engines: Mapping[str, Engine]) -> None:
        """Let every system of `part` solve a few problems at the largest batch size: kernels are compiled, buffers get their size."""
        prepared = self._prepared
        if part[0].system.virtual:
            return
        most = prepared.options.warm_up
        self._observer.tell(f"warming up with {most} problems")
        with TemporaryDirectory(prefix="warm-up-", dir=prepared.folder) as folder:
            rising = sorted(part, key=lambda each: each.coordinates.batch_size)
            for planned in {each.system.plan.digest: each for each in rising}.values():
                limit, batch_size = min(most, planned.sweep.limit or most), planned.coordinates.batch_size
                place = Path(folder) / planned.system.plan.digest[:16]
                with prepared.run_of(planned, place, limit=limit, random=None, batch_size=batch_size) as run:
                    await self._solve(run, engines)

    async def _point(self, engines: Mapping[str, Engine], planned: PlannedPoint) -> None:
        """Run one point."""
        coordinates, prepared = planned.coordinates, self._prepared
        folder = prepared.folder / "runs" / planned.name
        if folder.is_symlink():
            folder.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        # Simulated engines are opened for one point.
        kept = not planned.system.virtual and await reset_caches(engines, planned.system.plan.engines)
        with prepared.run_of(planned, folder, **planned.options) as run:
            await self._solve(run, engines)
        self._keep(planned, point_of_run(folder, coordinates, simulated=planned.system.virtual, cache_kept=kept))

    async def _solve(self, run: Prepared, engines: Mapping[str, Engine]) -> None:
        """Carry out a run; raises the error that ends it early."""
        result = await solve(run, self._observer, engines=engines)
        if result.error is not None:
            raise result.error


async def reset_caches(engines: Mapping[str, Engine], roles: Collection[str]) -> bool:
    """Empty the prefix caches of the engines `roles`; True if one of them cannot be emptied."""
    resettable = [engine for role, engine in engines.items() if role in roles and isinstance(engine, PrefixCacheReset)]
    for engine in resettable:
        await engine.reset_prefix_cache()
    return len(resettable) < len(roles)
