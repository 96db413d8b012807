"""The chains of a run folder, by problem: the chains and calls tables enter, a few numbers for each problem leave.

Of a chain that was taken up again the last row counts; chains that failed or were cancelled are only counted. Read in
batches; what is held are the chains' names and numbers, never a text.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from pipeline.analysis.quality.selection import stages_of
from pipeline.analysis.time.timeline import Array, Names
from pipeline.trace.events import UNFINISHED
from pipeline.trace.read import read_batches

NUMBERS = ("sample_index", "chain_time_s", "thought_tokens", "steps", "accepted_steps", "fallback_steps")


class Chains(Struct, frozen=True, kw_only=True):
    """The finished chains. `problem` and the arrays beside it have one place a chain."""

    problem_ids: tuple[str, ...]
    place: dict[str, int]
    """Where the problem of each chain stands in `problem_ids`."""
    problem: Array
    row: Array
    """Where each chain's row stands in the table."""
    correct: Array
    """1 right, 0 wrong, -1 not graded."""
    numbers: dict[str, Array]
    failed: int

    def means(self, name: str) -> Array:
        """One of `NUMBERS` for each problem, over its samples."""
        return self.sums(self.numbers[name]) / self.sums(np.ones(len(self.problem)))

    def sums(self, values: Array) -> Array:
        """Values of chains, added up for each problem."""
        return np.bincount(self.problem, values, len(self.problem_ids))


class Tokens(Struct, frozen=True):
    """Output tokens; sums over all samples of each problem."""

    by_role: dict[str, Array]
    """Whatever became of them."""
    answer: Array
    """Those after the thought: of `answer` stages, and of responses what their thought leaves."""


def read_chains(folder: Path) -> Chains:
    """The chains of the run folder; raises `InputError` where they cannot be read."""
    names: list[str] = []
    problems: list[str] = []
    parts: list[list[Array]] = [[np.empty(0)] * (len(NUMBERS) + 2)]
    for batch in read_batches(folder, "chains", ["chain_id", "problem_id", "correct", "stop_reason", *NUMBERS]):
        names += batch.column("chain_id").to_pylist()
        problems += batch.column("problem_id").to_pylist()
        done = np.array([reason not in UNFINISHED for reason in batch.column("stop_reason").to_pylist()], bool)
        correct = batch.column("correct").cast("int8").fill_null(-1).to_numpy()
        parts.append([done, correct, *(batch.column(name).to_numpy() for name in NUMBERS)])
    done, correct, *numbers = (np.concatenate(column) for column in zip(*parts, strict=True))
    last = np.array(sorted({name: row for row, name in enumerate(names)}.values()), int)
    row = last[done[last] > 0]
    ids = sorted({problems[each] for each in row})
    places = {problem: place for place, problem in enumerate(ids)}
    return Chains(
        problem_ids=tuple(ids),
        place={names[each]: places[problems[each]] for each in row},
        problem=np.array([places[problems[each]] for each in row], int),
        row=row,
        correct=correct[row],
        numbers={name: column[row] for name, column in zip(NUMBERS, numbers, strict=True)},
        failed=len(last) - len(row),
    )


def read_tokens(folder: Path, graph: Mapping[str, Any], chains: Chains) -> Tokens:
    """Output tokens of a run of `graph`, as its `run.json` holds it, every attempt at a call included."""
    after_thought = {name for name, spec in stages_of(graph) if spec["kind"] == "answer" or spec.get("unit") == "response"}
    by_role: dict[str, Array] = {}
    answer = np.zeros(len(chains.problem_ids))
    for batch in read_batches(folder, "calls", ["chain_id", "stage", "engine", "output_tokens"]):
        problem, stages, engines = _problems(batch, chains), Names(), Names()
        stage, engine, tokens = stages.codes(batch.column("stage")), engines.codes(batch.column("engine")), batch.column("output_tokens")
        for role, code in engines.items():
            by_role.setdefault(role, np.zeros(len(answer)))
            by_role[role] += _added(problem, tokens.to_numpy(), engine == code, len(answer))
        answers = np.isin(stage, [code for name, code in stages.items() if name in after_thought])
        answer += _added(problem, tokens.to_numpy(), answers, len(answer))
    return Tokens(by_role, answer - _thoughts(folder, after_thought, chains))


def _thoughts(folder: Path, stages: set[str], chains: Chains) -> Array:
    """Tokens of the thoughts that `stages` wrote: those of responses."""
    found = np.zeros(len(chains.problem_ids))
    for batch in read_batches(folder, "steps", ["chain_id", "stage", "step_token_ids"]):
        written = np.array([stage in stages for stage in batch.column("stage").to_pylist()], bool)
        tokens = batch.column("step_token_ids").value_lengths().to_numpy()
        found += _added(_problems(batch, chains), tokens, written, len(found))
    return found


def _problems(batch: pa.RecordBatch, chains: Chains) -> Array:
    """The place of each row's problem; -1 where its chain does not count."""
    names = Names()
    codes = names.codes(batch.column("chain_id"))
    return np.array([chains.place.get(name, -1) for name in names], int)[codes]


def _added(problem: Array, values: Array, which: Array, problems: int) -> Array:
    which = which & (problem >= 0)
    return np.bincount(problem[which], values[which], problems)
