"""A run folder as something to compare: what was decided about it, and a few numbers of every problem.

Trace files and `run.json` enter, one frozen `RunTable` leaves. Of a chain that was taken up again the last row counts; chains that
failed or were cancelled are only counted. Read in batches; what is held are the chains' names and numbers, never a text.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, structs

from pipeline.analysis.quality.samples import SampleStatistics, sample_statistics
from pipeline.analysis.quality.selection import Choices, read_choices
from pipeline.analysis.quality.step_quality import Quality, read_quality
from pipeline.analysis.quality.step_texts import Texts, read_texts
from pipeline.analysis.resources import Resources, engine_facts, resources
from pipeline.analysis.time.timeline import Array, Names
from pipeline.errors import InputError, UsageError
from pipeline.graph.plan import Plan
from pipeline.trace.events import UNFINISHED
from pipeline.trace.read import read_batches
from pipeline.trace.run_file import Host, RunFile, RunInput

NUMBERS = ("sample_index", "chain_time_s", "thought_tokens", "steps", "accepted_steps", "fallback_steps")


class FinishedChains(Struct, frozen=True, kw_only=True):
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


class Speculation(Struct, frozen=True):
    """Tokens that an engine proposed to itself, by its own count."""

    proposed: int
    accepted: int


class RunTable(Struct, frozen=True, kw_only=True):
    """One run. The arrays have one place for each problem, in the order of `problem_ids`."""

    name: str
    graph: str
    engines: dict[str, dict[str, Any]]
    roles: tuple[str, ...]
    """Of the engines: those that write first, those that draft last."""
    drafters: tuple[str, ...]
    """Roles that draft; empty where nobody does."""
    resources: Resources
    host: Host
    params: dict[str, Any]
    schedule: str
    batch_size: int
    samples: int
    seed: int
    simulated: bool
    status: str
    input: RunInput
    wall_time_s: float
    speculation: dict[str, Speculation]
    """By role; of engines that speculate."""
    problem_ids: tuple[str, ...]
    failed: int
    """Chains that failed or were cancelled; they are in none of the arrays."""
    chains: Array
    """Finished ones."""
    graded: Array
    """Those with a verdict."""
    right: Array
    sample_statistics: SampleStatistics
    latency_s: Array
    """`chain_time_s`: from admission to the end. Like all that follows up to `fallbacks` a mean over the samples."""
    thought_tokens: Array
    answer_tokens: Array
    """Sampled after the thought."""
    output_tokens: dict[str, Array]
    """By role, whatever became of them."""
    steps: Array
    accepted: Array
    fallbacks: Array
    texts: dict[str, Texts]
    """By kind; see `read_texts`."""
    choices: Choices | None
    quality: Quality | None

    @property
    def models(self) -> dict[str, str]:
        """The model of each of the `roles`, without its folder."""
        names = {role: str(self.engines[role].get("model", role)).removeprefix("bundled:") for role in self.roles}
        return {role: name.rstrip("/").rpartition("/")[2] for role, name in names.items()}


def read_runs(folders: Sequence[Path]) -> list[RunTable]:
    """The tables of several run folders; of equal names each gets its parent's before it. Raises `UsageError`."""
    places = [folder.resolve() for folder in folders]
    if repeated := [folder for folder, place in zip(folders, places, strict=True) if places.count(place) > 1]:
        raise UsageError(f"{repeated[0]} is given twice; name each run once")
    names = [place.name for place in places]
    full = [name if names.count(name) == 1 else str(Path(*place.parts[-2:])) for name, place in zip(names, places, strict=True)]
    unique = full if len(set(full)) == len(full) else [str(place) for place in places]
    return [structs.replace(read_run(folder), name=name) for folder, name in zip(folders, unique, strict=True)]


def read_run(folder: Path) -> RunTable:
    """The table of the run folder; raises `InputError` when it is none, has no finished chain or its trace cannot be read."""
    run = RunFile.read(folder)
    chains = read_chains(folder)
    if not chains.problem_ids:
        unfinished = f"; {chains.failed} failed or were cancelled" if chains.failed else ""
        raise InputError(str(folder), f"has no finished chain{unfinished}: there is nothing to compare")
    graded = chains.correct >= 0
    return RunTable(
        **_decisions(folder, run),
        problem_ids=chains.problem_ids,
        failed=chains.failed,
        chains=chains.sums(np.ones(len(chains.problem))),
        graded=chains.sums(graded),
        right=chains.sums(chains.correct == 1),
        sample_statistics=sample_statistics(
            folder, chains.problem[graded], chains.numbers["sample_index"][graded], chains.correct[graded], chains.row[graded]
        ),
        latency_s=chains.means("chain_time_s"),
        thought_tokens=chains.means("thought_tokens"),
        **_tokens(read_tokens(folder, run.plan, chains), chains),
        steps=chains.means("steps"),
        accepted=chains.means("accepted_steps"),
        fallbacks=chains.means("fallback_steps"),
        texts=read_texts(folder, chains.place, len(chains.problem_ids)),
        choices=read_choices(folder, run.plan, chains.place),
        quality=read_quality(folder, chains.place, len(chains.problem_ids)),
    )


def _decisions(folder: Path, run: RunFile) -> dict[str, Any]:
    """What `run.json` says of a run."""
    same = ("graph", "engines", "schedule", "batch_size", "samples", "seed", "status", "input", "host")
    counts = {role: found.speculation for role, found in run.engine_statistics.items()}
    return {name: getattr(run, name) for name in same} | {
        "name": folder.resolve().name,
        "params": run.plan.params,
        "roles": _roles(run.plan),
        "drafters": tuple(dict.fromkeys(run.plan.drafters)),
        "simulated": run.virtual_time,
        "wall_time_s": run.wall_time_s or 0.0,
        "resources": resources(engine_facts(run).values()),
        "speculation": {role: Speculation(count.draft_tokens, count.accepted_tokens) for role, count in counts.items() if count},
    }


def _roles(plan: Plan) -> tuple[str, ...]:
    """Roles that write or answer, then those that judge alone, then those that draft."""
    purposes: dict[str, set[str]] = {role: set() for role in plan.engines}
    for node in plan.stages():
        purposes.setdefault(str(node.spec.role), set()).add(node.spec.purpose)
    return tuple(sorted(purposes, key=lambda role: ("draft" in purposes[role], purposes[role] <= {"judge"})))


def _tokens(tokens: Tokens, chains: FinishedChains) -> dict[str, Any]:
    samples = chains.sums(np.ones(len(chains.problem)))
    return {
        "answer_tokens": tokens.answer / samples,
        "output_tokens": {role: each / samples for role, each in tokens.by_role.items()},
    }


def read_chains(folder: Path) -> FinishedChains:
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
    return FinishedChains(
        problem_ids=tuple(ids),
        place={names[each]: places[problems[each]] for each in row},
        problem=np.array([places[problems[each]] for each in row], int),
        row=row,
        correct=correct[row],
        numbers={name: column[row] for name, column in zip(NUMBERS, numbers, strict=True)},
        failed=len(last) - len(row),
    )


def read_tokens(folder: Path, plan: Plan, chains: FinishedChains) -> Tokens:
    """Output tokens of a run of `plan`, every attempt at a call included."""
    after_thought = {node.name for node in plan.stages() if node.spec.finishes}
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


def _thoughts(folder: Path, stages: set[str], chains: FinishedChains) -> Array:
    """Tokens of the thoughts that `stages` wrote: those of responses."""
    found = np.zeros(len(chains.problem_ids))
    for batch in read_batches(folder, "steps", ["chain_id", "stage", "step_token_ids"]):
        written = np.array([stage in stages for stage in batch.column("stage").to_pylist()], bool)
        tokens = batch.column("step_token_ids").value_lengths().to_numpy()
        found += _added(_problems(batch, chains), tokens, written, len(found))
    return found


def _problems(batch: pa.RecordBatch, chains: FinishedChains) -> Array:
    """The place of each row's problem; -1 where its chain does not count."""
    names = Names()
    codes = names.codes(batch.column("chain_id"))
    return np.array([chains.place.get(name, -1) for name in names], int)[codes]


def _added(problem: Array, values: Array, which: Array, problems: int) -> Array:
    which = which & (problem >= 0)
    return np.bincount(problem[which], values[which], problems)
