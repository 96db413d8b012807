"""Takes the chains of a recorded run through their plan again, with the recorded calls as the answers: a run folder enters, chains leave.

The same stages make the same requests as when the run was recorded. Each is compared with what was recorded (`Request.digest`), so that
a prompt that leaves here is, to the last token, one that an engine was asked.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import anyio
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.data.problems import Problem
from pipeline.engine import Completion, Request, Tokenizer
from pipeline.engines.sim.replay import recorded_limit, recorded_tokenizer
from pipeline.errors import InputError, NeverGenerated, PipelineError, RunError
from pipeline.reasoning.chain import Chain, Step
from pipeline.reasoning.translate import TokenTranslator
from pipeline.runtime.chain_recorder import ChainRecorder, StageLabel
from pipeline.runtime.chain_runner import ChainRunner, bind
from pipeline.runtime.clock import Clock
from pipeline.runtime.dispatch import Dispatcher
from pipeline.runtime.schedule import Schedule
from pipeline.stages.build import build_stages, builders_of
from pipeline.store.kept_problems import solved_problems
from pipeline.store.resume import RECORDED, ResumedChain
from pipeline.store.rows import UNFINISHED, AnsweredCall
from pipeline.store.run_file import RunFile
from pipeline.store.store import read_batches

WINDOW = 4096
"""Chains whose calls are in memory together; every window reads the tables once."""
GRADE = ("correct", "reference_answer", "grader")
CHAIN = ("chain_id", "input_row", "sample_index", "stop_reason", *GRADE)


class AskedRequest(Struct, frozen=True, kw_only=True):
    """A request that a stage made."""

    label: StageLabel
    request: Request
    distinct: tuple[int, ...]
    """Indices of the candidates that are judged: identical ones once."""


class RetracedChain(Struct, frozen=True, kw_only=True):
    """A chain of the run that finished, as it was when it ended."""

    chain: Chain
    steps: tuple[tuple[Step, tuple[AskedRequest, ...]], ...]
    """Each committed step, with the requests that led to it."""
    correct: bool | None
    """The grade of its answer, as the run folder has it; None: there is none."""
    reference_answer: str | None
    grader: str
    """How its answer was graded."""


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
        ended = self._ended()
        problems = iter(solved_problems(self.run, self.record))
        item = next(problems, None)
        for start in range(0, ended.num_rows, WINDOW):
            rows = ended.slice(start, WINDOW).to_pylist()
            recorded = self._recorded([row["chain_id"] for row in rows])
            for row in rows:
                while item is not None and item.row < row["input_row"]:
                    item = next(problems, None)
                if isinstance(item, Problem) and item.row == row["input_row"]:
                    retraced = self._retrace(item, row, recorded[row["chain_id"]])
                    self.lost += retraced is None
                    if retraced is not None:
                        yield retraced

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
        found = {name: ResumedChain(calls={}, steps=[]) for name in names}
        wanted = pa.array(names, pa.string())
        for row in _rows(self.run, "steps", ["chain_id", "step_token_ids"], wanted):
            found[row["chain_id"]].steps.append(tuple(row["step_token_ids"]))
        for row in _rows(self.run, "calls", RECORDED, wanted):
            if row["error_type"] is None:
                found[row["chain_id"]].calls[row["request_id"]] = msgspec.convert(row, AnsweredCall)
        return found

    def _retrace(self, problem: Problem, row: Mapping[str, Any], recorded: ResumedChain) -> RetracedChain | None:
        """The chain of a row of the table `chains`; None where its calls do not lead to its steps."""
        sample = row["sample_index"]
        order = (problem.row - 1) * self.record.input.samples + sample
        chain = Chain(problem, sample, order, self.record.options.seed, self.builders, self._translator, self._limits)
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
        return RetracedChain(chain=chain, steps=tuple(record.committed), **{name: row[name] for name in GRADE})


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


def _rows(run: Path, table: str, columns: Sequence[str], wanted: pa.Array) -> Iterator[dict[str, Any]]:
    for batch in read_batches(run, table, columns):
        yield from batch.filter(pc.is_in(batch.column("chain_id"), wanted)).to_pylist()
