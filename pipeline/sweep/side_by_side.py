"""Runs points of a sweep on simulated engines side by side: each process (`point_worker`) takes one point after the other.

Points enter in the order in which they are planned; each leaves as soon as it is finished. After an error no further point begins,
those under way end, and the error of the first one is raised. Whoever cancels this kills the processes.
"""

import asyncio
import pickle
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from msgspec import Struct

from pipeline.analysis.points import Point
from pipeline.errors import PipelineError, RunError
from pipeline.sweep.plan import PlannedPoint
from pipeline.system.worker_process import Program, WorkerProcess

LENGTH_BYTES = 8
"""Every answer of a process begins with its length in this many bytes, big-endian."""

Keep = Callable[[PlannedPoint, Point], object]
"""Called with each point when it is finished."""


class Failure(Struct, frozen=True):
    """An error that ended a point in its process, as it travels from there."""

    kind: type[PipelineError]
    args: tuple[Any, ...]
    state: dict[str, Any]

    def error(self) -> PipelineError:
        """The error itself; its class may want other arguments than those that `Exception` keeps."""
        error = self.kind.__new__(self.kind, *self.args)
        error.__dict__.update(self.state)
        return error


class _Lost(Exception):
    """A process has ended and given no answer."""


async def run_side_by_side(prepared: object, points: Sequence[PlannedPoint], processes: int, keep: Keep) -> None:
    """Run `points` in `processes` processes and `keep` each; `prepared` is their sweep.

    Raises the error that ended a point, or a `RunError` where a process was lost.
    """
    waiting, errors = deque(enumerate(points)), dict[int, PipelineError]()

    async def work() -> None:
        async with _started(prepared) as process:
            while waiting:
                place, planned = waiting.popleft()
                try:
                    keep(planned, await process.run(planned))
                except PipelineError as error:
                    errors[place] = error
                    waiting.clear()
                except _Lost:
                    errors[place] = RunError(f"the process that ran the point {planned.name} is gone: {process.exit_reason()}")
                    waiting.clear()

    async with anyio.create_task_group() as tasks:
        for _ in range(min(processes, len(points))):
            tasks.start_soon(work)
    if errors:
        raise errors[min(errors)]


class _PointProcess:
    """One process that runs points, one at a time."""

    def __init__(self, process: WorkerProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._process, self._reader, self._writer = process, reader, writer
        self.exit_reason = process.exit_reason
        """See `WorkerProcess.exit_reason`."""

    async def send(self, message: object) -> None:
        """Send `message`; what a process that is gone does not get is noticed when it gives no answer."""
        self._writer.write(pickle.dumps(message))
        with suppress(ConnectionError):
            await self._writer.drain()

    async def run(self, planned: PlannedPoint) -> Point:
        """Have a point run; raises the error that ended it, and `_Lost`."""
        await self.send(planned)
        try:
            length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES))
            answer: Point | Failure = pickle.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise _Lost from error
        if isinstance(answer, Failure):
            raise answer.error()
        return answer


@asynccontextmanager
async def _started(prepared: object) -> AsyncIterator[_PointProcess]:
    """A process that has got `prepared`; at the end it is killed if it still runs."""
    try:
        process = WorkerProcess(Program(module="pipeline.sweep.point_worker"))
    except OSError as error:
        raise RunError(f"no process for the points can be started: {error}; --workers 1 needs none") from error
    loop = asyncio.get_running_loop()

    def read_stderr() -> None:
        if not process.read_stderr():
            loop.remove_reader(process.stderr)

    loop.add_reader(process.stderr, read_stderr)
    try:
        reader, writer = await asyncio.open_connection(sock=process.socket)
        try:
            found = _PointProcess(process, reader, writer)
            await found.send(prepared)
            yield found
        finally:
            writer.close()
    finally:
        loop.remove_reader(process.stderr)
        process.kill()
        process.end()
        process.close_files()
