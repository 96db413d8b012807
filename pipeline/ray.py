"""For pipelines of Ray Data: `Solver` is a class for `map_batches`, which solves the problems in its batches.

    ds = ray.data.read_parquet("problems/").filter(lambda row: row["level"] >= 4)
    ds = ds.map_batches(Solver, fn_constructor_kwargs={"graph": "speccot"}, batch_size=8, concurrency=(1, 4), num_gpus=2)
    ds.write_parquet("answers/")

Each actor of the pool opens its engines once and keeps up to 64 chains in flight, whatever the sizes of the batches are. Ray itself is not
imported here.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Future
from hashlib import blake2b
from itertools import count
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Unpack

import pyarrow as pa
from msgspec import structs

from pipeline.api import load_graph
from pipeline.cluster.messages import Assignment, Orders, ReplicaFailure
from pipeline.cluster.replica_thread import ReplicaThread
from pipeline.data.in_memory import ProblemList, is_frame, rows_of
from pipeline.data.part import ALL
from pipeline.data.problems import Problem
from pipeline.data.rows import Flaw
from pipeline.errors import BadRow, RunError, UsageError
from pipeline.export.answers import OURS
from pipeline.grading.answers import as_kind
from pipeline.grading.grader import BESIDE_ENGINES, Grader
from pipeline.graph.prompts import DEFAULT_PROMPTS
from pipeline.runtime.admission.admission import AdmissionName
from pipeline.session.options import Engines, Graph, GraphKeywords, RunOptions
from pipeline.session.prepare import RunSettings
from pipeline.store.events import UNFINISHED, ChainRow
from pipeline.text import storable

ANSWERED = pa.schema(
    [
        pa.field("problem_id", pa.string()),
        pa.field("answer", pa.string()),
        pa.field("answer_text", pa.string()),
        pa.field("reference_answer", pa.string()),
        pa.field("correct", pa.bool_()),
        pa.field("status", pa.string()),
        pa.field("error", pa.string()),
        pa.field("steps", pa.int64()),
        pa.field("thought_tokens", pa.int64()),
    ]
)
"""The columns that are added to a row. `status` is `done` or `failed`, and `error` says why; `correct` is null without a reference."""
TAKEN = (*ANSWERED.names, *OURS)
"""A column of the input with one of these names is called `input_NAME`, as in `pipeline export`."""


class Solver:
    """Solves problems with a graph on engines of its own, for Ray Data's `map_batches` or for any caller on asyncio.

    graph, engines, set, preset, judges: as of `pipeline.solve`. columns: names of a batch's columns by field, `{"problem": "question"}`.
    batch_size: chains in flight. seed: every random number derives from it and from a row's `problem_id`; where a batch has no such
    column, from the text of the problem. Raises `UsageError` or `RunError` where the engines cannot be opened.

    If its engines die for good the process ends at once (`os._exit(1)`), so that Ray starts another one: a worker that only raised would
    get the same batches again (https://github.com/ray-project/ray/issues/60145). `exits=False` raises `RunError` instead.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        engines: Engines | None = None,
        columns: Mapping[str, str] | None = None,
        batch_size: int = 64,
        admission: AdmissionName = "cache",
        seed: int = 0,
        exits: bool = True,
        **bound: Unpack[GraphKeywords],
    ) -> None:
        plan = load_graph(graph, engines, **bound)
        ProblemList([], columns or {}, ALL)  # refuses what is no name of a column
        options = RunOptions(graph=Path(plan.name), input=Path("batches"), batch_size=batch_size, admission=admission, seed=seed)
        self._columns, self._exits = dict(columns or {}), exits
        self._waiting: dict[str, tuple[Problem, list[Future[ChainRow]]]] = {}
        self._lock, self._orders = Lock(), count()
        self._failure: ReplicaFailure | None = None
        self._grader = Grader(2, nice=BESIDE_ENGINES)
        self._replica = ReplicaThread(RunSettings(plan=plan, options=options, run_id=plan.name, virtual_time=False))
        self._wait_open()
        Thread(target=self._take_reports, name="reports", daemon=True).start()

    async def __call__(self, batch: Any) -> AsyncIterator[pa.Table]:
        """Solve a batch, a mapping of columns or a table of Arrow or pandas. Gives tables with all of its columns and those of `ANSWERED`,
        in which its rows are as they finish, each once; a problem that cannot be solved is a row with an error."""
        columns = _columns(batch)
        table = batch if isinstance(batch, pa.Table) else pa.table({name: _array(values) for name, values in columns.items()})
        own = table.rename_columns([f"input_{name}" if name in TAKEN else name for name in table.column_names])
        rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        answers: list[Future[ChainRow]] = []
        pending: dict[asyncio.Future[ChainRow], int] = {}
        try:
            for place, item in enumerate(ProblemList(rows, self._columns, ALL)):
                if isinstance(item, BadRow):
                    yield _joined(own, {place: {"problem_id": item.problem_id, "status": "failed", "error": item.what}})
                else:
                    answers.append(self._submit(self._named(item)))
                    pending[asyncio.wrap_future(answers[-1])] = place
            while pending:
                ready, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                yield _joined(own, {pending.pop(each): await asyncio.to_thread(self._answered, each.result()) for each in ready})
        finally:
            for answer in answers:
                answer.cancel()  # of a batch that is abandoned, whose chains are solved all the same

    def _named(self, problem: Problem) -> Problem:
        """The problem as it is in whatever batch: where it has no name of its own, from which its seeds come, with one made of its text."""
        problem_id = problem.problem_id
        if problem_id == f"(row {problem.row})" or (problem_id == str(problem.row) and "problem_id" not in self._columns):
            problem_id = blake2b(problem.told(DEFAULT_PROMPTS).encode(), digest_size=12).hexdigest()
        return structs.replace(problem, row=1, problem_id=problem_id)

    def _submit(self, problem: Problem) -> "Future[ChainRow]":
        """Hand a problem to the replica. One that is in flight already is not solved twice."""
        answer: Future[ChainRow] = Future()
        with self._lock:
            if self._failure is not None:
                answer.set_exception(RunError(self._failure.what))
                return answer
            name = next(name for name in _names(problem.problem_id) if self._waiting.get(name, (problem,))[0] == problem)
            new = name not in self._waiting
            self._waiting.setdefault(name, (problem, []))[1].append(answer)
        if new:
            chain = Assignment(item=structs.replace(problem, problem_id=name), sample_index=0, order=next(self._orders))
            self._replica.order(Orders(chains=(chain,), unix_ns=time.time_ns()))
        return answer

    def _take_reports(self) -> None:
        """Pass rows on to those who wait for them, for as long as the replica lives."""
        while True:
            report = self._replica.report()
            for row in report.chains:
                with self._lock:
                    _, answers = self._waiting.pop(row.problem_id)
                for answer in answers:
                    if answer.set_running_or_notify_cancel():
                        answer.set_result(row)
            if report.over:
                self._end(report.failure or ReplicaFailure(what="the replica ended of its own accord"))
                return

    def _end(self, failure: ReplicaFailure) -> None:
        """The replica is gone for good."""
        print(f"pipeline: {failure.what}", file=sys.stderr, flush=True)
        if self._exits:
            os._exit(1)
        with self._lock:
            self._failure = failure
            left = [answer for _, answers in self._waiting.values() for answer in answers]
            self._waiting.clear()
        for answer in left:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(RunError(failure.what))

    def _wait_open(self) -> None:
        while True:
            report = self._replica.report()
            if report.failure is not None:
                raise (UsageError if report.failure.usage else RunError)(report.failure.what)
            if report.opened is not None:
                return

    def _answered(self, row: ChainRow) -> dict[str, Any]:
        """The values of `ANSWERED` for a problem, with its grade."""
        failed, correct = row.stop_reason in UNFINISHED, None
        if row.reference_answer is not None and not failed:
            correct = row.answer is not None and self._grader.grade(as_kind(row.grader), row.answer, row.reference_answer).correct
        return {
            **{name: getattr(row, name) for name in ANSWERED.names if hasattr(row, name)},
            "correct": correct,
            "status": "failed" if failed else "done",
            "error": f"{row.error_type}: {row.error_message}" if failed else None,
        }


def _names(problem_id: str) -> Iterator[str]:
    """The name of a problem, and others for further problems of the same name."""
    yield problem_id
    yield from (f"{problem_id}~{number}" for number in count(2))


def _columns(batch: Any) -> dict[str, list[Any]]:
    """The columns of a batch as Ray Data hands it over; raises `UsageError` for what is none."""
    if isinstance(batch, Mapping):
        return {name: list(values) for name, values in batch.items()}
    if is_frame(batch):
        rows = list(rows_of(batch))
        names = batch.column_names if isinstance(batch, pa.Table) else batch.columns
        return {str(name): [None if isinstance(row, Flaw) else row[name] for row in rows] for name in names}
    raise UsageError(f"a batch is a `{type(batch).__name__}`; expected columns of numpy, or a table of Arrow or pandas")


def _array(values: list[Any]) -> pa.Array:
    """Values as a column; what Arrow cannot hold, such as half of a surrogate pair, as text that shows it."""
    try:
        return pa.array(values)
    except (pa.ArrowException, UnicodeError, TypeError):
        return pa.array([None if value is None else storable(str(value)) for value in values])


def _joined(own: pa.Table, answers: Mapping[int, Mapping[str, Any]]) -> pa.Table:
    """The rows of `own` at the places of `answers`, with these."""
    rows = own.take(pa.array(list(answers), pa.int64()))
    added = pa.Table.from_pylist([dict(answer) for answer in answers.values()], schema=ANSWERED)
    return pa.table([*rows.columns, *added.columns], names=[*rows.column_names, *added.column_names])
