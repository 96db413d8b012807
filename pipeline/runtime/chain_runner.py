"""Takes one chain through the plan: finds the stages that are due, sends their requests, applies their outcomes in plan order."""

from collections.abc import Mapping, Sequence

import anyio

from pipeline.engine import Completion, Request
from pipeline.errors import ContextOverflow, PipelineError, RunError
from pipeline.graph.plan import Block, LoopNode, StageNode
from pipeline.reasoning.chain import Chain
from pipeline.runtime.chain_recorder import ChainRecorder, Clock, StageLabel
from pipeline.runtime.dispatch import Dispatcher
from pipeline.runtime.schedule import Schedule
from pipeline.stages.base import Stage


class RunContext:
    """What all chain runners of a run share: stages, their labels, dispatchers, schedule and clock."""

    def __init__(
        self,
        stages: Mapping[str, Stage],
        labels: Mapping[str, StageLabel],
        dispatchers: Mapping[str, Dispatcher],
        schedule: Schedule,
        clock: Clock,
    ) -> None:
        self.stages, self.labels, self.dispatchers, self.schedule, self.clock = stages, labels, dispatchers, schedule, clock


class ChainRunner:
    """Runs one chain; `stage` is the name of the stage that it is in, for the record of an error."""

    __slots__ = ("_context", "chain", "overflow", "record", "stage")

    def __init__(self, context: RunContext, record: ChainRecorder) -> None:
        self._context, self.record = context, record
        self.chain: Chain | None = None
        self.stage: str | None = None
        self.overflow: ContextOverflow | None = None
        """The error of a prompt that did not fit into the context; None while all fit."""

    async def block(self, chain: Chain, block: Block) -> None:
        """Run the levels of `block`, one after the other."""
        for level in block.levels:
            due = [node for node in level if _due(node, chain)]
            if stages := [node for node in due if isinstance(node, StageNode)]:
                await self._level(chain, stages)
            for node in due:
                if isinstance(node, LoopNode):
                    await self._loop(chain, node)

    async def _loop(self, chain: Chain, loop: LoopNode) -> None:
        chain.enter(loop.until)
        body = loop.body
        while (reason := chain.exit(loop.until)) is None:
            chain.begin_round()
            if body.first_writer is not None and chain.next_index <= body.first_steps:
                await self._level(chain, [body.first_writer])
            else:
                await self.block(chain, body)
        chain.leave(reason)

    async def _level(self, chain: Chain, stages: Sequence[StageNode]) -> None:
        """Run `stages` concurrently and apply their outcomes in plan order, so that timing never changes an answer.

        When one of their prompts does not fit, the thought is over and none of the outcomes is applied.
        """
        if chain.overflowed and not any(stage.spec.answers for stage in stages):
            return
        context, self.stage = self._context, stages[0].name
        ready = context.clock.now()
        await context.schedule.turn(stages[0].rank)
        built = [context.stages[stage.name] for stage in stages]
        try:
            answers = await self._ask(chain, [(stage, stage.requests(chain)) for stage in built], ready)
        except ContextOverflow as overflow:
            chain.overflowed, self.overflow = True, overflow
            return
        for stage, completions in zip(built, answers, strict=True):
            self.stage = stage.name
            if (step := chain.apply(stage.name, stage.apply(chain, completions))) is not None:
                self.record.commit(step)

    async def _ask(self, chain: Chain, asked: Sequence[tuple[Stage, Sequence[Request]]], ready: float) -> list[list[Completion]]:
        """All completions, in the order of the requests. Where calls failed, waits for all and raises the first `RunError`, else the
        first error."""
        if len(asked) == 1 and len(asked[0][1]) == 1:
            stage, [request] = asked[0]
            return [[await self._call(chain, stage, request, ready)]]
        results: list[list[Completion | PipelineError | None]] = [[None] * len(requests) for _, requests in asked]

        async def one(stage: Stage, request: Request, row: list[Completion | PipelineError | None], place: int) -> None:
            try:
                row[place] = await self._call(chain, stage, request, ready)
            except PipelineError as error:
                row[place] = error

        async with anyio.create_task_group() as calls:
            for (stage, requests), row in zip(asked, results, strict=True):
                for place, request in enumerate(requests):
                    calls.start_soon(one, stage, request, row, place)
        errors = [r for row in results for r in row if isinstance(r, PipelineError)]
        if errors:
            raise next((error for error in errors if isinstance(error, RunError)), errors[0])
        return [[r for r in row if isinstance(r, Completion)] for row in results]

    async def _call(self, chain: Chain, stage: Stage, request: Request, ready: float) -> Completion:
        label = self._context.labels[stage.name]
        index = 0 if label.purpose == "guide" and not chain.steps else chain.next_index
        return await self._context.dispatchers[stage.role].call(self.record, label, chain.order, index, request, ready)


def _due(node: StageNode | LoopNode, chain: Chain) -> bool:
    """Whether the node's condition holds; without a verdict neither `accepted` nor `rejected` does."""
    if node.condition is None:
        return True
    verdict = chain.verdicts.get(node.condition.stage)
    return verdict is not None and verdict.accepted == node.condition.accepted
