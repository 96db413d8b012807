"""The points of a sweep that is prepared, and how each is run: a planned point and open engines enter, a measured `Point` leaves."""

import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct

from pipeline.analysis.points import Point, point_of_run
from pipeline.data.many_files import open_files
from pipeline.data.problems import Fingerprint, Problems
from pipeline.engine import Engine, PrefixCacheReset
from pipeline.errors import UsageError
from pipeline.session.knowledge import NOTHING
from pipeline.session.observer import Observer
from pipeline.session.options import RunOptions
from pipeline.session.prepare import Prepared, Thoughts, check_replay, earlier_thoughts, prepare
from pipeline.session.run import opened_engines, solve_on
from pipeline.store.folder import hold
from pipeline.store.run_file import RunFile
from pipeline.sweep.plan import PlannedPoint, SweepOptions, SweepSystem, planned_points, together
from pipeline.sweep.systems import all_virtual
from pipeline.system.machine import core_count

Keep = Callable[[PlannedPoint, Point], object]
"""Called with each point when it is finished."""


class PreparedSweep(Struct, frozen=True, kw_only=True):
    """A sweep whose options have been checked."""

    options: SweepOptions
    systems: list[SweepSystem]
    problems: Problems
    fingerprint: Fingerprint
    virtual_time: bool
    earlier_thoughts: Thoughts
    """Lengths of thoughts by which chains are put in order."""
    folder: Path
    planned_points: list[PlannedPoint]
    """All points, in the order in which they are run."""

    @property
    def processes(self) -> int:
        """Most points that run side by side."""
        return (self.options.workers or core_count()) if self.virtual_time else 1

    def run_of(self, system: SweepSystem, folder: Path, **changes: Any) -> Prepared:
        """One run of `system` in `folder`, a new one that is the sweep's; `changes` are options of that run alone."""
        options = run_options(self.options, system, folder, **changes)
        problems, fingerprint = self.problems, self.fingerprint
        if changes.keys() & {"limit", "random"}:
            problems = open_files((options.input,), options.columns, options.part)
            fingerprint = problems.check()
        return prepare(
            options,
            system.plan,
            problems,
            folder,
            virtual=self.virtual_time,
            fingerprint=fingerprint,
            earlier=self.earlier_thoughts,
        )


def prepare_sweep(options: SweepOptions, systems: list[SweepSystem], folder: Path) -> PreparedSweep:
    """Check everything that can be checked before an engine starts; raises `GraphError`, `InputError` and `UsageError`."""
    virtual = all_virtual(systems)
    if not virtual and (options.workers or 1) > 1:
        raise UsageError(f"--workers {options.workers}: only points on simulated engines run in parallel; leave it out, or use 1")
    if known := [each for each in options.settings if not any(each in system.settings for system in systems)]:
        raise UsageError(f"--set {known[0]}: none of the graphs has such a param")
    problems = open_files((options.input,), options.columns, run_options(options, systems[0], folder).part)
    fingerprint = problems.check()
    for system in systems:
        check_replay(system.plan, run_options(options, system, folder), fingerprint)
    return PreparedSweep(
        options=options,
        systems=systems,
        problems=problems,
        fingerprint=fingerprint,
        virtual_time=virtual,
        earlier_thoughts=earlier_thoughts(options.order),
        folder=folder,
        planned_points=planned_points(systems, options, 1) if virtual else together(planned_points(systems, options, options.repeats)),
    )


def run_options(options: SweepOptions, system: SweepSystem, folder: Path, **changes: Any) -> RunOptions:
    """The options of one run of a sweep; `changes` are options of that run alone, such as its batch size."""
    own: dict[str, Any] = {
        "graph": system.graph,
        "input": options.input,
        "engines": system.engines_file,
        "planned_engines": bound if isinstance(bound := options.bound(system.engines_file), dict) else {},
        "settings": system.settings,
        "columns": options.columns,
        "samples": options.samples,
        "limit": options.limit,
        "random": options.random,
        "seed": options.seed,
        "admission": options.admission,
        "order": options.order,
        "speculate_from": NOTHING,  # points are not to depend on those before them, nor on the warm-up
        "output": folder,
        "keep_input": False,  # once for each point
    }
    return RunOptions(**own | changes)


class SweepRunner:
    """Runs points on engines that are open for all of them, and has each kept when it is finished."""

    def __init__(self, prepared: PreparedSweep, observer: Observer, keep: Keep) -> None:
        self._prepared, self._observer, self._keep = prepared, observer, keep

    async def run(self, part: list[PlannedPoint]) -> None:
        """Run the points of `part`, which need the same engines, one after the other; raises the error that ends a run early."""
        async with opened_engines(part[0].system.engines, self._observer) as engines:
            await self._warm_up(part, engines)
            for planned in part:
                await self._point(engines, planned)

    async def _warm_up(self, part: list[PlannedPoint], engines: Mapping[str, Engine]) -> None:
        """Let every system of `part` solve a few problems at the largest batch size: kernels are compiled, buffers get their size."""
        prepared = self._prepared
        if prepared.virtual_time:
            return
        most = prepared.options.warm_up
        self._observer.tell(f"warming up with {most} problems")
        limit, batch_size = min(most, prepared.options.limit or most), max(prepared.options.batch_sizes)
        with TemporaryDirectory(prefix="warm-up-", dir=prepared.folder) as folder:
            for system in {each.system.label: each.system for each in part}.values():
                run = prepared.run_of(system, Path(folder) / system.plan.digest[:16], limit=limit, random=None, batch_size=batch_size)
                await self._solved(run, engines)

    async def _point(self, engines: Mapping[str, Engine], planned: PlannedPoint) -> None:
        """Run one point."""
        coordinates, prepared = planned.coordinates, self._prepared
        folder = prepared.folder / "runs" / planned.name
        if folder.is_symlink():
            folder.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        kept = await reset_caches(engines, planned.system.plan.engines)
        run = prepared.run_of(planned.system, folder, **planned.options)
        record = await self._solved(run, engines)
        cpu_s = record.orchestrator_cpu_s
        self._keep(planned, point_of_run(folder, coordinates, simulated=prepared.virtual_time, cpu_s=cpu_s, cache_kept=kept))

    async def _solved(self, run: Prepared, engines: Mapping[str, Engine]) -> RunFile:
        """Carry out a run and return its `run.json`; raises the error that ends it early."""
        assert run.folder is not None, "every point has a folder"
        with hold(run.folder):
            result = await solve_on(engines, run, self._observer)
        if result.error is not None:
            raise result.error
        return result.run


async def reset_caches(engines: Mapping[str, Engine], roles: Collection[str]) -> bool:
    """Empty the prefix caches of the engines `roles`; True if one of them cannot be emptied."""
    resettable = [engine for role, engine in engines.items() if role in roles and isinstance(engine, PrefixCacheReset)]
    for engine in resettable:
        await engine.reset_prefix_cache()
    return len(resettable) < len(roles)
