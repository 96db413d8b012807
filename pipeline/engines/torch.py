"""Engine `torch` as the main process knows it: one worker process a model, and who waits for what.

Requests enter and completions leave; nothing is computed here, and torch is not imported: the main process shares the
machine's cores with the engines, so a call must cost it little. `torch_worker` is the other side.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from itertools import count
from pathlib import Path

import anyio

from pipeline.engines.base import Backend, Completion, EngineStatistics, Request, Tokenizer
from pipeline.engines.requests import check
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.torch_process import WorkerProcess
from pipeline.engines.torch_wire import NO_STATISTICS, Abort, Failed, FromWorker, Ready, Report, Setup, Submit
from pipeline.errors import EngineDead, GraphError, boundary, did_you_mean
from pipeline.spec import TorchSpec

_BUNDLED = "bundled:"


class Call:
    """One waiting `generate`."""

    __slots__ = ("completion", "settled")

    def __init__(self) -> None:
        self.settled = anyio.Event()
        self.completion: Completion | None = None


class TorchEngine:
    """The `Engine` contract over a worker process; open it with `open_torch`."""

    def __init__(self, setup: Setup) -> None:
        self.role = setup.role
        self.tokenizer: Tokenizer
        self.max_model_len = 0
        self._setup = setup
        self._process = WorkerProcess(setup.spec.threads)
        self._answer: Ready | Failed | None = None
        self._answered = anyio.Event()
        self._vocab_size = 0
        self._process.send(setup)
        self._calls: dict[int, Call] = {}
        self._numbers = count()
        self._statistics = NO_STATISTICS
        self._last_words: str | None = None

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    async def generate(self, request: Request) -> Completion:
        """See `Engine.generate`."""
        self._check_alive()
        check(request, self.max_model_len, self._vocab_size)
        number, call = next(self._numbers), Call()
        self._calls[number] = call
        self._process.send(Submit(number, request))
        try:
            await call.settled.wait()
        finally:
            if self._calls.pop(number, None) is not None:
                self._process.send(Abort(number))
        if call.completion is None:
            raise EngineDead(self.role, self._last_words or "it was closed")
        return call.completion

    def statistics(self) -> EngineStatistics:
        """What the worker last told; counters never lag behind a completion."""
        return self._statistics

    async def aclose(self) -> None:
        """See `Engine.aclose`."""
        self._bury("it was closed")
        self._process.end()

    def close_files(self) -> None:
        """Free the socket, once nobody listens."""
        self._process.close_files()

    async def run(self) -> None:
        """Listen to the worker until it is gone."""
        await self._process.listen(self._hear)
        self._bury(await self._process.last_words())

    async def wait_ready(self) -> None:
        """Wait until the worker has loaded the model.

        Raises `GraphError` when the model cannot be loaded here, `EngineDead` when the worker dies while loading.
        """
        await self._answered.wait()
        if isinstance(self._answer, Failed):
            raise GraphError(f"engine {self.role!r}", f"cannot load the model {self._setup.spec.model!r}: {self._answer.what}")
        self._check_alive()
        assert self._answer is not None
        self.max_model_len, self._vocab_size = self._answer.max_model_len, self._answer.vocab_size

    def load_tokenizer(self) -> None:
        """Load the tokenizer, which takes a while; raises `GraphError`."""
        with boundary(GraphError, f"engine {self.role!r}", foreign=GraphError):
            self.tokenizer = HFTokenizer(self._setup.model, trust_remote_code=self._setup.spec.trust_remote_code)

    def _hear(self, message: FromWorker) -> None:
        if isinstance(message, Report):
            self._statistics = message.statistics
            for number, completion in message.done:
                call = self._calls.pop(number, None)
                if call is not None:
                    call.completion = completion
                    call.settled.set()
        else:
            self._answer = message
            self._answered.set()

    def _bury(self, last_words: str) -> None:
        """From now on every call raises `EngineDead`, the waiting ones first."""
        if self._last_words is None:
            self._last_words = last_words
        self._answered.set()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.settled.set()

    def _check_alive(self) -> None:
        if self._last_words is not None:
            raise EngineDead(self.role, self._last_words)


@asynccontextmanager
async def open_torch(specs: Mapping[str, TorchSpec]) -> AsyncIterator[Mapping[str, TorchEngine]]:
    """Open an engine for each role, all at once.

    Raises `GraphError` when a model cannot be loaded here, `EngineDead` when a worker dies while loading.
    """
    for role, spec in specs.items():
        _check_slots(role, spec)
    cores = share_cores(specs, sorted(os.sched_getaffinity(0)))
    setups = [Setup(role, spec, _resolve(role, spec), cores[role]) for role, spec in specs.items()]
    engines: dict[str, TorchEngine] = {}
    failure: Exception | None = None
    try:
        async with anyio.create_task_group() as tasks:
            try:
                for setup in setups:
                    engines[setup.role] = engine = TorchEngine(setup)
                    tasks.start_soon(engine.run)
                await _all_ready(list(engines.values()))
                yield engines
            except Exception as error:
                failure = error  # raised below, so that it does not come out as a group
            finally:
                for engine in engines.values():
                    await engine.aclose()
                tasks.cancel_scope.cancel()
    finally:
        for engine in engines.values():
            engine.close_files()
    if failure is not None:
        raise failure


async def _all_ready(engines: Sequence[TorchEngine]) -> None:
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
            for engine in engines:
                await anyio.to_thread.run_sync(engine.load_tokenizer, abandon_on_cancel=True)

        tasks.start_soon(first_failure, tokenizers)
        for engine in engines:
            tasks.start_soon(first_failure, engine.wait_ready)
    if failures:
        raise failures[0]


def share_cores(specs: Mapping[str, TorchSpec], cores: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Cores for each role: those its spec names, else some of its own where there are enough for all, else any."""
    shares = {role: tuple(range(spec.core, spec.core + spec.threads)) for role, spec in specs.items() if spec.core is not None}
    free = [core for core in cores if not any(core in share for share in shares.values())]
    others = {role: spec.threads for role, spec in specs.items() if role not in shares and not spec.device.startswith("cuda")}
    enough = sum(others.values()) <= len(free)
    for role, threads in others.items():
        shares[role] = tuple(free[:threads]) if enough else ()
        free = free[threads:]
    return {role: shares.get(role, ()) for role in specs}


def _check_slots(role: str, spec: TorchSpec) -> None:
    if spec.kv_cache_slots is not None and spec.kv_cache_slots < spec.max_num_seqs:
        what = f"kv_cache_slots is {spec.kv_cache_slots}, but max_num_seqs = {spec.max_num_seqs} sequences need one each"
        raise GraphError(f"engine {role!r}", what)


def _resolve(role: str, spec: TorchSpec) -> str:
    """The model as something transformers can load."""
    if not spec.model.startswith(_BUNDLED):
        return spec.model
    name = spec.model.removeprefix(_BUNDLED)
    folder = Path(str(files("pipeline"))) / "models"
    known = sorted(path.parent.name for path in folder.glob("*/config.json"))
    if name not in known:
        raise GraphError(f"engine {role!r}", f"no bundled model is named {name!r}; {did_you_mean(name, known)}")
    return str(folder / name)


BACKEND = Backend(spec=TorchSpec, open=open_torch)
