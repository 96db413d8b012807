"""Carries a plan out: a task for each chain, a lane for each engine, no barrier between chains, steps or problems.

Problems enter as an iterator, rows leave through the recorder. A failed chain is a row; a dead engine is an exception
that ends the run.
"""

import gc
from collections.abc import Iterator, Mapping
from itertools import islice, product

import anyio
import anyio.to_thread
from msgspec import Struct

from pipeline.chain import Chain, chain_id
from pipeline.engines.base import Engine
from pipeline.errors import BadRow, RunError, first_of
from pipeline.handoff import Handoff
from pipeline.plan import Plan, Stage
from pipeline.problems import Problem
from pipeline.prompts import Dialect
from pipeline.runtime.dispatch import Dispatcher
from pipeline.runtime.journal import Clock, Journal, Progress, StageLabel
from pipeline.runtime.marking import Marking
from pipeline.runtime.past import Earlier
from pipeline.runtime.schedule import Pipelined
from pipeline.runtime.walk import Routes, Walk
from pipeline.spec import GenerateSpec
from pipeline.stages import base
from pipeline.trace.recorder import Recorder

READ_AHEAD = 256
"""Problems read from the input at once."""
GC_THRESHOLDS = (50_000, 20, 100)
"""New objects before a collection of the youngest, and how many of those before one of the older ones."""


class Settings(Struct, frozen=True, kw_only=True):
    """What the executor needs to know of a run beyond its plan."""

    run_id: str
    seed: int = 0
    samples: int = 1
    virtual_time: bool = False


class Executor:
    """One run of one plan over one stream of problems."""

    def __init__(
        self,
        plan: Plan,
        stages: Mapping[str, base.Stage],
        engines: Mapping[str, Engine],
        dialects: Mapping[str, Dialect],
        schedule: Pipelined,
        recorder: Recorder | Marking,
        clock: Clock,
        settings: Settings,
        earlier: Earlier | None = None,
    ) -> None:
        specs, self._earlier = plan.engines, earlier or Earlier()
        self.dispatchers = {role: Dispatcher(engines[role], spec, clock) for role, spec in specs.items()}
        self.lanes = {role: dispatcher.lane for role, dispatcher in self.dispatchers.items()}
        self.progress = Progress(list(specs), self._earlier)
        labels = {stage.name: _label(stage, plan) for stage in plan.stages()}
        self._routes = Routes(stages, labels, self.dispatchers, schedule, clock)
        self._plan, self._settings, self._dialects = plan, settings, dialects
        self._limits = {role: engine.max_model_len for role, engine in engines.items()}
        self._handoff = Handoff({role: dialect.tokenizer for role, dialect in dialects.items()})
        self._schedule, self._recorder, self._clock = schedule, recorder, clock
        self._feeding = anyio.CancelScope()
        self.exhausted = False
        """Every chain was started that there is."""

    def drain(self) -> None:
        """Start no more chains; those that live go on to their ends, and `run` returns then."""
        self._feeding.cancel()

    async def run(self, problems: Iterator[Problem | BadRow]) -> None:
        """Solve all of `problems`. Raises `RunError` when an engine or the run folder is lost."""
        try:
            async with anyio.create_task_group() as watchers:
                watchers.start_soon(_collect_rarely)
                for dispatcher in self.dispatchers.values():
                    watchers.start_soon(dispatcher.watch)
                async with anyio.create_task_group() as chains:
                    with self._feeding:
                        await self._feed(problems, chains)
                        self.exhausted = True
                    self._schedule.exhausted()
                watchers.cancel_scope.cancel()
        except* RunError as group:
            raise first_of(group, RunError) or group from None

    async def _feed(self, problems: Iterator[Problem | BadRow], chains: anyio.abc.TaskGroup) -> None:
        """Start chains as the schedule and the recorder admit them."""
        order = 0
        while items := await self._read(problems):
            for item, sample_index in product(items, range(self._settings.samples)):
                if not self._earlier.is_over(order):
                    await self._recorder.room()
                    await self._schedule.enter()
                    chains.start_soon(self._solve, item, sample_index, order)
                order += 1

    async def _read(self, problems: Iterator[Problem | BadRow]) -> list[Problem | BadRow]:
        """The next problems, none at the end; in a thread, unless time is virtual."""
        if self._settings.virtual_time:
            return list(islice(problems, READ_AHEAD))
        return await anyio.to_thread.run_sync(lambda: list(islice(problems, READ_AHEAD)))

    async def _solve(self, item: Problem | BadRow, sample_index: int, order: int) -> None:
        """One chain from its first call to its row."""
        problem = Problem(row=item.row, problem_id=f"(row {item.row})", problem="", answer=None) if isinstance(item, BadRow) else item
        past = self._earlier.past(chain_id(problem.problem_id, sample_index))
        journal = Journal(self._settings.run_id, self._recorder, self.progress, self._clock, problem, sample_index, past)
        walk = Walk(self._routes, journal)
        try:
            await self._carry(walk, item, sample_index, order)
        finally:
            self._schedule.leave()

    async def _carry(self, walk: Walk, item: Problem | BadRow, sample_index: int, order: int) -> None:
        """The chain itself, and the one place where its end is recorded, whatever it is."""
        try:
            if isinstance(item, BadRow):
                raise item
            chain = walk.chain = Chain(item, sample_index, order, self._settings.seed, self._dialects, self._handoff, self._limits)
            await walk.block(chain, self._plan.block)
            if walk.overflow is not None and not chain.steps:
                raise walk.overflow  # not even the problem fits
            walk.journal.end(chain, chain.stop_reason or chain.default_stop_reason())
        except (anyio.get_cancelled_exc_class(), RunError):
            walk.journal.end(walk.chain, "cancelled")
            raise
        except Exception as error:  # whatever one chain meets, the others go on
            walk.journal.end(walk.chain, "error", error, walk.stage)


async def _collect_rarely() -> None:
    """Spare the garbage collector what lives as long as the run, until cancelled.

    Imported modules and live chains hold millions of objects, almost none of them garbage; looking at them again and
    again was half of the cost of a call (bench/overhead.py).
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        await anyio.sleep_forever()
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _label(stage: Stage, plan: Plan) -> StageLabel:
    spec = stage.spec
    role = spec.engine  # type: ignore[attr-defined]
    return StageLabel(
        name=stage.name,
        kind=str(type(spec).__struct_config__.tag),
        role=role,
        model=str(getattr(plan.engines[role], "model", role)),
        judges=spec.judges,
        drafts=spec.drafts,
        guides=isinstance(spec, GenerateSpec) and spec.unit == "tokens",
    )
