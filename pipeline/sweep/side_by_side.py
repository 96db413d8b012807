"""Points side by side, each group of devices with a process of its own: parts of the points enter, points leave as they are finished.

A part is run by one process, on engines that it opens once. After an error no further part begins, those under way end, and the error of
the first one is raised; whoever cancels that ends the processes.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from threading import Thread

import anyio
from msgspec import structs

from pipeline.analysis.points import Point
from pipeline.engines.placement.shares import DeviceShare
from pipeline.errors import InputChanged, PipelineError, RunError
from pipeline.session.loop import in_loop, rare_collection
from pipeline.session.observer import Observer, Tell
from pipeline.sweep.plan import PlannedPoint
from pipeline.sweep.points import Keep, PreparedSweep, SweepRunner, read_inputs
from pipeline.system.worker_process import leave_signals

Part = Sequence[PlannedPoint]


def cut(parts: Sequence[Part], count: int) -> list[Part]:
    """`parts` in pieces that have at most a `count`-th of all points each, so that as many processes have work."""
    most = -(-sum(map(len, parts)) // count)
    return [part[start : start + most] for part in parts for start in range(0, len(part), most)]


async def run_side_by_side(prepared: PreparedSweep, parts: Sequence[Part], shares: Sequence[DeviceShare], keep: Keep, tell: Tell) -> None:
    """Run `parts`, in their order on whichever of `shares` is free, and `keep` each point when it is finished.

    Raises the error that ended a part, or a `RunError` where a process was lost.
    """
    waiting, errors = deque(enumerate(parts)), dict[int, PipelineError]()

    async def serve(share: DeviceShare) -> None:
        def tell_of(sentence: str) -> None:
            tell(f"{share.words}: {sentence}" if share.words else sentence)

        with _process(prepared, share) as connection:
            while waiting:
                place, part = waiting.popleft()
                try:
                    await _run(part, connection, keep, tell_of)
                except PipelineError as error:
                    errors[place] = error
                    waiting.clear()
                    return

    async with anyio.create_task_group() as tasks:
        for share in shares[: len(parts)]:
            tasks.start_soon(serve, share)
    if errors:
        raise errors[min(errors)]


async def _run(part: Part, connection: Connection, keep: Keep, tell: Tell) -> None:
    """Let the process at the other end of `connection` run a part; raises the error that ended it."""
    left = deque(part)
    said: object = [planned.name for planned in part]
    while said is not None:
        try:
            if isinstance(said, list):
                connection.send(said)
            await anyio.wait_readable(connection.fileno())
            said = connection.recv()
        except (EOFError, OSError) as error:
            where = f"at the point {left[0].name}" if left else f"after the point {part[-1].name}"
            raise RunError(f"a process is gone, {where}; --workers 1 needs none") from error
        if isinstance(said, Point):
            keep(left.popleft(), said)
        elif isinstance(said, str):
            tell(said)
        elif isinstance(said, PipelineError):
            raise said


@contextmanager
def _process(prepared: PreparedSweep, share: DeviceShare) -> Iterator[Connection]:
    """A process that runs points on these devices until the end of the block, and the connection to it."""
    context = get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(prepared, share, theirs))
    process.start()
    theirs.close()
    try:
        yield mine
    finally:
        process.kill()  # engines that it has open end with it
        process.join()
        mine.close()


def _serve(prepared: PreparedSweep, share: DeviceShare, connection: Connection) -> None:
    """Be such a process: run one part after the other. Its problems are read here, as what `Problems` notes of its rows means nothing
    elsewhere."""
    leave_signals()
    Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(share.environment)
    if share.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, share.cores)
    points, inputs = {each.name: each for each in prepared.planned_points}, read_inputs(prepared.planned_points)
    same = all(inputs[rows][1] == fingerprint for rows, (_, fingerprint) in prepared.inputs.items())
    prepared = structs.replace(prepared, inputs=inputs)
    with rare_collection():
        while True:
            part = [points[name] for name in connection.recv()]
            virtual = part[0].system.virtual
            observer = Observer() if virtual else Observer(tell=connection.send)
            runner = SweepRunner(prepared, observer, lambda planned, point: connection.send(point), share)
            try:
                if not same:
                    raise InputChanged(part[0].name, "the input has changed since the sweep began")
                in_loop(partial(runner.run, part), virtual=virtual)
                connection.send(None)
            except PipelineError as error:
                connection.send(error)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "`run_side_by_side` started this process"
    parent.join()
    os._exit(1)
