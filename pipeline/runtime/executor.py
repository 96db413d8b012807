"""Carries a plan out: a task for each chain, a lane for each engine, no barrier between chains, steps or problems.

Problems enter as an iterator, rows leave through the recorder. A failed chain is a row; a dead engine is an exception
that ends the run.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import islice

import anyio
import anyio.to_thread
from msgspec import Struct, structs

from pipeline.chain import Chain
from pipeline.engines.base import Completion, Engine, Request
from pipeline.errors import BadRow, ChainError, ContextOverflow, RunError
from pipeline.handoff import Handoff
from pipeline.plan import Block, Loop, Plan, Stage
from pipeline.problems import Problem
from pipeline.prompts import Dialect
from pipeline.runtime.journal import Clock, Journal, Progress, StageLabel
from pipeline.runtime.lane import Call, Lane
from pipeline.runtime.schedule import Pipelined
from pipeline.stages import base
from pipeline.trace.recorder import Recorder

READ_AHEAD = 256
"""Problems read from the input at once."""


class CallTimeout(ChainError):
    """An engine did not answer a call within `timeout_s`."""


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
        recorder: Recorder,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self.plan, self.settings = plan, settings
        self.lanes = {role: Lane(role, spec.max_in_flight) for role, spec in plan.engines.items()}
        self.progress = Progress(list(plan.engines))
        self._stages, self._engines, self._dialects = stages, engines, dialects
        self._labels = {stage.name: _label(stage, plan) for stage in plan.stages()}
        self._limits = {role: engine.max_model_len for role, engine in engines.items()}
        self._handoff = Handoff({role: dialect.tokenizer for role, dialect in dialects.items()})
        self._schedule, self._recorder, self._clock = schedule, recorder, clock

    async def run(self, problems: Iterator[Problem | BadRow]) -> None:
        """Solve all of `problems`. Raises `RunError` when an engine or the run folder is lost."""
        order = 0
        try:
            async with anyio.create_task_group() as chains:
                async for item in self._read(problems):
                    for sample_index in range(self.settings.samples):
                        await self._recorder.room()
                        await self._schedule.enter()
                        chains.start_soon(self._solve, item, sample_index, order)
                        order += 1
                self._schedule.exhausted()
        except* RunError as group:
            raise _first(group) from None

    async def _read(self, problems: Iterator[Problem | BadRow]) -> AsyncIterator[Problem | BadRow]:
        """The problems, read a piece at a time; in a thread, unless time is virtual."""
        while True:
            if self.settings.virtual_time:
                items = list(islice(problems, READ_AHEAD))
            else:
                items = await anyio.to_thread.run_sync(lambda: list(islice(problems, READ_AHEAD)))
            for item in items:
                yield item
            if len(items) < READ_AHEAD:
                return

    async def _solve(self, item: Problem | BadRow, sample_index: int, order: int) -> None:
        """One chain from its first call to its row."""
        problem = Problem(row=item.row, problem_id=f"row-{item.row}", problem="", answer=None) if isinstance(item, BadRow) else item
        journal = Journal(self.settings.run_id, self._recorder, self.progress, self._clock, problem, sample_index)
        walk = Walk()
        try:
            if isinstance(item, BadRow):
                raise item
            chain = walk.chain = Chain(problem, sample_index, order, self.settings.seed, self._dialects, self._handoff, self._limits)
            await self._block(self.plan.block, chain, journal, walk)
            journal.end(chain, chain.stop_reason or chain.default_stop_reason())
        except RunError:
            journal.end(walk.chain, "cancelled")
            raise
        except Exception as error:  # whatever one chain meets, the others go on
            journal.end(walk.chain, "error", error, walk.stage)
        except anyio.get_cancelled_exc_class():
            journal.end(walk.chain, "cancelled")
            raise
        finally:
            self._schedule.leave()

    async def _block(self, block: Block, chain: Chain, journal: Journal, walk: "Walk") -> None:
        for level in block.levels:
            due = [node for node in level if _due(node, chain)]
            if stages := [node for node in due if isinstance(node, Stage)]:
                await self._level(stages, chain, journal, walk)
            for node in due:
                if isinstance(node, Loop):
                    await self._loop(node, chain, journal, walk)

    async def _loop(self, loop: Loop, chain: Chain, journal: Journal, walk: "Walk") -> None:
        chain.enter(loop.until)
        first = loop.body.first_writer
        while (reason := chain.exit(loop.until)) is None:
            chain.begin_round()
            if first is not None and chain.next_index <= loop.body.first_steps:
                await self._level([first], chain, journal, walk)
            else:
                await self._block(loop.body, chain, journal, walk)
        chain.stop_reason = reason

    async def _level(self, stages: Sequence[Stage], chain: Chain, journal: Journal, walk: "Walk") -> None:
        """Run `stages` concurrently and apply their outcomes in plan order."""
        if chain.overflowed and not any(stage.spec.answers for stage in stages):
            return
        walk.stage = stages[0].name
        ready = self._clock.now()
        await self._schedule.turn(stages[0].rank)
        built = [self._stages[stage.name] for stage in stages]
        asked = [stage.requests(chain) for stage in built]
        try:
            answers = await self._ask(built, asked, chain, journal, ready)
        except ContextOverflow:
            chain.overflowed = True
            return
        for stage, completions in zip(built, answers, strict=True):
            walk.stage = stage.name
            if (step := chain.apply(stage.name, stage.apply(chain, completions))) is not None:
                journal.commit(step)

    async def _ask(
        self, stages: Sequence[base.Stage], asked: Sequence[Sequence[Request]], chain: Chain, journal: Journal, ready: float
    ) -> list[list[Completion]]:
        """All completions, in the order of the requests; the first error in that order is raised once all are back."""
        if len(stages) == 1 and len(asked[0]) == 1:
            return [[await self._call(stages[0], asked[0][0], chain, journal, ready)]]
        results: list[list[Completion | ChainError | None]] = [[None] * len(requests) for requests in asked]

        async def one(i: int, j: int) -> None:
            try:
                results[i][j] = await self._call(stages[i], asked[i][j], chain, journal, ready)
            except ChainError as error:
                results[i][j] = error

        async with anyio.create_task_group() as calls:
            for i, requests in enumerate(asked):
                for j in range(len(requests)):
                    calls.start_soon(one, i, j)
        if error := next((r for row in results for r in row if isinstance(r, ChainError)), None):
            raise error
        return [[r for r in row if isinstance(r, Completion)] for row in results]

    async def _call(self, stage: base.Stage, request: Request, chain: Chain, journal: Journal, ready: float) -> Completion:
        """One request through its lane: wait, send, record."""
        lane, label = self.lanes[stage.role], self._labels[stage.name]
        call = Call(stage.name, chain.order, request)
        completion: Completion | None = None
        try:
            await self._wait(lane, call, journal, ready)
            submit = self._clock.now()
            journal.active.begin(submit)
            try:
                completion = await self._generate(stage.role, structs.replace(request, priority=lane.priority(call)))
            except ChainError as error:
                journal.call(label, call, chain.next_index, None, error, ready, submit)
                raise
            finally:
                journal.active.end(self._clock.now())
            journal.call(label, call, chain.next_index, completion, None, ready, submit)
            return completion
        finally:
            lane.leave(call, completion.usage.output_tokens // max(1, request.n) if completion else None)
            _start(lane)

    async def _wait(self, lane: Lane, call: Call, journal: Journal, ready: float) -> None:
        """Until the lane lets `call` start."""
        journal.waiting.begin(ready)
        lane.put(call)
        _start(lane)
        try:
            if not call.started:
                call.gate = anyio.Event()
                await call.gate.wait()
        finally:
            journal.waiting.end(self._clock.now())

    async def _generate(self, role: str, request: Request) -> Completion:
        timeout_s = self.plan.engines[role].timeout_s
        with anyio.move_on_after(timeout_s):
            return await self._engines[role].generate(request)
        raise CallTimeout(f"engine {role!r} did not answer within timeout_s={timeout_s:g}")


class Walk:
    """Where a chain is, for the record of an error."""

    __slots__ = ("chain", "stage")

    def __init__(self) -> None:
        self.chain: Chain | None = None
        self.stage: str | None = None


def _start(lane: Lane) -> None:
    """Let every call go that may."""
    while (call := lane.take()) is not None:
        if call.gate is not None:
            call.gate.set()


def _due(node: Stage | Loop, chain: Chain) -> bool:
    """Does the node's condition hold? A verdict that was not given holds for neither."""
    if node.condition is None:
        return True
    verdict = chain.verdicts.get(node.condition.stage)
    return verdict is not None and verdict.accepted == node.condition.accepted


def _label(stage: Stage, plan: Plan) -> StageLabel:
    spec = stage.spec
    role = spec.engine  # type: ignore[attr-defined]
    model = str(getattr(plan.engines[role], "model", role))
    return StageLabel(stage.name, str(type(spec).__struct_config__.tag), role, model, spec.judges, spec.drafts)


def _first(group: BaseExceptionGroup[RunError]) -> RunError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, RunError)
    return error
