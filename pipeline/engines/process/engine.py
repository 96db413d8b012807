"""An engine whose model is computed in a worker process of its own: who waits for what, and how workers start and end.

Requests enter and completions leave; nothing is computed here. The main process shares the machine's cores with the
engines, so a call must cost it little. What the worker computes with is its `Program`'s business; a worker that died is
followed by another one in the same place, when the runtime says so.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import zip_longest

import anyio
import anyio.abc
from msgspec import structs

from pipeline.engine import Completion, EngineStatistics, Fact, Request, Speculation, Tokenizer
from pipeline.engines.process.life import WorkerLife
from pipeline.engines.process.process import Program
from pipeline.engines.process.wire import NO_STATISTICS, Ready, Setup
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.validate import validate_request
from pipeline.errors import EngineDead, GraphError, boundary


class WorkerEngine:
    """The `Engine` contract over one worker process after another; open it with `open_workers`."""

    def __init__(self, setup: Setup, program: Program) -> None:
        self.role = setup.role
        self.tokenizer: Tokenizer
        self.max_model_len = self.vocab_size = 0
        self.facts: dict[str, Fact] = {}
        self._setup, self._program = setup, program
        self._lives: anyio.abc.TaskGroup | None = None
        self._life: WorkerLife | None = None
        self._former = NO_STATISTICS
        """Totals of the lives before this one."""
        self._closed = False

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._current().pid

    async def generate(self, request: Request) -> Completion:
        """See `Engine.generate`."""
        validate_request(request, self.max_model_len, self.vocab_size)
        return await self._current().generate(request)

    def statistics(self) -> EngineStatistics:
        """See `EngineStatistics`."""
        return self._former if self._life is None else totals(self._former, self._life.statistics)

    async def aclose(self) -> None:
        """See `Engine.aclose`."""
        self._closed = True
        if self._life is not None:
            await self._life.end()

    def close_files(self) -> None:
        """Free the socket, once nobody listens."""
        if self._life is not None:
            self._life.close_files()

    async def start(self, lives: anyio.abc.TaskGroup) -> None:
        """Start the first worker, and wait until it has loaded the model; `lives` is where workers are listened to.

        Raises `GraphError` when the model cannot be loaded here, `EngineDead` when the worker dies while loading.
        """
        self._lives = lives
        ready = await self._begin()
        self.max_model_len, self.vocab_size, self.facts = ready.max_model_len, ready.vocab_size, ready.facts

    def kill(self, exit_reason: str) -> None:
        """See `Restartable.kill`."""
        self._current().kill(exit_reason)

    async def restart(self) -> None:
        """See `Restartable.restart`."""
        former = self._current()
        former.kill("it was restarted")
        await former.over()
        if self._closed:
            raise EngineDead(self.role, "it was closed")
        self._former = structs.replace(self.statistics(), restarts=self._former.restarts + 1)
        try:
            await self._begin()
        except (GraphError, OSError) as error:
            raise EngineDead(self.role, error.what if isinstance(error, GraphError) else str(error)) from error

    async def reset_prefix_cache(self) -> None:
        """See `PrefixCacheReset.reset_prefix_cache`."""
        await self._current().reset_prefix_cache()

    def load_tokenizer(self) -> None:
        """Load the tokenizer, which takes a while; raises `GraphError`."""
        with boundary(GraphError, f"engine {self.role!r}", foreign=GraphError):
            self.tokenizer = HFTokenizer(self._setup.model, trust_remote_code=self._setup.spec.trust_remote_code)

    async def _begin(self) -> Ready:
        """A life begins, in the place of the one before."""
        assert self._lives is not None
        self._life = WorkerLife(self._setup, self._program)
        self._lives.start_soon(self._life.run)
        return await self._life.ready()

    def _current(self) -> WorkerLife:
        assert self._life is not None, "it was not opened"
        return self._life


def totals(former: EngineStatistics, now: EngineStatistics) -> EngineStatistics:
    """This moment's view with the totals of `former` lives added."""
    if former is NO_STATISTICS:
        return now
    return structs.replace(
        now,
        requests=former.requests + now.requests,
        input_tokens=former.input_tokens + now.input_tokens,
        cached_input_tokens=former.cached_input_tokens + now.cached_input_tokens,
        output_tokens=former.output_tokens + now.output_tokens,
        busy_s=former.busy_s + now.busy_s,
        speculation=_speculation(former.speculation, now.speculation),
        restarts=former.restarts + now.restarts,
    )


def _speculation(former: Speculation | None, now: Speculation | None) -> Speculation | None:
    if former is None or now is None:
        return now or former
    return Speculation(
        drafts=former.drafts + now.drafts,
        draft_tokens=former.draft_tokens + now.draft_tokens,
        accepted_tokens=former.accepted_tokens + now.accepted_tokens,
        accepted_by_position=tuple(a + b for a, b in zip_longest(former.accepted_by_position, now.accepted_by_position, fillvalue=0)),
    )


@asynccontextmanager
async def open_workers(queues: Sequence[Sequence[WorkerEngine]]) -> AsyncIterator[Mapping[str, WorkerEngine]]:
    """Open all engines: the queues side by side, the engines of one queue one after the other.

    Raises `GraphError` when a model cannot be loaded here, `EngineDead` when a worker dies while loading.
    """
    engines = {engine.role: engine for queue in queues for engine in queue}
    failure: Exception | None = None
    try:
        async with anyio.create_task_group() as tasks:
            try:
                await _all_ready(queues, tasks)
                yield engines
            except Exception as error:
                failure = error  # raised below, so that it does not come out as a group
            finally:
                with anyio.CancelScope(shield=True):
                    async with anyio.create_task_group() as closing:
                        for engine in engines.values():
                            closing.start_soon(engine.aclose)
                tasks.cancel_scope.cancel()
    finally:
        for engine in engines.values():
            engine.close_files()
    if failure is not None:
        raise failure


async def _all_ready(queues: Sequence[Sequence[WorkerEngine]], lives: anyio.abc.TaskGroup) -> None:
    """Load all tokenizers, one after the other (importing transformers is not thread-safe), while the workers load."""
    failures: list[Exception] = []
    async with anyio.create_task_group() as tasks:

        async def first_failure(load: Callable[[], Awaitable[None]]) -> None:
            try:
                await load()
            except Exception as error:
                failures.append(error)
                tasks.cancel_scope.cancel()

        async def tokenizers() -> None:
            for engine in (engine for queue in queues for engine in queue):
                await anyio.to_thread.run_sync(engine.load_tokenizer, abandon_on_cancel=True)

        async def one_by_one(queue: Sequence[WorkerEngine]) -> None:
            for engine in queue:
                await engine.start(lives)

        for queue in queues:
            tasks.start_soon(first_failure, partial(one_by_one, queue))
        tasks.start_soon(first_failure, tokenizers)
    if failures:
        raise failures[0]
