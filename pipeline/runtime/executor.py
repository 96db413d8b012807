"""Executes a plan: a task for each chain, a client queue for each engine, no barrier between chains, steps or problems.

Chains come from a `Feed`, rows leave into a `RowSink`. A failed chain is a row; a dead engine is an exception that ends the run.
"""

from collections.abc import Mapping
from contextlib import nullcontext

import anyio
from msgspec import Struct

from pipeline.data.problems import Problem
from pipeline.engine import Engine
from pipeline.errors import BadRow, RunError
from pipeline.graph.plan import Plan
from pipeline.reasoning.chain import Chain
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.reasoning.translate import TokenTranslator
from pipeline.runtime.admission.admission import AdmissionMember
from pipeline.runtime.admission.feed import Feed, Start
from pipeline.runtime.chain_recorder import ChainRecorder, Recording
from pipeline.runtime.chain_runner import ChainRunner, bind
from pipeline.runtime.dispatch import Dispatcher
from pipeline.runtime.lane import Lane
from pipeline.runtime.schedule import Schedule
from pipeline.stages.base import Stage
from pipeline.tasks import unwrapped


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of a run beyond its plan."""

    seed: int = 0
    """The run's seed, from which the seed of every request follows."""
    cache_tokens: Mapping[str, float] = {}
    """By role, what the calls in flight at an engine may come to; without an entry their number alone is bounded."""
    virtual_time: bool = False
    """True if the event loop runs on a simulated clock, which must not wait for threads."""


class Fitted(Struct, frozen=True):
    """A plan with open engines that suit it, and with its prompt builders and stages for them."""

    plan: Plan
    engines: Mapping[str, Engine]
    builders: Mapping[str, PromptBuilder]
    stages: Mapping[str, Stage]


class Executor:
    """Runs one plan over the chains of one feed; `run` does the work."""

    def __init__(self, fitted: Fitted, schedule: Schedule, recording: Recording, settings: Settings) -> None:
        plan, engines, builders, rooms = fitted.plan, fitted.engines, fitted.builders, settings.cache_tokens
        self._dispatchers = {role: Dispatcher(engines[role], spec, recording.clock, rooms.get(role)) for role, spec in plan.engines.items()}
        self.lanes: Mapping[str, Lane] = {role: dispatcher.lane for role, dispatcher in self._dispatchers.items()}
        self.engines, self.progress = engines, recording.progress
        self._block, self._bound = plan.block, bind(plan, fitted.stages, self._dispatchers, threads=not settings.virtual_time)
        self._seed, self._builders = settings.seed, builders
        self._limits = {role: engine.max_model_len for role, engine in engines.items()}
        self._translator = TokenTranslator({role: builder.tokenizer for role, builder in builders.items()}, plan.prompts.thought)
        self._schedule, self._recording = schedule, recording
        self._feeding = anyio.CancelScope()
        self.exhausted = False
        """True if every chain of the feed was started."""

    def drain(self) -> None:
        """Start no more chains; the live ones run to their ends, and then `run` returns."""
        self._feeding.cancel()

    async def run(self, feed: Feed) -> None:
        """Run all chains of `feed`. Raises `RunError` when an engine is dead or rows cannot be kept."""
        with unwrapped(RunError):
            async with anyio.create_task_group() as watchers:
                for dispatcher in self._dispatchers.values():
                    watchers.start_soon(dispatcher.caller.watch)
                async with anyio.create_task_group() as chains:
                    with self._feeding:
                        await self._start(feed, chains)
                        self.exhausted = True
                    self._schedule.exhausted()
                watchers.cancel_scope.cancel()

    async def _start(self, feed: Feed, chains: anyio.abc.TaskGroup) -> None:
        """Start chains as the feed gives them, once the row sink has room for them and the schedule lets them enter."""
        while (start := await feed.next()) is not None:
            await self._recording.rows.room()
            chains.start_soon(self._solve, start, await self._schedule.enter())

    async def _solve(self, start: Start, member: AdmissionMember | None) -> None:
        """Run one chain from its first call to its row."""
        item = start.item
        problem = Problem(row=item.row, problem_id=item.problem_id, problem="", answer=None) if isinstance(item, BadRow) else item
        record = ChainRecorder(self._recording, problem, start.sample_index)
        try:
            await self._run_chain(record, start, member)
        finally:
            self._schedule.leave(member)

    async def _run_chain(self, record: ChainRecorder, start: Start, member: AdmissionMember | None) -> None:
        """Run the chain itself; the one place where its end is recorded, whatever that is."""
        item, chain = start.item, None
        try:
            if isinstance(item, BadRow):
                raise item
            chain = Chain(item, start.sample_index, start.order, self._seed, self._builders, self._translator, self._limits)
            with start.withdrawal or nullcontext():
                await ChainRunner(chain, self._bound, self._schedule, member, self._recording.clock, record).run(self._block)
            record.end(chain, chain.ending.reason or chain.default_stop_reason())
        except (anyio.get_cancelled_exc_class(), RunError, MemoryError):  # none of these is the chain's own
            record.end(chain, "cancelled")
            raise
        except Exception as error:  # whatever one chain meets, the others go on
            record.end(chain, "error", error)
