"""A run as a table with a few numbers for every problem, to be compared with others: a run folder enters, a `RunTable` leaves.

Of a chain that was resumed the last row counts. A chain that failed counts as wrong (`events.counted`) and in no other figure, one
that was cancelled in none. Tables are read in batches; names and numbers of chains are held, never a text.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, structs

from pipeline.analysis.arrays import Array, Names
from pipeline.analysis.compare.rules import Rules, rules_of
from pipeline.analysis.quality.option_mass import read_masses
from pipeline.analysis.quality.reward_agreement import ScoredSteps, read_scored_steps
from pipeline.analysis.quality.samples import GradedChains, SampleStatistics, sample_statistics
from pipeline.analysis.quality.selection import ThoughtChoices, read_choices
from pipeline.analysis.quality.step_quality import Quality, read_quality
from pipeline.analysis.quality.step_texts import Texts, read_texts
from pipeline.analysis.quality.verdicts import COLUMNS as VERDICT_COLUMNS
from pipeline.analysis.quality.verdicts import verdicts
from pipeline.analysis.resources import EngineFacts, Resources, engine_facts, replica_count, resources
from pipeline.analysis.time.thinking import KINDS, Thinking, read_thinking
from pipeline.bundled import model_name
from pipeline.errors import InputError, UsageError
from pipeline.graph.plan import Plan
from pipeline.store.events import UNFINISHED
from pipeline.store.query import Query
from pipeline.store.read import read_batches
from pipeline.store.run_file import Host, RunFile, RunInput

NUMBERS = ("sample_index", "chain_time_s", "thought_tokens", "steps", "accepted_steps", "fallback_steps")
"""Numeric columns of the chains table that are read."""


class FinishedChains(Struct, frozen=True, kw_only=True):
    """The finished chains of a run; the arrays have one element for each chain."""

    problem_ids: tuple[str, ...]
    """Problems with a chain that finished or counts as wrong. Sorted, each once."""
    place: dict[str, int]
    """By the chain's name, the index of its problem in `problem_ids`."""
    problem: Array
    """Indices into `problem_ids`."""
    graded: GradedChains
    """By their places in `problem_ids`."""
    numbers: dict[str, Array]
    """The columns `NUMBERS`."""
    failed: int
    cancelled: int

    def means(self, name: str) -> Array:
        """The mean of one of `NUMBERS` over the finished samples of each problem; 0 where none finished."""
        return np.asarray(self.sums(self.numbers[name]) / np.maximum(self.counts, 1))

    @property
    def counts(self) -> Array:
        """The number of finished chains of each problem."""
        return self.sums(np.ones(len(self.problem)))

    def sums(self, values: Array) -> Array:
        """`values`, one for each chain, added up for each problem."""
        return np.bincount(self.problem, values, len(self.problem_ids))


class Tokens(Struct, frozen=True):
    """Output tokens of each problem, added up over its samples."""

    by_role: dict[str, Array]
    """All sampled tokens, whatever became of them."""
    answer: Array
    """Tokens after the thought: those of stages that answer, and of whole responses those after their thought."""


class SpeculatedTokens(Struct, frozen=True):
    """Tokens that token-level speculation inside an engine proposed and accepted, by the engine's own count."""

    proposed: int
    accepted: int


class RunTable(Struct, frozen=True, kw_only=True):
    """One run as a table; the arrays have one element for each problem, in the order of `problem_ids`."""

    name: str
    graph: str
    digest: str = ""
    """Fingerprint of the graph with its params."""
    engines: dict[str, dict[str, Any]]
    """Settings of the engines, by role."""
    roles: tuple[str, ...]
    """Roles of the engines: those that write or answer, then those that only judge, then those that draft."""
    drafters: tuple[str, ...]
    """Roles that draft; empty where none does."""
    resources: Resources
    facts: dict[str, EngineFacts] = {}
    """What the engines stated about themselves, by role."""
    depends_on_timing: bool = False
    """Whether its answers depend on when chains were switched."""
    host: Host
    params: dict[str, Any]
    rules: Rules
    """What its chains are held to."""
    schedule: str
    admission: str
    order: str
    batch_size: int
    replicas: int = 1
    """How many replicas there were at once, each with its own engines and `batch_size` chains."""
    samples: int
    seed: int
    simulated: bool
    status: str
    input: RunInput
    wall_time_s: float
    speculation: dict[str, SpeculatedTokens]
    """By role of the engines that speculate."""
    pooled: tuple[str, ...] = ()
    """Names of the runs that were pooled into this one, which differ in their seeds alone; empty for one run."""
    seeds: tuple[int, ...] = ()
    """Their seeds."""
    problem_ids: tuple[str, ...]
    """Problems with a chain that finished or counts as wrong."""
    failed: int
    """Chains that failed: wrong in `graded`, in no other of the arrays."""
    cancelled: int = 0
    """Chains that were cancelled; they are in none of the arrays."""
    chains: Array
    """Number of finished chains."""
    graded: Array
    """Number of chains that count as right or wrong; see `events.counted`."""
    right: Array
    """Number of chains whose answer was right."""
    sample_statistics: SampleStatistics
    latency_s: Array
    """Seconds from admission to the end. This and the following arrays up to `fallbacks` are means over a problem's finished samples."""
    thought_tokens: Array
    answer_tokens: Array
    """Tokens sampled after the thought."""
    output_tokens: dict[str, Array]
    """All sampled tokens by role, whatever became of them."""
    steps: Array
    """Committed steps."""
    accepted: Array
    """Steps of which a candidate was accepted."""
    fallbacks: Array
    """Steps that were written after all candidates were rejected."""
    thinking_s: Array
    """Seconds from the first call to the end of the thought; see `thinking`."""
    kinds_s: dict[str, Array]
    """Seconds by what was done: `drafting`, `verification`, `target` (its own thinking), `answer`."""
    texts: dict[str, Texts]
    """By kind of text; see `read_texts`."""
    masses: Array
    """The probability on valid options of each verification; see `option_mass`."""
    scored: ScoredSteps | None
    """Null for runs without scores or without a rewards table; see `reward_agreement`."""
    choices: ThoughtChoices | None
    """Null for runs that do not choose among whole thoughts."""
    quality: Quality | None
    """Null for runs without a rewards table."""

    @property
    def lost(self) -> int:
        """Chains that failed although their rows held problems: what an engine worked for them is in the wall time."""
        return max(0, self.failed - self.input.bad_rows * self.samples * max(1, len(self.pooled)))

    @property
    def finished(self) -> Array:
        """1 for each problem with a finished chain, else 0: the weights of figures that failed chains are not in."""
        return (self.chains > 0).astype(float)

    @property
    def models(self) -> dict[str, str]:
        """The model of each of the `roles`, without its folder."""
        return {role: model_name(str(self.engines.get(role, {}).get("model", role))) for role in self.roles}


def read_runs(folders: Sequence[Path]) -> list[RunTable]:
    """The tables of several run folders, each with a unique name: folders with equal names are named with their parents.

    Raises `UsageError` where a folder is given twice, and `InputError` as `read_run` does.
    """
    places = [folder.resolve() for folder in folders]
    if repeated := [folder for folder, place in zip(folders, places, strict=True) if places.count(place) > 1]:
        raise UsageError(f"{repeated[0]} is given twice; name each run once")
    names = [place.name for place in places]
    full = [name if names.count(name) == 1 else str(Path(*place.parts[-2:])) for name, place in zip(names, places, strict=True)]
    unique = full if len(set(full)) == len(full) else [str(place) for place in places]
    return [structs.replace(read_run(folder), name=name) for folder, name in zip(folders, unique, strict=True)]


def read_run(folder: Path) -> RunTable:
    """The table of the run folder `folder`; raises `InputError` when it is none, has no finished chain or its trace cannot be read."""
    run = RunFile.read(folder)
    chains = read_chains(folder)
    if not len(chains.problem):
        lost = chains.failed + chains.cancelled
        unfinished = f"; {lost} failed or were cancelled" if lost else ""
        raise InputError(str(folder), f"has no finished chain{unfinished}: there is nothing to compare")
    graded = chains.graded
    with Query(folder) as db:
        found = {each.problem_id: each for each in read_thinking(db, run.plan)}
        statistics, masses = sample_statistics(db), read_masses(db)
    thinking = [found.get(problem, Thinking(problem)) for problem in chains.problem_ids]
    return RunTable(
        **_decisions(folder, run),
        problem_ids=chains.problem_ids,
        failed=chains.failed,
        cancelled=chains.cancelled,
        chains=chains.counts,
        graded=np.bincount(graded.problem, minlength=len(chains.problem_ids)).astype(float),
        right=np.bincount(graded.problem, graded.correct, len(chains.problem_ids)),
        sample_statistics=statistics,
        latency_s=chains.means("chain_time_s"),
        thought_tokens=chains.means("thought_tokens"),
        **_tokens(read_tokens(folder, run.plan, chains), chains),
        steps=chains.means("steps"),
        accepted=chains.means("accepted_steps"),
        fallbacks=chains.means("fallback_steps"),
        thinking_s=np.array([each.seconds for each in thinking]) / np.maximum(chains.counts, 1),
        kinds_s={kind: np.array([getattr(each, kind) for each in thinking]) / np.maximum(chains.counts, 1) for kind in KINDS},
        masses=masses,
        scored=read_scored_steps(folder, chains.place),
        texts=read_texts(folder, chains.place, len(chains.problem_ids)),
        choices=read_choices(folder, run.plan, chains.place),
        quality=read_quality(folder, chains.place, len(chains.problem_ids)),
    )


def _decisions(folder: Path, run: RunFile) -> dict[str, Any]:
    """The fields of a `RunTable` that come from `run.json`."""
    same = (
        "graph",
        "engines",
        "schedule",
        "batch_size",
        "admission",
        "order",
        "samples",
        "seed",
        "status",
        "input",
        "host",
        "depends_on_timing",
    )
    counts = {role: found.speculation for role, found in run.engine_statistics.items()}
    return {name: getattr(run, name) for name in same} | {
        "name": folder.resolve().name,
        "digest": run.plan.digest,
        "params": run.plan.params,
        "rules": rules_of(run.plan),
        "roles": _roles(run.plan),
        "drafters": tuple(dict.fromkeys(run.plan.drafters)),
        "simulated": run.virtual_time,
        "wall_time_s": run.wall_time_s or 0.0,
        "facts": (facts := engine_facts(run)),
        "replicas": (replicas := replica_count(run)),
        "resources": resources(facts.values(), replicas),
        "speculation": {role: SpeculatedTokens(count.draft_tokens, count.accepted_tokens) for role, count in counts.items() if count},
    }


def _roles(plan: Plan) -> tuple[str, ...]:
    """Roles that write or answer, then those that judge alone, then those that draft."""
    purposes: dict[str, set[str]] = {role: set() for role in plan.engines}
    for node in plan.stages():
        purposes.setdefault(str(node.spec.role), set()).add(node.spec.purpose)
    return tuple(sorted(purposes, key=lambda role: ("draft" in purposes[role], purposes[role] <= {"judge"})))


def _tokens(tokens: Tokens, chains: FinishedChains) -> dict[str, Any]:
    samples = np.maximum(chains.counts, 1)
    return {
        "answer_tokens": tokens.answer / samples,
        "output_tokens": {role: each / samples for role, each in tokens.by_role.items()},
    }


def read_chains(folder: Path) -> FinishedChains:
    """The finished chains of the run folder `folder`; raises `InputError` where they cannot be read."""
    names: list[str] = []
    problems: list[str] = []
    parts: list[list[Array]] = [[np.empty(0)] * (len(NUMBERS) + 3)]
    for batch in read_batches(folder, "chains", ["chain_id", "problem_id", *VERDICT_COLUMNS, *NUMBERS]):
        names += batch.column("chain_id").to_pylist()
        problems += batch.column("problem_id").to_pylist()
        reasons = batch.column("stop_reason").to_pylist()
        done, failed = (np.array(each, bool) for each in ([r not in UNFINISHED for r in reasons], [r == "error" for r in reasons]))
        parts.append([done, failed, verdicts(batch), *(batch.column(name).to_numpy() for name in NUMBERS)])
    done, failed, correct, *columns = (np.concatenate(column) for column in zip(*parts, strict=True))
    numbers = dict(zip(NUMBERS, columns, strict=True))
    last = np.array(sorted({name: row for row, name in enumerate(names)}.values()), int)
    row, counted = last[done[last] > 0], last[correct[last] >= 0]
    ids = sorted({problems[each] for each in (*row, *counted)})
    places = {problem: place for place, problem in enumerate(ids)}
    owners = np.array([places.get(problem, -1) for problem in problems], int)
    return FinishedChains(
        problem_ids=tuple(ids),
        place={names[each]: places[problems[each]] for each in row},
        problem=owners[row],
        graded=GradedChains(owners[counted], numbers["sample_index"][counted], correct[counted], counted),
        numbers={name: column[row] for name, column in numbers.items()},
        failed=int(failed[last].sum()),
        cancelled=len(last) - len(row) - int(failed[last].sum()),
    )


def read_tokens(folder: Path, plan: Plan, chains: FinishedChains) -> Tokens:
    """Output tokens of the run of `plan` in `folder`, every attempt at a call included; raises `InputError`."""
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
    """Tokens of the steps that `stages` wrote, by problem: the thoughts within whole responses."""
    found = np.zeros(len(chains.problem_ids))
    for batch in read_batches(folder, "steps", ["chain_id", "stage", "step_token_ids"]):
        written = np.array([stage in stages for stage in batch.column("stage").to_pylist()], bool)
        tokens = batch.column("step_token_ids").value_lengths().to_numpy()
        found += _added(_problems(batch, chains), tokens, written, len(found))
    return found


def _problems(batch: pa.RecordBatch, chains: FinishedChains) -> Array:
    """The index of each row's problem; -1 where its chain is not among `chains`."""
    names = Names()
    codes = names.codes(batch.column("chain_id"))
    return np.array([chains.place.get(name, -1) for name in names], int)[codes]


def _added(problem: Array, values: Array, which: Array, problems: int) -> Array:
    """The `values` that `which` marks, added up for each problem; without those whose problem is -1."""
    which = which & (problem >= 0)
    return np.bincount(problem[which], values[which], problems)
