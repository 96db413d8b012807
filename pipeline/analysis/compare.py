"""Compares runs: run folders enter, the figures of each, its differences from a baseline, and reasons other than its graph leave.

Runs that differ in the seed alone count as one run with the chains of all. A chain that failed counts as wrong (`counted`) and in no other
figure, one that was cancelled in none. What is of a run as a whole, such as its wall time, is averaged over pooled runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs

from pipeline.analysis.facts import EngineFacts, Resources, answers, engine_facts, of_answers, of_facts, replica_count, resources
from pipeline.analysis.figures import Estimate, Sums, changes, common, figures, read_sums
from pipeline.analysis.rules import Rules, differences, of_devices, rules_of
from pipeline.analysis.steps import OptionMass, mass_sentence, option_mass
from pipeline.analysis.tables import Table, as_csv, flat, number, percent, plain, times
from pipeline.errors import InputError, UsageError
from pipeline.graph.files import model_name
from pipeline.store.query import Query, run_names
from pipeline.store.run_file import Host, RunFile

ENDS = """
SELECT count(*) FILTER (finished) AS finished, count(*) FILTER (stop_reason = 'error') AS failed,
       count(*) FILTER (stop_reason = 'error' AND error_type <> 'BadRow') AS lost, count(*) FILTER (stop_reason = 'cancelled') AS cancelled
FROM chains
"""
MODEL = "SELECT string_agg(DISTINCT model, ', ' ORDER BY model) FROM rewards"
SPLITS = ("train", "validation", "test", "dev", "data", "problems")
"""File names that mean nothing without their folder's."""
NOTE = (
    "times as fast = problems/s over the baseline's. speed-up = baseline time / run time per problem = (how much shorter the text is) x "
    "(how much faster each token is). Brackets: 95 % intervals; too few: under 30 problems."
)
SIMULATED = "Simulated runs: times come from a model of the hardware and answers are invented. Replays reuse recorded answers."
ALONE = "Nothing to compare with: name a second run over the same problems; for a baseline, solve them with `pipeline run target`."


class Ends(Struct, frozen=True):
    """The chains of a run by how they ended."""

    finished: int = 0
    failed: int = 0
    lost: int = 0
    """Those of `failed` whose rows held problems: what an engine worked for them is in the wall time."""
    cancelled: int = 0

    def __add__(self, other: "Ends") -> "Ends":
        return Ends(*(one + more for one, more in zip(structs.astuple(self), structs.astuple(other), strict=True)))


class Run(Struct, frozen=True, kw_only=True, dict=True):
    """A run, or several that differ in their seeds alone."""

    name: str
    folders: tuple[Path, ...]
    file: RunFile
    """The `run.json` of the first."""
    pooled: tuple[str, ...] = ()
    """Names of the runs that were pooled into this one; empty for one run."""
    seeds: tuple[int, ...]
    status: str
    mean_wall_time_s: float
    ends: Ends
    sums: Sums
    option_mass: OptionMass | None = None
    reward_model: str | None = None
    """What scored its steps; null without a rewards table."""

    @cached_property
    def facts(self) -> dict[str, EngineFacts]:
        """What the engines stated about themselves, by role."""
        return engine_facts(self.file)

    @cached_property
    def rules(self) -> Rules:
        """What its chains are held to."""
        return rules_of(self.file.plan)

    @cached_property
    def figures(self) -> dict[str, Estimate]:
        """Value and interval of each of `FIGURES`, by name."""
        return figures(self.sums)

    @property
    def graph(self) -> str:
        """The name of its graph's file."""
        return self.file.graph

    @property
    def drafters(self) -> tuple[str, ...]:
        """Roles that draft."""
        return tuple(dict.fromkeys(self.file.plan.drafters))

    @cached_property
    def models(self) -> dict[str, str]:
        """The model by role: of roles that write, then of those that judge alone, then of those that draft."""
        purposes: dict[str, set[str]] = {role: set() for role in self.file.plan.engines}
        for node in self.file.plan.stages():
            if node.spec.role is not None:
                purposes.setdefault(node.spec.role, set()).add(node.spec.purpose)
        engines = self.file.engines
        ordered = sorted(purposes, key=lambda role: ("draft" in purposes[role], purposes[role] <= {"judge"}))
        return {role: model_name(str(engines.get(role, {}).get("model", role))) for role in ordered}

    @property
    def resources(self) -> Resources:
        """What its engines computed on."""
        return resources(self.facts.values(), replica_count(self.file))

    @property
    def answers(self) -> str | None:
        """`simulated` or `recorded` where models did not give its answers; see `resources.answers`."""
        return answers(self.facts.values()) if self.facts else "simulated" if self.file.virtual_time else None

    @property
    def problems(self) -> int:
        """The number of problems with a finished chain."""
        return int(self.sums["problems"].sum())

    @property
    def wall_time_s(self) -> float | None:
        """Wall time of the whole run; the mean of pooled ones. Null if chains failed, as their time does not measure speed."""
        return None if self.ends.lost else self.mean_wall_time_s

    @property
    def problems_per_s(self) -> float | None:
        """Problems with a finished chain over wall time."""
        return self.problems / self.wall_time_s if self.wall_time_s else None

    @property
    def kept_tokens_per_s(self) -> float | None:
        """Tokens of thoughts and answers over wall time (SpecCoT table 6)."""
        total = float((self.sums["tokens"] * self.sums["chains"]).sum())
        return total / self.wall_time_s / max(1, len(self.pooled)) if self.wall_time_s else None

    def decided(self) -> dict[str, Any]:
        """Its settings and results by name, besides its figures."""
        file = self.file
        return {
            "pooled": self.pooled,
            "graph": self.graph,
            "models": self.models,
            "schedule": file.options.schedule,
            "batch_size": file.options.batch_size,
            "simulated": file.virtual_time,
            "params": file.plan.params,
            "samples": file.input.samples,
            "failed": self.ends.failed,
            "cancelled": self.ends.cancelled,
            "resources": self.resources.label,
            "answers": self.answers,
            "problems": self.problems,
            "wall_time_s": self.wall_time_s,
            "problems_per_s": self.problems_per_s,
            "kept_tokens_per_s": self.kept_tokens_per_s,
        }


def read_runs(folders: Sequence[Path], *, pooled: bool = False) -> list[Run]:
    """The runs in several folders, each with a unique name: folders with equal names are named with their parents.

    `pooled`: those that differ in their seeds alone are one, in the place of the first of them; of two runs with one seed only the first
    is pooled, as the other would say the same again. Raises `UsageError` where a folder is given twice, and `InputError` where one is
    none, has no finished chain or its trace cannot be read.
    """
    names = run_names(folders)
    groups: dict[Any, list[tuple[str, Path, RunFile]]] = {}
    for name, folder in zip(names, folders, strict=True):
        file = RunFile.read(folder)
        group = groups.setdefault(_pool_of(folder, file) if pooled else name, [])
        twin = any(file.options.seed == other.options.seed for _, _, other in group)
        (groups.setdefault(name, []) if twin else group).append((name, folder, file))
    return [_read(members) for members in groups.values()]


def _pool_of(folder: Path, file: RunFile) -> str:
    """Equal for runs that differ in their seeds alone."""
    options, plan = file.options, file.plan
    with Query(folder) as db:
        model = db.scalar(MODEL)
    problems = (file.input.sha256, file.input.rows, file.input.samples, options.columns, options.part, options.served)
    decided = (file.graph, plan.digest, file.engines, plan.params, file.host, options.batch_size, options.schedule, options.admission)
    machine = resources(engine_facts(file).values(), replica_count(file))
    return repr((problems, decided, file.virtual_time, machine, model))


def _read(members: Sequence[tuple[str, Path, RunFile]]) -> Run:
    name, _, file = members[0]
    with ExitStack() as stack:
        runs = [stack.enter_context(Query(folder)) for _, folder, _ in members]
        found = [db.row(ENDS, Ends) for db in runs]
        for db, ends in zip(runs, found, strict=True):
            if not ends.finished:
                lost = ends.failed + ends.cancelled
                unfinished = f"; {lost} failed or were cancelled" if lost else ""
                raise InputError(str(db.folders[0]), f"has no finished chain{unfinished}: there is nothing to compare")
        several = len(members) > 1
        return Run(
            name=f"{name} (+{len(members) - 1} seeds)" if several else name,
            folders=tuple(folder for _, folder, _ in members),
            file=file,
            pooled=tuple(name for name, _, _ in members) if several else (),
            seeds=tuple(each.options.seed for _, _, each in members),
            status=next((each.status for _, _, each in members if each.status != "finished"), "finished"),
            mean_wall_time_s=float(np.mean([each.wall_time_s or 0.0 for _, _, each in members])),
            ends=sum(found, Ends()),
            sums=read_sums(runs),
            option_mass=option_mass(runs[0]),
            reward_model=runs[0].scalar(MODEL),
        )


def data_sets(runs: Sequence[Run]) -> dict[str, str]:
    """The data set of each run, by the run's name: the name of its file, or of the folder of a file such as `test.parquet`.

    Files are the same where their bytes are; different ones with one name are named with their folder, or else by their SHA-256.
    """
    inputs = {run.name: run.file.input.sha256 for run in runs}
    files: dict[str, Path] = {}
    for run in runs:
        files.setdefault(inputs[run.name], Path(run.file.options.input[0]))
    names = {sha: data_name(file) for sha, file in files.items()}
    for further in ({sha: f"{file.parent.name}/{file.stem}" for sha, file in files.items()}, {s: f"{names[s]} ({s[:8]})" for s in files}):
        every = list(names.values())
        names = {sha: name if every.count(name) == 1 else further[sha] for sha, name in names.items()}
    return {name: names[sha] for name, sha in inputs.items()}


def data_name(file: Path) -> str:
    """What the problems in a file are called."""
    return file.parent.name if file.stem in SPLITS and file.parent.name else file.stem


class Flag(Struct, frozen=True):
    """A reason other than its graph why a run may differ from the baseline."""

    run: str
    """The run's name."""
    what: str
    """The reason as a clause."""


class Comparison(Struct, frozen=True, kw_only=True):
    """Several runs, each with its differences from a baseline."""

    baselines: dict[str, str]
    """The baseline of each data set, by its name, in the order given: runs are compared over the same data alone."""
    runs: tuple[Run, ...]
    """In the order given."""
    data: dict[str, str]
    """The data set of each run; see `data_sets`."""
    flags: tuple[Flag, ...]

    def baseline_of(self, run: Run) -> Run:
        """The run that `run` is compared with."""
        return next(each for each in self.runs if each.name == self.baselines[self.data[run.name]])

    def over_baseline(self, run: Run) -> dict[str, Any]:
        """How `run` differs from its baseline: in accuracy on the problems that both have, in all else on those that both finished."""
        base = self.baseline_of(run)
        return {"over": base.name, "problems": common(run.sums, base.sums), **changes(run.sums, base.sums)}

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        runs = [
            {"run": run.name, "dataset": self.data[run.name], **run.decided(), **run.figures, "over_baseline": self.over_baseline(run)}
            for run in self.runs
        ]
        baseline = next(iter(self.baselines.values()))
        return {"baseline": baseline, "baselines": self.baselines, "runs": runs, "flags": self.flags}

    def as_csv(self) -> str:
        """The runs as CSV, one row each. A figure takes three columns: its value, and its name with `.low` and `.high`."""
        rows = [dict(flat(_plain(run))) for run in self.as_dict()["runs"]]
        names = list(dict.fromkeys(name for row in rows for name in row))
        return as_csv(names, ([row.get(name) for name in names] for row in rows))


def _plain(value: Any) -> Any:
    """`value` with each `Estimate` in it as a mapping, for JSON and CSV."""
    if isinstance(value, Estimate):
        return structs.asdict(value)
    return {name: _plain(each) for name, each in value.items()} if isinstance(value, Mapping) else value


def compare(runs: Sequence[Run], baseline: str | None = None) -> Comparison:
    """Compare `runs` with the run or graph named `baseline`, by default the first run of graph `target`, or else the first that drafts
    nothing, or else the first; with several data sets in each of them.

    Raises `UsageError` when a baseline is not among them or has no problem in common with a run over the same data.
    """
    data = data_sets(runs)
    bases = _baselines(runs, data, baseline)
    flags: list[Flag] = []
    for run in runs:
        base = bases[data[run.name]]
        if not np.isin(run.sums["problem"], base.sums["problem"]).any():
            raise UsageError(f"{run.name} and {base.name} have no finished problem in common")
        flags += [Flag(run.name, what) for what in flags_of(run, base)]
    return Comparison(baselines={name: base.name for name, base in bases.items()}, runs=tuple(runs), data=data, flags=tuple(flags))


def _baselines(runs: Sequence[Run], data: Mapping[str, str], wanted: str | None) -> dict[str, Run]:
    """The baseline of each data set; where `wanted` is a run over one of them, the first run of its graph over each of the others."""
    named = next((run for run in runs if wanted in (run.name, *run.pooled)), None)
    found: dict[str, Run] = {}
    for name in dict.fromkeys(data.values()):
        members, over = [run for run in runs if data[run.name] == name], f" over {name}" if len(set(data.values())) > 1 else ""
        graph = wanted if named is None else named.graph
        alike = [named] if named in members else [run for run in members if run.graph == graph]
        if wanted is None:
            undrafted = next((run for run in members if not run.drafters), members[0])
            alike = [next((run for run in members if run.graph == "target"), undrafted)]
        elif not alike:
            raise UsageError(f"--baseline {wanted}: no such run or graph here{over}; there are {', '.join(run.name for run in runs)}")
        elif len(alike) > 1 and named is None:
            raise UsageError(f"--baseline {wanted}: {', '.join(run.name for run in alike)} are all of that graph{over}; name one of them")
        found[name] = alike[0]
    return found


def flags_of(run: Run, base: Run) -> Iterator[str]:
    """Reasons other than their graphs why `run` may differ from `base`."""
    ends, common_problems = run.ends, int(np.isin(run.sums["problem"], base.sums["problem"]).sum())
    if run.status != "finished":
        yield f"it is {run.status}: only finished chains count"
    if ends.failed:
        yield f"{ends.failed} chains failed: they count as wrong and are in no other figure"
    if ends.lost:
        yield "because chains failed, it has no wall time to compare"
    if ends.cancelled:
        yield f"{ends.cancelled} chains were cancelled and are in no figure"
    if run.option_mass and run.option_mass.flagged:
        yield mass_sentence(run.option_mass)
    for name, ours, theirs in zip(DECIDED, decided(run), decided(base), strict=True):
        if ours != theirs:
            yield f"{name} is {ours}, the baseline's {theirs}"
    if run.file.virtual_time != base.file.virtual_time:
        yield "one of the two is simulated, the other measured"
    elif not run.file.virtual_time:
        yield from _other_machine(run.file.host, base.file.host)
    if common_problems < max(len(run.sums["problem"]), len(base.sums["problem"])):
        yield f"{common_problems} of its {len(run.sums['problem'])} problems are also the baseline's; differences are over these"
    yield from (clause for name, clause in differences(run.rules, base.rules).items() if not of_devices(name))
    if run.resources.amounts != base.resources.amounts or (run.models.keys() == base.models.keys() and run.resources != base.resources):
        yield f"it had {run.resources.label}, the baseline {base.resources.label}"
    if run.reward_model and base.reward_model and run.reward_model != base.reward_model:
        yield f"its steps were scored by {run.reward_model}, the baseline's by {base.reward_model}"


DECIDED = ("seed", "samples", "batch_size", "replicas", "schedule", "admission")


def decided(run: Run) -> tuple[str, ...]:
    options, seeds = run.file.options, ", ".join(map(str, run.seeds))
    counts = (run.file.input.samples, options.batch_size, replica_count(run.file))
    return seeds, *map(str, counts), options.schedule, options.admission


def _other_machine(ours: Host, theirs: Host) -> Iterator[str]:
    """Whether it was another machine, or the same one with another number of usable cores."""
    names = {"machine": "architecture", "processor": "processor", "memory_bytes": "bytes of memory", "system": "system"}
    if unlike := [name for name in names if getattr(ours, name) != getattr(theirs, name)]:
        said = ", ".join(f"{names[name]} {getattr(ours, name)}, the baseline's {getattr(theirs, name)}" for name in unlike)
        yield f"it ran on another machine or system than the baseline: {said}"
    elif ours.cores != theirs.cores:
        yield f"the baseline ran on {theirs.cores} cores, this run on {ours.cores}"


def brief(c: Comparison) -> list[str | Table]:
    """A comparison in one table, a sentence about each run but the baseline, and how runs differ otherwise."""
    pooled = [f"- {run}: the runs {names}" for run, names in pooled_runs(c)]
    flags = [f"- {flag.run}: {flag.what}" for flag in c.flags]
    found: list[str | Table] = [speeds(c), "\n".join(sentences(c)) or ALONE]
    found += ["\n".join(["Pooled, as they differ only in the seed:", "", *pooled])] if pooled else []
    return [*found, *filter(None, [simulated(c)]), *(["\n".join(["Not the same in all runs:", "", *flags])] if flags else [])]


def pooled_runs(c: Comparison) -> Iterator[tuple[str, str]]:
    """The runs that pool others, which differ only in the seed, and the names of these."""
    return ((run.name, ", ".join(run.pooled)) for run in c.runs if run.pooled)


def simulated(c: Comparison) -> str:
    """What is to be known of simulated runs, and how far their times may be off; empty where there are none."""
    runs = [run for run in c.runs if run.file.virtual_time]
    return f"{SIMULATED} {of_facts([each for run in runs for each in run.facts.values()])}" if runs else ""


def speeds(c: Comparison) -> Table:
    """Accuracy and speed of each run, a row each."""
    several, rows = len(c.baselines) > 1, []
    for run in c.runs:
        base, data = c.baseline_of(run), [c.data[run.name]] if several else []
        accuracy = of_answers(percent(run.figures["accuracy"]), run.answers)
        row = [run.name, *data, run.graph + (" (simulated)" if run.file.virtual_time else ""), " + ".join(run.models.values())]
        row += [str(run.file.options.batch_size), accuracy, plain(run.problems_per_s), plain(run.kept_tokens_per_s)]
        if run is base:
            rows.append((*row, "baseline" if len(c.runs) > 1 else "-", "-", "-", "-"))
        else:
            over = changes(run.sums, base.sums)
            factors = (number(over[name]) for name in ("speed_up", "token_factor", "rate_factor"))
            rows.append((*row, times(run.problems_per_s, base.problems_per_s), *factors))
    speed = ("problems/s", "kept tokens/s", "times as fast", "speed-up", "= tokens", "x rate")
    columns = ("run", *(["data"] if several else []), "system", "models", "batch", "accuracy", *speed)
    return Table("Accuracy and speed", columns, tuple(rows), NOTE)


def sentences(c: Comparison) -> Iterator[str]:
    """How each run but the baseline compares with it."""
    for run in c.runs:
        if run is not (base := c.baseline_of(run)):
            ratio = times(run.problems_per_s, base.problems_per_s)
            speed = "has no speed to compare" if ratio == "-" else f"is {ratio} times as fast as {base.name}"
            gain = changes(run.sums, base.sums)["accuracy_gain"].value if run.answers is None else None
            yield f"{run.name} {speed}{'' if gain is None else f', accuracy {100 * gain:+.1f} points'}"
