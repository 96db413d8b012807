"""Additions to anyio's task groups: `gather` returns the results of several tasks in order, `unwrapped` raises one
`PipelineError` in place of an exception group, and `background_tasks` runs tasks that are cancelled when a block ends."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

from pipeline.errors import PipelineError

T = TypeVar("T")


async def gather(jobs: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run `jobs` concurrently; their results, in order. The first `PipelineError` cancels the others and is raised alone."""
    results: dict[int, T] = {}

    async def carry_out(place: int, job: Callable[[], Awaitable[T]]) -> None:
        results[place] = await job()

    with unwrapped():
        async with anyio.create_task_group() as tasks:
            for place, job in enumerate(jobs):
                tasks.start_soon(carry_out, place, job)
    return [results[place] for place in range(len(jobs))]


@contextmanager
def unwrapped(*kinds: type[PipelineError]) -> Iterator[None]:
    """Raise the first error of `kinds`, tried in order, in place of the exception group that holds it; without `kinds` the first
    `PipelineError`. A group without one of them is raised as it is."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException | None = next(filter(None, (group.subgroup(kind) for kind in kinds or (PipelineError,))), None)
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if error is None:
            raise
        raise error from error.__cause__


@asynccontextmanager
async def background_tasks() -> AsyncIterator[TaskGroup]:
    """A task group whose tasks are cancelled when the block ends. An error of the block is raised as it is, not in a group."""
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except Exception as error:
            failure = error  # raised outside of the group, which would wrap it
        finally:
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
