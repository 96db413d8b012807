"""Runs as tables with a few numbers for every problem, to be compared: run folders enter, a `RunTable` for each run leaves.

Runs that differ in the seed alone are one run with the chains of all: their tables are queried together, so a count is the sum over the
runs, and a mean is that over all chains of a problem, whichever run they are of. Only what is of a run as a whole is averaged over the
runs, such as its wall time. A chain that failed counts as wrong (`counted`) and in no other figure, one that was cancelled in none.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.analysis.compare.rules import Rules, rules_of
from pipeline.analysis.quality.by_problem import Quality, Texts, place_chains, read_quality, read_texts
from pipeline.analysis.quality.option_mass import OptionMass, option_mass, read_masses
from pipeline.analysis.quality.reward_agreement import ScoredSteps, read_scored_steps
from pipeline.analysis.quality.selection import ThoughtChoices, read_choices
from pipeline.analysis.resources import EngineFacts, Resources, engine_facts, replica_count, resources
from pipeline.analysis.time.thinking import read_thinking
from pipeline.errors import InputError
from pipeline.graph.files import model_name
from pipeline.graph.plan import Plan
from pipeline.store.query import Query, run_names
from pipeline.store.run_file import Host, RunFile, RunInput

PROBLEMS = """
SELECT problem_id, count(*) FILTER (finished) AS chains, count(counted) AS graded, count(*) FILTER (counted) AS "right",
       sum(chain_time_s) FILTER (finished) AS latency_s, sum(thought_tokens) FILTER (finished) AS thought_tokens,
       sum(steps) FILTER (finished) AS steps, sum(accepted_steps) FILTER (finished) AS accepted,
       sum(fallback_steps) FILTER (finished) AS fallbacks, sum(unverified_steps) FILTER (finished) AS unverified
FROM chains WHERE finished OR counted IS NOT NULL GROUP BY problem_id ORDER BY problem_id
"""
ANSWERS = """
SELECT problem, sum(output_tokens)::BIGINT AS tokens FROM calls JOIN places USING (run, chain_id)
WHERE list_contains($finishing, stage) GROUP BY problem
"""
"""Output tokens of the stages that finish a chain, every attempt at a call included."""
THOUGHTS = """
SELECT problem, sum(len(step_token_ids))::BIGINT AS tokens FROM steps JOIN places USING (run, chain_id)
WHERE list_contains($finishing, stage) GROUP BY problem
"""
"""Tokens of the thoughts within whole responses."""
ENDS = """
SELECT run, count(*) FILTER (finished) AS finished, count(*) FILTER (stop_reason = 'error') AS failed,
       count(*) FILTER (stop_reason = 'error' AND error_type <> 'BadRow') AS lost,
       count(*) FILTER (stop_reason = 'cancelled') AS cancelled
FROM chains GROUP BY run
"""
MODELS = "SELECT run, string_agg(DISTINCT model, ', ' ORDER BY model) AS model FROM rewards GROUP BY run"
ALIKE = (
    *("graph", "digest", "engines", "params", "resources", "host", "batch_size", "replicas", "schedule", "admission", "samples"),
    "simulated",
)
"""Fields of a `RunTable` that have to agree in runs that are pooled, in addition to those of the input."""
SPLITS = ("train", "validation", "test", "dev", "data", "problems")
"""File names that mean nothing without their folder's."""


class _Ends(Struct, frozen=True):
    """The chains of a run by how they ended."""

    run: str
    finished: int
    failed: int
    lost: int
    cancelled: int


class _RewardModel(Struct, frozen=True):
    """What scored the steps of a run."""

    run: str
    model: str


class Details(Struct, frozen=True, kw_only=True):
    """What only some tables need, and takes longer to read; the arrays have one element for each problem."""

    thinking_s: Array
    """Seconds from the first call to the end of the thought, the mean over a problem's finished samples; see `thinking`."""
    texts: dict[str, Texts]
    """By kind of text; see `read_texts`."""
    scored: ScoredSteps | None
    """Null for runs without scores or without a rewards table; see `reward_agreement`."""
    choices: ThoughtChoices | None
    """Null for runs that do not choose among whole thoughts."""
    quality: Quality | None
    """Null for runs without a rewards table."""


class RunTable(Struct, frozen=True, kw_only=True, dict=True):
    """One run as a table, or several that differ in their seeds alone; the arrays have one element for each problem of `problem_ids`."""

    name: str
    graph: str
    digest: str = ""
    """Fingerprint of the graph with its params."""
    engines: dict[str, dict[str, Any]]
    """Settings of the engines, by role."""
    roles: tuple[str, ...]
    """Roles of the engines: those that write or answer, then those that only judge, then those that draft."""
    gated: bool
    """Whether its graph has a gate."""
    drafters: tuple[str, ...]
    """Roles that draft; empty where none does."""
    resources: Resources
    facts: dict[str, EngineFacts] = {}
    """What the engines stated about themselves, by role."""
    host: Host
    params: dict[str, Any]
    rules: Rules
    """What its chains are held to."""
    schedule: str
    admission: str
    batch_size: int
    replicas: int = 1
    """The number of replicas at once, each with its own engines and `batch_size` chains."""
    samples: int
    seed: int
    simulated: bool
    status: str
    file: Path
    """The input, or the first of several."""
    input: RunInput
    wall_time_s: float
    pooled: tuple[str, ...] = ()
    """Names of the runs that were pooled into this one; empty for one run."""
    seeds: tuple[int, ...] = ()
    """Their seeds."""
    problem_ids: tuple[str, ...]
    """Problems with a chain that finished or counts as wrong. Sorted, each once."""
    failed: int
    """Chains that failed: wrong in `graded`, in no other of the arrays."""
    lost: int
    """Those whose rows held problems: what an engine worked for them is in the wall time."""
    cancelled: int = 0
    """Chains that were cancelled; they are in none of the arrays."""
    chains: Array
    """Number of finished chains."""
    graded: Array
    """Number of chains that count as right or wrong; see `events.counted`."""
    right: Array
    """Number of chains whose answer was right."""
    latency_s: Array
    """Seconds from admission to the end. This and the following arrays are means over a problem's finished samples."""
    thought_tokens: Array
    answer_tokens: Array
    """Tokens sampled after the thought."""
    steps: Array
    """Committed steps."""
    accepted: Array
    """Steps of which a candidate was accepted."""
    fallbacks: Array
    """Steps that were written after all candidates were rejected."""
    unverified: Array
    """Steps by the draft that a gate let pass."""
    option_mass: OptionMass | None
    """Probability on the valid options of verifications; null without any that says."""
    reward_model: str | None
    """What scored its steps; null without a rewards table."""
    read: Callable[[], Details]
    """Reads the `details`."""

    @cached_property
    def details(self) -> Details:
        """What is read when it is first needed."""
        return self.read()

    @property
    def tokens(self) -> Array:
        """Committed tokens, of thought and answer."""
        return self.thought_tokens + self.answer_tokens

    @property
    def verified(self) -> Array:
        """Steps that were verified."""
        return self.accepted + self.fallbacks

    @property
    def by_draft(self) -> Array:
        """Steps by the draft, accepted or unverified."""
        return self.accepted + self.unverified

    @property
    def finished(self) -> Array:
        """1 for each problem with a finished chain, else 0: the weights of figures that failed chains are not in."""
        return (self.chains > 0).astype(float)

    @property
    def models(self) -> dict[str, str]:
        """The model of each of the `roles`, without its folder."""
        return {role: model_name(str(self.engines.get(role, {}).get("model", role))) for role in self.roles}


class _Member(Struct, frozen=True):
    """A run that was asked for."""

    folder: Path
    run: RunFile
    fields: dict[str, Any]
    """The fields of its `RunTable` that come from `run.json`."""


def read_runs(folders: Sequence[Path], *, pooled: bool = False) -> list[RunTable]:
    """The tables of several run folders, each with a unique name: folders with equal names are named with their parents.

    `pooled`: those that differ in their seeds alone are one, in the place of the first of them; of two runs with one seed only the first
    is pooled, as the other would say the same again. Raises `UsageError` where a folder is given twice, and `InputError` where one is
    none, has no finished chain or its trace cannot be read.
    """
    members = [_member(folder, name) for folder, name in zip(folders, run_names(folders), strict=True)]
    return [_read(group) for group in (_pools(members) if pooled else [[member] for member in members])]


def read_run(folder: Path) -> RunTable:
    """The table of one run folder; raises as `read_runs` does."""
    return read_runs([folder])[0]


def _member(folder: Path, name: str) -> _Member:
    run = RunFile.read(folder)
    facts, replicas = engine_facts(run), replica_count(run)
    fields = {each: getattr(run, each) for each in ("graph", "engines", "status", "input", "host")}
    fields |= {each: getattr(run.options, each) for each in ("schedule", "batch_size", "admission", "seed")}
    fields |= {
        "samples": run.input.samples,
        "file": Path(run.options.input[0]),
        "name": name,
        "digest": run.plan.digest,
        "params": run.plan.params,
        "rules": rules_of(run.plan),
        "roles": _roles(run.plan),
        "gated": run.plan.gated,
        "drafters": tuple(dict.fromkeys(run.plan.drafters)),
        "simulated": run.virtual_time,
        "wall_time_s": run.wall_time_s or 0.0,
        "facts": facts,
        "replicas": replicas,
        "resources": resources(facts.values(), replicas),
    }
    return _Member(folder, run, fields)


def _roles(plan: Plan) -> tuple[str, ...]:
    """Roles that write or answer, then those that judge alone, then those that draft."""
    purposes: dict[str, set[str]] = {role: set() for role in plan.engines}
    for node in plan.stages():
        if node.spec.role is not None:
            purposes.setdefault(node.spec.role, set()).add(node.spec.purpose)
    return tuple(sorted(purposes, key=lambda role: ("draft" in purposes[role], purposes[role] <= {"judge"})))


def _pools(members: Sequence[_Member]) -> list[list[_Member]]:
    """The members that are pooled, in groups: the same graph with its params, engines, hardware, settings, problems and reward model."""
    with Query(*(member.folder for member in members)) as db:
        models = {each.run: each.model for each in db.rows(MODELS, _RewardModel)}
        names = db.names
    groups: dict[Any, list[_Member]] = {}
    for member, name in zip(members, names, strict=True):
        input_, options = member.run.input, member.run.options
        problems = (input_.sha256, input_.rows, options.columns, options.part, options.served)
        key = (*(repr(member.fields[each]) for each in ALIKE), repr(problems), models.get(name))
        group = groups.setdefault(key, [])
        if any(options.seed == other.run.options.seed for other in group):
            groups[name] = [member]
        else:
            group.append(member)
    return list(groups.values())


def _read(members: Sequence[_Member]) -> RunTable:
    """The table of one run, or of those that are pooled."""
    run, folders = members[0].run, [member.folder for member in members]
    with Query(*folders) as db:
        ends = _ends(db)
        place_chains(db)
        places = db.arrow("FROM places")
        columns = {name: np.ma.filled(column, 0) for name, column in db.columns(PROBLEMS).items()}
        ids = tuple(columns.pop("problem_id").tolist())
        found = {name: column.astype(float) for name, column in columns.items()}
        samples = np.maximum(found["chains"], 1)
        answer = _answer_tokens(db, run.plan, len(ids))
        model = db.scalar("SELECT string_agg(DISTINCT model, ', ' ORDER BY model) FROM rewards")
        mass = option_mass(read_masses(db))
    fields = members[0].fields | (_pooled(members) if len(members) > 1 else {})
    fields |= {name: found[name] for name in ("chains", "graded", "right")}
    fields |= {name: found[name] / samples for name in ("latency_s", "thought_tokens", "steps", "accepted", "fallbacks", "unverified")}
    return RunTable(
        **fields,
        problem_ids=ids,
        failed=sum(each.failed for each in ends),
        lost=sum(each.lost for each in ends),
        cancelled=sum(each.cancelled for each in ends),
        answer_tokens=answer / samples,
        option_mass=mass,
        reward_model=model,
        read=lambda: _details(folders, run.plan, ids, samples, places),
    )


def _ends(db: Query) -> list[_Ends]:
    found = {each.run: each for each in db.rows(ENDS, _Ends)}
    for folder, name in zip(db.folders, db.names, strict=True):
        ends = found.get(name, _Ends(name, 0, 0, 0, 0))
        if not ends.finished:
            lost = ends.failed + ends.cancelled
            unfinished = f"; {lost} failed or were cancelled" if lost else ""
            raise InputError(str(folder), f"has no finished chain{unfinished}: there is nothing to compare")
    return list(found.values())


def _answer_tokens(db: Query, plan: Plan, problems: int) -> Array:
    """Output tokens of each problem after the thought: those of stages that answer, and of whole responses those after their thought."""
    finishing = list(plan.finishing)
    answer = _by_problem(db.columns(ANSWERS, finishing=finishing), problems)
    if any(node.spec.finishes and not node.spec.answers for node in plan.stages()):
        answer -= _by_problem(db.columns(THOUGHTS, finishing=finishing), problems)
    return answer


def _by_problem(rows: Mapping[str, Array], problems: int) -> Array:
    """Tokens of rows, one for each problem, by problem."""
    return np.bincount(rows["problem"], np.ma.filled(rows["tokens"], 0).astype(float), problems)


def _pooled(members: Sequence[_Member]) -> dict[str, Any]:
    """Fields of the table of runs that differ in their seeds alone."""
    tables = [member.fields for member in members]
    return {
        "name": f"{tables[0]['name']} (+{len(tables) - 1} seeds)",
        "pooled": tuple(table["name"] for table in tables),
        "seeds": tuple(table["seed"] for table in tables),
        "status": next((table["status"] for table in tables if table["status"] != "finished"), "finished"),
        "wall_time_s": float(np.mean([table["wall_time_s"] for table in tables])),
    }


def _details(folders: Sequence[Path], plan: Plan, ids: Sequence[str], samples: Array, places: pa.Table) -> Details:
    """The details of the chains in `places`: a run that is going on has more by now."""
    place = {problem: number for number, problem in enumerate(ids)}
    seconds = np.zeros(len(ids))
    for folder, name in zip(folders, run_names(folders), strict=True):
        with Query(folder) as db:
            db.register("placed", chain_id=places.filter(pc.field("run") == name)["chain_id"])
            for each in read_thinking(db, plan, "placed"):
                seconds[place[each.problem_id]] += each.seconds
    with Query(*folders) as db:
        db.register("places", **{name: places[name] for name in places.column_names})
        return Details(
            thinking_s=seconds / samples,
            texts=read_texts(db, len(ids)),
            scored=read_scored_steps(db),
            choices=read_choices(db, plan),
            quality=read_quality(db, len(ids)),
        )


def data_sets(runs: Iterable[RunTable]) -> dict[str, str]:
    """The data set of each run, by the run's name: the name of its file, or of the folder of a file such as `test.parquet`.

    Files are the same where their bytes are; different ones with one name are named with their folder, or else by their SHA-256.
    """
    runs = list(runs)
    files: dict[str, Path] = {}
    for run in runs:
        files.setdefault(run.input.sha256, run.file)
    short = [data_name(file) for file in files.values()]
    names = {
        sha: name if short.count(name) == 1 else f"{file.parent.name}/{file.stem}"
        for (sha, file), name in zip(files.items(), short, strict=True)
    }
    every = list(names.values())
    unique = {sha: name if every.count(name) == 1 else f"{name} ({sha[:8]})" for sha, name in names.items()}
    return {run.name: unique[run.input.sha256] for run in runs}


def data_name(file: Path) -> str:
    """What the problems in a file are called."""
    return file.parent.name if file.stem in SPLITS and file.parent.name else file.stem
