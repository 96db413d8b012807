"""Takes the chains of a recorded run through their plan again, with the recorded calls as the answers: a run folder enters, chains leave.

The same stages make the same requests as when the run was recorded. Each is compared with what was recorded (`Request.digest`), so that
a prompt that leaves here is, to the last token, one that an engine was asked.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import cast

import anyio
import msgspec
from msgspec import Struct

from pipeline.data.problems import Problem
from pipeline.engine import Completion, Request, Tokenizer
from pipeline.engines.sim.replay import recorded_limit, recorded_tokenizer
from pipeline.errors import NeverGenerated, PipelineError, RunError
from pipeline.export.solved import solved
from pipeline.reasoning.chain import Chain, Step
from pipeline.reasoning.translate import TokenTranslator
from pipeline.runtime.chain_recorder import ChainRecorder, StageLabel
from pipeline.runtime.chain_runner import ChainRunner, bind
from pipeline.runtime.clock import Clock
from pipeline.runtime.dispatch import Dispatcher
from pipeline.runtime.schedule import Schedule
from pipeline.stages.build import build_stages, builders_of
from pipeline.store.query import Query
from pipeline.store.resume import RECORDED, ResumedChain
from pipeline.store.rows import UNFINISHED, AnsweredCall, ChainRow
from pipeline.store.run_file import RunFile

WINDOW = 4096
"""Chains whose calls are in memory together; every window reads the tables once."""
OF_CHAINS = "chain_id IN (SELECT unnest($names))"
STEPS = f"SELECT chain_id, step_token_ids FROM steps WHERE {OF_CHAINS} ORDER BY chain_id, step_index"
CALLS = f"SELECT {', '.join(RECORDED)} FROM calls WHERE error_type IS NULL AND {OF_CHAINS}"


class AskedRequest(Struct, frozen=True, kw_only=True):
    """A request that a stage made."""

    label: StageLabel
    request: Request
    distinct: tuple[int, ...]
    """Indices of the candidates that are judged: identical ones once."""


class RetracedChain(Struct, frozen=True, kw_only=True):
    """A chain of the run that finished, as it was when it ended."""

    chain: Chain
    row: ChainRow
    """With the grade of its answer."""
    steps: tuple[tuple[Step, tuple[AskedRequest, ...]], ...]
    """Each committed step, with the requests that led to it."""


class Retracer:
    """The finished chains of one run folder, in the order of the input."""

    def __init__(self, run: Path) -> None:
        """Raises `InputError` or `GraphError` where the run cannot be retraced: a stage is not installed, a tokenizer is gone."""
        self.run, self.record = run, RunFile.read(run)
        self.plan, self.lost, self.unfinished = self.record.plan, 0, 0
        """`lost`: chains whose recorded calls do not lead to their recorded steps; `unfinished`: those that failed or were interrupted."""
        tokenizers = {role: recorded_tokenizer(str(run), self.record, role) for role in self.plan.engines}
        self._limits = {role: recorded_limit(run, self.record, role, "max_model_len") for role in self.plan.engines}
        self.builders = builders_of(self.plan, tokenizers)
        self.stages = build_stages(self.plan, self.builders, str(run))
        self._translator = TokenTranslator(tokenizers, self.plan.prompts.thought)
        answers = {role: cast(Dispatcher, _RecordedAnswers(tokenizer)) for role, tokenizer in tokenizers.items()}
        self._bound = bind(self.plan, self.stages, answers)

    def chains(self) -> Iterator[RetracedChain]:
        """The chains that finished. Raises `InputError` where a table cannot be read."""
        with Query(self.run) as db:
            found = ((problem, row) for problem, _, rows in solved(self.run, self.record, db, thoughts=False) for row in rows)
            while window := list(islice(found, WINDOW)):
                recorded = _recorded(db, [row.chain_id for _, row in window])
                for problem, row in window:
                    if not isinstance(problem, Problem) or row.stop_reason in UNFINISHED:
                        self.unfinished += 1
                    elif (retraced := self._retrace(problem, row, recorded[row.chain_id])) is None:
                        self.lost += 1
                    else:
                        yield retraced

    def _retrace(self, problem: Problem, row: ChainRow, recorded: ResumedChain) -> RetracedChain | None:
        """The chain of a row of the table `chains`; None where its calls do not lead to its steps."""
        order = (problem.row - 1) * self.record.input.samples + row.sample_index
        chain = Chain(problem, row.sample_index, order, self.record.options.seed, self.builders, self._translator, self._limits)
        record = _Record(chain, recorded)
        runner = ChainRunner(chain, self._bound, Schedule(1), None, Clock(0, lambda: 0.0), cast(ChainRecorder, record))
        try:
            anyio.run(runner.run, self.plan.block)
        except RunError:
            raise
        except PipelineError:
            return None
        if len(record.committed) != len(recorded.steps):
            return None
        return RetracedChain(chain=chain, row=row, steps=tuple(record.committed))


class _Record:
    """Answers a chain's requests from what was recorded, in a `ChainRecorder`'s place, and notes them with the steps."""

    def __init__(self, chain: Chain, recorded: ResumedChain) -> None:
        self._chain, self._recorded = chain, recorded
        self.committed: list[tuple[Step, tuple[AskedRequest, ...]]] = []
        self._asked: list[AskedRequest] = []

    def answer(self, label: StageLabel, request: Request) -> AnsweredCall:
        """The recorded answer to a request; raises `NeverGenerated` where there is none."""
        self._asked.append(AskedRequest(label=label, request=request, distinct=tuple(self._chain.distinct_candidates())))
        if (answered := self._recorded.take(request)) is None:
            raise NeverGenerated("the recorded run made no such call")
        return answered

    def enter(self, stage: str) -> None:
        """Nothing is recorded of it."""

    def commit(self, step: Step) -> None:
        self._recorded.holds(len(self.committed), step.span.ids)  # raises where it is another one
        self.committed.append((step, tuple(self._asked)))
        self._asked = []


class _RecordedAnswers:
    """The `Dispatcher` of a chain whose calls were recorded."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    async def call(self, record: _Record, chain: Chain, label: StageLabel, step_index: int, request: Request, ready: float) -> Completion:
        return record.answer(label, request).completion(self._tokenizer)


def _recorded(db: Query, names: Sequence[str]) -> dict[str, ResumedChain]:
    """The answered calls and the steps of these chains."""
    found = {name: ResumedChain(calls={}, steps=[]) for name in names}
    for row in db.arrow(STEPS, names=names).to_pylist():
        found[row["chain_id"]].steps.append(tuple(row["step_token_ids"]))
    for row in db.arrow(CALLS, names=names).to_pylist():
        found[row["chain_id"]].calls[row["request_id"]] = msgspec.convert(row, AnsweredCall)
    return found
