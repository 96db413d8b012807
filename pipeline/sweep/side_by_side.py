"""Runs points of a sweep on simulated engines side by side, each in a process of a pool.

Points enter in the order in which they are planned; each leaves as soon as it is finished. After an error no further point begins,
those under way end, and the error of the first one is raised. Whoever cancels this ends the processes.
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from functools import partial
from multiprocessing import active_children, get_context, parent_process
from threading import Thread

import anyio
from msgspec import structs

from pipeline.analysis.points import Point
from pipeline.data.many_files import open_files
from pipeline.errors import InputChanged, PipelineError, RunError
from pipeline.session.loop import in_loop, rare_collection
from pipeline.session.observer import Observer
from pipeline.sweep.plan import PlannedPoint
from pipeline.sweep.points import Keep, PreparedSweep, SweepRunner, run_options

_sweeps: list[PreparedSweep] = []
"""The sweep of this process, if it runs points."""


async def run_side_by_side(prepared: PreparedSweep, points: Sequence[PlannedPoint], processes: int, keep: Keep) -> None:
    """Run `points` in `processes` processes and `keep` each.

    Raises the error that ended a point, or a `RunError` where a process was lost.
    """
    before, errors = set(active_children()), dict[int, PipelineError]()
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _begin, (prepared,))
    waiting = [pool.submit(_point, planned) for planned in points]

    async def take(place: int, planned: PlannedPoint) -> None:
        try:
            keep(planned, await asyncio.wrap_future(waiting[place]))
            return
        except asyncio.CancelledError:
            if not waiting[place].cancelled():
                raise
            return
        except BrokenProcessPool:
            errors[place] = RunError(f"a process is gone, at the point {planned.name} or one beside it; --workers 1 needs none")
        except PipelineError as error:
            errors[place] = error
        for each in waiting:
            each.cancel()

    try:
        async with anyio.create_task_group() as tasks:
            for place, planned in enumerate(points):
                tasks.start_soon(take, place, planned)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(active_children()) - before:
            process.kill()
    if errors:
        raise errors[min(errors)]


def _begin(prepared: PreparedSweep) -> None:
    """Prepare this process for points: its problems are read here, as what `Problems` notes of its rows means nothing elsewhere."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one hears it
    Thread(target=_end_with_parent, daemon=True).start()
    ExitStack().enter_context(rare_collection())
    options = prepared.options
    problems = open_files((options.input,), options.columns, run_options(options, prepared.systems[0], prepared.folder).part)
    fingerprint = problems.check()
    _sweeps.append(structs.replace(prepared, problems=problems, fingerprint=fingerprint))
    if fingerprint != prepared.fingerprint:
        _sweeps.clear()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "the pool started this process"
    parent.join()
    os._exit(1)


def _point(planned: PlannedPoint) -> Point:
    """Run one point, whose engines are simulated, in a process of the pool."""
    if not _sweeps:
        raise InputChanged(planned.name, "the input has changed since the sweep began")
    found: list[Point] = []
    runner = SweepRunner(_sweeps[0], Observer(), lambda planned, point: found.append(point))
    in_loop(partial(runner.run, [planned]), virtual=True)
    return found[0]
