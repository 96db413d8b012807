"""Takes the chains of a recorded run through their plan again, with the recorded calls as the answers: a run folder enters, chains leave.

The same stages make the same requests as when the run was recorded. Each is compared with what was recorded (`Request.digest`), so that
a prompt that leaves here is, to the last token, one that an engine was asked.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.data.problems import Problem, open_problems
from pipeline.engine import Completion, Request, Tokenizer, Usage
from pipeline.engines.replay.recording import Recording, tokenizer_of
from pipeline.engines.replay.spec import ReplaySpec
from pipeline.errors import BadRow, InputError, NeverGenerated, PipelineError, RunError
from pipeline.graph.plan import Plan
from pipeline.reasoning.chain import Chain, Span, Step
from pipeline.reasoning.prompts import openings, role_of
from pipeline.reasoning.translate import TokenTranslator
from pipeline.runtime.chain_recorder import ChainRecorder, Clock, Progress, StageLabel
from pipeline.runtime.chain_runner import BoundBlock, ChainRunner, bind
from pipeline.runtime.dispatch import Dispatcher
from pipeline.runtime.executor import MODES
from pipeline.runtime.resume_state import ResumedCall, ResumedChain, ResumeState
from pipeline.runtime.schedule import Pipelined
from pipeline.runtime.speculation.modes import Change, Mode, ModeControl
from pipeline.runtime.speculation.switch import ModeSwitch
from pipeline.session.resume import ANSWER, USAGE
from pipeline.stages.build import build_stages, builders_of
from pipeline.store.events import UNFINISHED, CallRow, ChainRow, StepRow
from pipeline.store.kept_problems import kept_problems
from pipeline.store.read import read_batches
from pipeline.store.run_file import RunFile

LEARNER = "learner"
"""The key of the builder, and of the context in every chain, that belongs to a model which was not in the run."""
WINDOW = 4096
"""Chains whose calls are in memory together; every window reads the tables once."""
CHAIN = ("chain_id", "input_row", "sample_index", "stop_reason", "correct", "reference_answer", "grader")
CALL = ("chain_id", "request_id", "error_type", "client_wait_s", *USAGE, *ANSWER)
_NO_LIMIT = 2**31
"""A context length, in tokens, that no chain reaches."""


class Asked(Struct, frozen=True, kw_only=True):
    """A request that a stage made, and the chain as it was then."""

    label: StageLabel
    request: Request
    candidates: tuple[Span, ...]
    """The candidates of the step so far."""
    distinct: tuple[int, ...]
    """Indices of those that are judged: identical ones once."""


class RetracedStep(Struct, frozen=True, kw_only=True):
    """A committed step, with the requests that led to it."""

    step: Step
    asked: tuple[Asked, ...]


class RetracedChain(Struct, frozen=True, kw_only=True):
    """A chain of the run that finished, as it was when it ended."""

    chain: Chain
    steps: tuple[RetracedStep, ...]
    correct: bool | None
    """The grade of its answer, as the run folder has it; None: there is none."""
    reference_answer: str | None
    grader: str
    """How its answer was graded."""
    stop_reason: str
    """What ended its thought."""
    ended: bool
    """Whether its last call came to its own end, and was not cut."""


class Retracer:
    """The finished chains of one run folder, in the order of the input."""

    def __init__(self, run: Path, learner: Tokenizer | None = None) -> None:
        """With `learner`, the tokenizer of a model that was not in the run, every chain has its context at the key `LEARNER`, too.

        Raises `InputError` or `GraphError` where the run cannot be retraced: a stage or an engine is not installed, a tokenizer is gone.
        """
        self.run, self.record = run, RunFile.read(run)
        self.plan, self.lost, self.unfinished = self.record.plan, 0, 0
        """`lost`: chains whose recorded calls do not lead to their recorded steps; `unfinished`: those that failed or were interrupted."""
        recording, spec = Recording(str(run), self.record), ReplaySpec(run=str(run))
        tokenizers = {role: tokenizer_of(role, spec, recording) for role in self.plan.engines}
        limits = {role: recording.limits(role).max_model_len for role in self.plan.engines}
        self.builders = builders_of(self.plan, tokenizers | ({LEARNER: learner} if learner else {}))
        self.stages = build_stages(self.plan, self.builders, str(run))
        self._openings, self._limits = openings(self.builders), limits | {LEARNER: _NO_LIMIT}
        own = {key: builder.tokenizer for key, builder in self.builders.items() if key == role_of(key)}
        self._translator = TokenTranslator(own, self.plan.prompts.thought)

    def problems(self) -> Iterator[Problem | BadRow]:
        """What the input of the run had in its rows. Raises `InputError` where it is gone and was not kept."""
        about = self.record.input
        problems = kept_problems(self.run, about) or open_problems(about.file, about.columns, about.part)
        if problems.check().sha256 != about.sha256:
            raise InputError(str(problems.path), "has changed since this run, which kept no copy of it")
        return problems.unchanged()

    def chains(self) -> Iterator[RetracedChain]:
        """The chains that finished. Raises `InputError` where a table cannot be read, or the problems are gone and were not kept."""
        ended = self._ended()
        problems = self.problems()
        item = next(problems, None)
        for start in range(0, ended.num_rows, WINDOW):
            rows = ended.slice(start, WINDOW).to_pylist()
            recorded = self._recorded([row["chain_id"] for row in rows])
            begun = []
            for row in rows:
                while item is not None and item.row < row["input_row"]:
                    item = next(problems, None)
                if isinstance(item, Problem) and item.row == row["input_row"]:
                    begun.append((item, row, recorded[row["chain_id"]]))
            yield from anyio.run(partial(self._retraced, begun))

    def _ended(self) -> pa.Table:
        """The rows of finished chains, by problem and sample."""
        batches = list(read_batches(self.run, "chains", CHAIN))
        if not batches:
            raise InputError(str(self.run), "has no chains: there is nothing to export")
        table = pa.Table.from_batches(batches)
        unfinished = pc.is_in(table.column("stop_reason"), pa.array(UNFINISHED, pa.string()))
        ended = table.filter(pc.invert(unfinished))
        self.unfinished = table.num_rows - ended.num_rows
        return ended.sort_by([("input_row", "ascending"), ("sample_index", "ascending")])

    def _recorded(self, names: Sequence[str]) -> dict[str, ResumedChain]:
        """The answered calls and the steps of these chains."""
        found = {name: ResumedChain(calls={}, steps=[], modes=[]) for name in names}
        wanted = pa.array(names, pa.string())
        for row in _rows(self.run, "steps", ["chain_id", "step_token_ids"], ["mode"], wanted):
            found[row["chain_id"]].steps.append(tuple(row["step_token_ids"]))
            found[row["chain_id"]].modes.append(row.get("mode"))
        for row in _rows(self.run, "calls", CALL, ["prompt_digest"], wanted):
            if row["error_type"] is None:
                found[row["chain_id"]].calls[row["request_id"]] = _call(row)
        return found

    async def _retraced(self, begun: Sequence[tuple[Problem, Mapping[str, Any], ResumedChain]]) -> list[RetracedChain]:
        found, bound = [], self._bound()
        for problem, row, recorded in begun:
            if (retraced := await self._retrace(bound, problem, row, recorded)) is None:
                self.lost += 1
            else:
                found.append(retraced)
        return found

    async def _retrace(
        self, bound: tuple[BoundBlock, ModeSwitch | None], problem: Problem, row: Mapping[str, Any], recorded: ResumedChain
    ) -> RetracedChain | None:
        """The chain of a row of the table `chains`; None where its calls do not lead to its steps."""
        sample, seed, steps = row["sample_index"], self.record.seed, len(recorded.steps)
        order = (problem.row - 1) * self.record.samples + sample
        clock = Clock(0, lambda: 0.0)
        record = _Retracing(self.record.run_id, self.plan, clock, problem, sample, recorded)
        mode = MODES.get(self.plan.speculate)
        chain = Chain(problem, sample, order, seed, self._openings, self._translator, self._limits, mode)
        record.chain = chain
        runner = ChainRunner(Pipelined(1), None, clock, record)
        runner.begin(chain)
        block, switch = bound
        if switch is not None:
            switch.enter(order, None)
        try:
            await runner.block(chain, block)
        except RunError:
            raise
        except PipelineError:
            return None
        if len(record.committed) != steps:
            return None
        return RetracedChain(
            chain=chain,
            steps=tuple(record.committed),
            correct=row["correct"],
            reference_answer=row["reference_answer"],
            grader=row["grader"],
            stop_reason=row["stop_reason"],
            ended=record.ended,
        )

    def _bound(self) -> tuple[BoundBlock, ModeSwitch | None]:
        """The plan with recorded calls in place of its engines, and the switch of one with `speculate: auto`."""
        recalls = {role: _Recalls(self.builders[role].tokenizer) for role in self.plan.engines}
        switch = None
        if (direct := self.plan.direct) is not None:
            role = str(direct.response.spec.role)
            switch = ModeSwitch(_AsRecorded(), recalls[role], role, Clock(0, lambda: 0.0), Pipelined(1))
        return bind(self.plan, self.stages, cast(Mapping[str, Dispatcher], recalls), switch), switch


class _AsRecorded(ModeControl):
    """Decides nothing: each step of a chain that finished has its recorded mode (`ResumedChain.mode`)."""

    changes: tuple[Change, ...] = ()
    most: int | None = None

    def mode(self, order: int, context_tokens: int, now: float) -> Mode:
        return "direct"

    def interrupts(self, now: float) -> Sequence[int]:
        return ()

    def wake(self) -> float:
        return math.inf

    def _heard(self, *told: Any, **named: Any) -> None:
        """Takes note of nothing."""

    enter = leave = pause = resume = exhausted = wrote = called = _heard


class _Recalls:
    """What answers in a `Dispatcher`'s place: recorded calls alone."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    async def call(
        self, record: ChainRecorder, label: StageLabel, order: int, step_index: int, request: Request, ready: float
    ) -> Completion:
        """Raises `NeverGenerated` for a request that was not recorded."""
        if (answered := record.recall(label, request)) is None:
            raise NeverGenerated(request.request_id, "the recorded run made no such call")
        return answered.completion(self._tokenizer)

    def interrupt(self, order: int) -> None:
        """Recorded calls have ended."""


class _Retracing(ChainRecorder):
    """Notes the requests and the steps of one chain, and writes no rows."""

    def __init__(self, run_id: str, plan: Plan, clock: Clock, problem: Problem, sample_index: int, recorded: ResumedChain) -> None:
        super().__init__(run_id, _NoRows(), Progress(plan, ResumeState()), clock, problem, sample_index, recorded)
        self.chain: Chain | None = None
        self.committed: list[RetracedStep] = []
        self.ended = False
        """Whether the last call so far came to its own end."""
        self._asked: list[Asked] = []

    def recall(self, label: StageLabel, request: Request) -> ResumedCall | None:
        assert self.chain is not None
        candidates, distinct = self.chain.candidates, tuple(self.chain.distinct_candidates())
        self._asked.append(Asked(label=label, request=request, candidates=candidates, distinct=distinct))
        answered = super().recall(label, request)
        self.ended = answered is not None and "length" not in answered.finish_reason
        return answered

    def commit(self, step: Step) -> None:
        super().commit(step)
        self.committed.append(RetracedStep(step=step, asked=tuple(self._asked)))
        self._asked = []


class _NoRows:
    """A `RowSink` that keeps nothing."""

    def call(self, row: CallRow) -> None:
        """Does nothing."""

    def step(self, row: StepRow) -> None:
        """Does nothing."""

    def chain(self, row: ChainRow) -> None:
        """Does nothing."""

    async def room(self) -> None:
        """Does nothing."""


def _rows(run: Path, table: str, columns: Sequence[str], maybe: Sequence[str], wanted: pa.Array) -> Iterator[dict[str, Any]]:
    for batch in read_batches(run, table, columns, maybe):
        yield from batch.filter(pc.is_in(batch.column("chain_id"), wanted)).to_pylist()


def _call(row: Mapping[str, Any]) -> ResumedCall:
    return ResumedCall(
        request_id=row["request_id"],
        prompt_digest=row.get("prompt_digest"),
        usage=Usage(**{name: row[name] for name in USAGE}),
        wait_s=row["client_wait_s"],
        **{name: row[name] for name in ANSWER},
    )
