"""One life of a worker process: the requests that it was given, what it answered, and what it said before it died.

Requests enter and completions leave. A life begins with its process and is never taken up again: `WorkerEngine` begins
another one.
"""

from itertools import count

import anyio
from msgspec import structs

from pipeline.engine import Completion, Request
from pipeline.engines.process.process import Program, WorkerProcess
from pipeline.engines.process.wire import NO_STATISTICS, Abort, Failed, Forget, Forgotten, FromWorker, Ready, Report, Setup, Submit
from pipeline.errors import EngineDead, GraphError, RequestRefused


class Call:
    """One waiting `generate`."""

    __slots__ = ("completion", "refusal", "settled")

    def __init__(self) -> None:
        self.settled = anyio.Event()
        self.completion: Completion | None = None
        self.refusal: str | None = None


class WorkerLife:
    """A worker process, started at once; `run` must run while it is used."""

    def __init__(self, setup: Setup, program: Program) -> None:
        self.role = setup.role
        self.statistics = NO_STATISTICS
        """What the worker last told; counters never lag behind a completion."""
        self._setup = setup
        self._process = WorkerProcess(program)
        self._process.send(setup)
        self._answer: Ready | Failed | None = None
        self._answered, self._over, self._forgotten = anyio.Event(), anyio.Event(), anyio.Event()
        self._calls: dict[int, Call] = {}
        self._numbers = count()
        self._last_words: str | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def run(self) -> None:
        """Listen to the worker until it is gone."""
        await self._process.listen(self._hear)
        self.bury(await self._process.exit_reason())
        self._over.set()

    async def ready(self) -> Ready:
        """Wait until the worker has loaded the model.

        Raises `GraphError` when the model cannot be loaded here, `EngineDead` when the worker dies while loading.
        """
        await self._answered.wait()
        if isinstance(self._answer, Failed):
            why = self._answer.what or await self._process.exit_reason()
            raise GraphError(f"engine {self.role!r}", f"cannot load the model {self._setup.spec.model!r}: {why}")
        self._check_alive()
        assert self._answer is not None
        return self._answer

    async def generate(self, request: Request) -> Completion:
        """See `Engine.generate`; the request was checked."""
        self._check_alive()
        number, call = next(self._numbers), Call()
        self._calls[number] = call
        self._process.send(Submit(number, request))
        try:
            await call.settled.wait()
        finally:
            if self._calls.pop(number, None) is not None:
                self._process.send(Abort(number))
        if call.refusal is not None:
            raise RequestRefused(f"request {request.request_id!r}: {call.refusal}")
        if call.completion is None:
            raise EngineDead(self.role, self._last_words or "it was closed")
        return call.completion

    async def reset_prefix_cache(self) -> None:
        """See `PrefixCacheReset.reset_prefix_cache`."""
        self._check_alive()
        self._forgotten = anyio.Event()
        self._process.send(Forget())
        await self._forgotten.wait()
        self._check_alive()

    def bury(self, exit_reason: str) -> None:
        """From now on every call raises `EngineDead`, the waiting ones first. Only the first `exit_reason` count."""
        if self._last_words is None:
            self._last_words = exit_reason
        self._answered.set()
        self._forgotten.set()
        self.statistics = structs.replace(self.statistics, running=0, waiting=0, kv_cache_usage=0.0)
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.settled.set()

    def kill(self, exit_reason: str) -> None:
        """End the process, and those that it started, without a farewell."""
        self.bury(exit_reason)
        self._process.kill()

    async def end(self) -> None:
        """Let the process end, or end it. A second call does nothing."""
        self.bury("it was closed")
        await self._process.end()

    async def over(self) -> None:
        """Wait until nothing of a dead worker is left, its files included."""
        await self._over.wait()
        self._process.close_files()

    def close_files(self) -> None:
        """Free the socket, once nobody listens."""
        self._process.close_files()

    def _hear(self, message: FromWorker) -> None:
        if isinstance(message, Forgotten):
            self._forgotten.set()
            return
        if not isinstance(message, Report):
            self._answer = message
            self._answered.set()
            return
        self.statistics = message.statistics
        for number, completion in message.done:
            if (call := self._calls.pop(number, None)) is not None:
                call.completion = completion
                call.settled.set()
        for number, why in message.refused:
            if (call := self._calls.pop(number, None)) is not None:
                call.refusal = why
                call.settled.set()

    def _check_alive(self) -> None:
        if self._last_words is not None:
            raise EngineDead(self.role, self._last_words)
