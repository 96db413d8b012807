"""Takes one chain through the plan: finds the stages that are due, sends their requests, applies their outcomes in plan order."""

from collections.abc import Mapping, Sequence

import anyio
import anyio.to_thread
from msgspec import Struct

from pipeline.engine import Completion, Request
from pipeline.errors import ContextOverflow, PipelineError, RunError
from pipeline.graph.plan import READINGS, VERDICTS, Block, Condition, LoopNode, Plan, StageNode
from pipeline.reasoning.chain import Chain
from pipeline.runtime.admission.admission import AdmissionMember
from pipeline.runtime.chain_recorder import ChainRecorder, StageLabel
from pipeline.runtime.clock import Clock
from pipeline.runtime.dispatch import Dispatcher
from pipeline.runtime.schedule import Schedule
from pipeline.stages.base import Stage


class BoundStage(Struct, frozen=True, kw_only=True):
    """A stage of the plan with all that a run needs to carry it out."""

    stage: Stage
    label: StageLabel
    dispatcher: Dispatcher | None
    """None of a stage that calls no engine."""
    in_thread: bool
    """True if its outcome is computed in a thread."""
    rank: int
    answers: bool
    """True if it writes the answer, which it does also where the thought has filled the context."""


def bind(plan: Plan, stages: Mapping[str, Stage], dispatchers: Mapping[str, Dispatcher], *, threads: bool = False) -> dict[str, BoundStage]:
    """The stages of `plan` by name, with the dispatchers of their engines, which are given by role. `threads`: stages may compute in
    threads."""
    found: dict[str, BoundStage] = {}
    for node in plan.stages():
        built, spec = stages[node.name], node.spec
        model = str(getattr(plan.engines.get(built.role), "model", built.role))
        found[node.name] = BoundStage(
            stage=built,
            label=StageLabel(name=node.name, kind=spec.kind, purpose=spec.purpose, role=built.role, model=model),
            dispatcher=dispatchers.get(built.role),
            in_thread=threads and built.in_thread,
            rank=node.rank,
            answers=spec.answers,
        )
    return found


class ChainRunner:
    """Runs one chain, and reports every stage, call and step to `record`."""

    __slots__ = ("_bound", "_chain", "_clock", "_member", "_overflow", "_record", "_schedule")

    def __init__(
        self,
        chain: Chain,
        bound: Mapping[str, BoundStage],
        schedule: Schedule,
        member: AdmissionMember | None,
        clock: Clock,
        record: ChainRecorder,
    ) -> None:
        """`bound`: the stages of its plan by name."""
        self._chain, self._bound, self._schedule, self._member = chain, bound, schedule, member
        self._clock, self._record = clock, record
        self._overflow: ContextOverflow | None = None
        """The error of the last prompt that did not fit into the context; None while all fit."""

    async def run(self, block: Block) -> None:
        """Run the `block` of the plan. Raises `ContextOverflow` where not even the problem fits."""
        await self._block(block)
        if self._overflow is not None and not self._chain.thought:
            raise self._overflow

    async def _block(self, block: Block) -> None:
        """Run the levels of `block`, one after the other."""
        chain = self._chain
        for level in block.levels:
            # Decided before the level begins: its own verdicts do not count.
            due = [node for node in level if node.condition is None or _holds(node.condition, chain)]
            if stages := [self._bound[node.name] for node in due if isinstance(node, StageNode)]:
                await self._level(stages)
            for node in due:
                if isinstance(node, LoopNode) and not chain.finished:
                    await self._loop(node)
            if chain.finished:
                return

    async def _loop(self, loop: LoopNode) -> None:
        chain = self._chain
        chain.enter(loop.until)
        body, reason = loop.body, None
        while not chain.finished and (reason := await self._exit(loop)) is None:
            chain.begin_round()
            if body.first_writer and chain.next_index <= body.first_steps:
                await self._level([self._bound[body.first_writer.name]])
            else:
                await self._block(body)
        chain.leave(reason or chain.default_stop_reason())

    async def _exit(self, loop: LoopNode) -> str | None:
        """The stop condition that holds, or None; where none does and the answer is to be asked for, with that answer."""
        chain = self._chain
        reason = chain.exit(loop.until)
        if reason is not None or not (loop.trial and chain.ending.tries(loop.until, chain.steps)):
            return reason
        await self._level([self._bound[loop.trial.name]])
        return chain.exit(loop.until)

    async def _level(self, stages: Sequence[BoundStage]) -> None:
        """Run `stages` concurrently and apply their outcomes in plan order, so that timing never changes an answer.

        When one of their prompts does not fit, none of the outcomes is applied, and the thought is over unless it was a trial's.
        """
        chain = self._chain
        if chain.ending.overflowed and not any(stage.answers for stage in stages):
            return
        first = stages[0]
        self._record.enter(first.label.name)
        ready = self._clock.now()
        await self._schedule.before_level(first.rank, self._member, chain.contexts)
        requests = [stage.stage.requests(chain) for stage in stages]
        try:
            if len(stages) == len(requests[0]) == 1:  # most levels: one call
                answers = [[await self._call(first, requests[0][0], ready)]]
            else:
                answers = await self._ask(stages, requests, ready)
        except ContextOverflow as overflow:
            if first.label.purpose != "trial":  # without a trial answer the thought goes on
                chain.ending.overflow()
                self._overflow = overflow
            return
        for stage, completions in zip(stages, answers, strict=True):
            name = stage.label.name
            self._record.enter(name)
            if stage.in_thread:
                outcome = await anyio.to_thread.run_sync(stage.stage.apply, chain, completions)
            else:
                outcome = stage.stage.apply(chain, completions)
            if (step := chain.apply(name, outcome)) is not None:
                self._record.commit(step)

    async def _ask(self, stages: Sequence[BoundStage], asked: Sequence[Sequence[Request]], ready: float) -> list[list[Completion]]:
        """All completions, in the order of the requests. Where calls failed, waits for all and raises the first `RunError`, else the
        first error."""
        results: list[list[Completion | PipelineError | None]] = [[None] * len(requests) for requests in asked]

        async def one(stage: BoundStage, request: Request, row: list[Completion | PipelineError | None], place: int) -> None:
            try:
                row[place] = await self._call(stage, request, ready)
            except PipelineError as error:
                row[place] = error

        async with anyio.create_task_group() as calls:
            for stage, requests, row in zip(stages, asked, results, strict=True):
                for place, request in enumerate(requests):
                    calls.start_soon(one, stage, request, row, place)
        errors = [r for row in results for r in row if isinstance(r, PipelineError)]
        if errors:
            raise next((error for error in errors if isinstance(error, RunError)), errors[0])
        return [[r for r in row if isinstance(r, Completion)] for row in results]

    async def _call(self, stage: BoundStage, request: Request, ready: float) -> Completion:
        chain, label = self._chain, stage.label
        index = 0 if label.purpose == "guide" and not chain.thought else chain.next_index
        assert stage.dispatcher is not None, "a stage without an engine makes no requests"
        return await stage.dispatcher.call(self._record, chain, label, index, request, ready)


def _holds(condition: Condition, chain: Chain) -> bool:
    """True if the condition of a node holds; without a verdict neither `accepted` nor `rejected` does, without a reading of the gate
    neither `passed` nor `flagged`."""
    verdict, reading = chain.verdicts.get(condition.stage), chain.readings.get(condition.stage)
    words = [*([VERDICTS[not verdict.accepted]] if verdict else []), *([READINGS[reading.flagged]] if reading else [])]
    return condition.word in words
