"""Compares runs: run folders enter, the figures of each, its differences from a baseline, and reasons other than its graph leave.

Runs that differ in the seed alone count as one run with the chains of all. A chain that failed counts as wrong (`counted`) and in no other
figure, one that was cancelled in none. What is of a run as a whole, such as its wall time, is averaged over pooled runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from pipeline.analysis.facts import EngineFacts, Resources, answers, engine_facts, of_answers, replica_count, resources, stated
from pipeline.analysis.figures import Estimate, Sums, changes, common, figures, read_sums
from pipeline.analysis.rules import Rules, differences, rules_of
from pipeline.analysis.tables import Table, plain, times
from pipeline.errors import InputError, UsageError
from pipeline.graph.files import model_name
from pipeline.store.query import Query, run_names
from pipeline.store.run_file import RunFile

ENDS = """
SELECT count(*) FILTER (finished), count(*) FILTER (stop_reason = 'error'),
       count(*) FILTER (stop_reason = 'error' AND error_type <> 'BadRow'), count(*) FILTER (stop_reason = 'cancelled')
FROM chains
"""
SPLITS = ("train", "validation", "test", "dev", "data", "problems")
"""File names that mean nothing without their folder's."""
NOTE = (
    "times as fast = problems/s over the baseline's. speed-up = baseline time / run time per problem = (how much shorter the text is) x "
    "(how much faster each token is). Brackets: 95 % intervals; too few: under 30 problems."
)
SIMULATED = "Simulated runs: times come from a model of the hardware and answers are invented. Replays reuse recorded answers."
ALONE = "Nothing to compare with: name a second run over the same problems; for a baseline, solve them with `pipeline run target`."
HOST = {"machine": "architecture", "processor": "processor", "memory_bytes": "bytes of memory", "system": "system", "cores": "cores"}


class Ends(NamedTuple):
    """The chains of a run by how they ended."""

    finished: int = 0
    failed: int = 0
    lost: int = 0
    """Those of `failed` whose rows held problems: what an engine worked for them is in the wall time."""
    cancelled: int = 0


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

    @cached_property
    def models(self) -> dict[str, str]:
        """The model by role: of roles that write, then of those that judge alone, then of those that draft."""
        writers = {node.spec.role for node in self.file.plan.stages() if node.spec.purpose != "judge"}
        roles = sorted(self.file.plan.engines, key=lambda role: (role in self.file.plan.drafters, role not in writers))
        return {role: model_name(str(self.file.engines.get(role, {}).get("model", role))) for role in roles}

    @property
    def resources(self) -> Resources:
        """What its engines computed on."""
        return resources(self.facts.values(), replica_count(self.file))

    @property
    def answers(self) -> str | None:
        """`simulated` or `recorded` where models did not give its answers; see `facts.answers`."""
        return answers(self.facts.values())

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

    @property
    def settings(self) -> dict[str, str]:
        """What was chosen besides graph and engines, by name, in words."""
        options = self.file.options
        counts = {"samples": self.file.input.samples, "batch_size": options.batch_size, "replicas": replica_count(self.file)}
        chosen = {name: str(count) for name, count in counts.items()} | {"schedule": options.schedule, "admission": options.admission}
        return {"seed": ", ".join(map(str, self.seeds))} | chosen

    def decided(self) -> dict[str, Any]:
        """Its settings and results by name, besides its figures."""
        file = self.file
        return {
            "pooled": self.pooled,
            "graph": file.graph,
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
    groups: dict[str, list[tuple[str, Path, RunFile]]] = {}
    for name, folder in zip(run_names(folders), folders, strict=True):
        file = RunFile.read(folder)
        group = groups.setdefault(_pool_of(file) if pooled else name, [])
        twin = any(file.options.seed == other.options.seed for _, _, other in group)
        (groups.setdefault(name, []) if twin else group).append((name, folder, file))
    return [_read(members) for members in groups.values()]


def _pool_of(file: RunFile) -> str:
    """Equal for runs that differ in their seeds alone."""
    options, plan = file.options, file.plan
    problems = (file.input.sha256, file.input.rows, file.input.samples, options.columns, options.part, options.served)
    chosen = (file.graph, plan.digest, file.engines, plan.params, file.host, options.batch_size, options.schedule, options.admission)
    return repr((problems, chosen, file.virtual_time, resources(engine_facts(file).values(), replica_count(file))))


def _read(members: Sequence[tuple[str, Path, RunFile]]) -> Run:
    names, folders, files = zip(*members, strict=True)
    with ExitStack() as stack:
        runs = [stack.enter_context(Query(folder)) for folder in folders]
        ends = [Ends(*next(db.stream(ENDS))) for db in runs]
        for folder, each in zip(folders, ends, strict=True):
            if not each.finished:
                unfinished = f"; {each.failed + each.cancelled} failed or were cancelled" if each.failed + each.cancelled else ""
                raise InputError(str(folder), f"has no finished chain{unfinished}: there is nothing to compare")
        return Run(
            name=f"{names[0]} (+{len(names) - 1} seeds)" if len(names) > 1 else names[0],
            folders=folders,
            file=files[0],
            pooled=names if len(names) > 1 else (),
            seeds=tuple(file.options.seed for file in files),
            status=next((file.status for file in files if file.status != "finished"), "finished"),
            mean_wall_time_s=float(np.mean([file.wall_time_s or 0.0 for file in files])),
            ends=Ends(*map(sum, zip(*ends, strict=True))),
            sums=read_sums(runs),
        )


def data_sets(runs: Sequence[Run]) -> dict[str, str]:
    """The data set of each run, by the run's name: the name of its file, or of the folder of a file such as `test.parquet`.

    Files are the same where their bytes are; different ones with one name are named with their SHA-256.
    """
    inputs = {run.name: run.file.input.sha256 for run in runs}
    names = {run.file.input.sha256: data_name(Path(run.file.options.input[0])) for run in reversed(runs)}
    every = list(names.values())
    return {run: names[sha] if every.count(names[sha]) == 1 else f"{names[sha]} ({sha[:8]})" for run, sha in inputs.items()}


def data_name(file: Path) -> str:
    """What the problems in a file are called."""
    return file.parent.name if file.stem in SPLITS and file.parent.name else file.stem


class Comparison(Struct, frozen=True, kw_only=True):
    """Several runs, each with its differences from a baseline."""

    baselines: dict[str, str]
    """The baseline of each data set, by its name, in the order given: runs are compared over the same data alone."""
    runs: tuple[Run, ...]
    """In the order given."""
    data: dict[str, str]
    """The data set of each run; see `data_sets`."""
    flags: dict[str, tuple[str, ...]]
    """Reasons other than its graph why a run may differ from its baseline, as clauses, by the run's name."""

    def baseline_of(self, run: Run) -> Run:
        """The run that `run` is compared with."""
        return next(each for each in self.runs if each.name == self.baselines[self.data[run.name]])

    def over_baseline(self, run: Run) -> dict[str, Any]:
        """How `run` differs from its baseline: in accuracy on the problems that both have, in all else on those that both finished."""
        base = self.baseline_of(run)
        return {"over": base.name, "problems": len(common(run.sums, base.sums)[0]), **changes(run.sums, base.sums)}

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        runs = [
            {"run": run.name, "dataset": self.data[run.name], **run.decided(), **run.figures, "over_baseline": self.over_baseline(run)}
            for run in self.runs
        ]
        return {"baselines": self.baselines, "runs": runs, "flags": self.flags}


def compare(runs: Sequence[Run], baseline: str | None = None) -> Comparison:
    """Compare `runs` with the run or graph named `baseline`, by default the first run of graph `target`, or else the first that drafts
    nothing, or else the first; with several data sets in each of them.

    Raises `UsageError` when a baseline is not among them or has no problem in common with a run over the same data.
    """
    data = data_sets(runs)
    bases = _baselines(runs, data, baseline)
    flags = {run.name: tuple(flags_of(run, bases[data[run.name]])) for run in runs}
    return Comparison(baselines={name: base.name for name, base in bases.items()}, runs=tuple(runs), data=data, flags=flags)


def _baselines(runs: Sequence[Run], data: Mapping[str, str], wanted: str | None) -> dict[str, Run]:
    """The baseline of each data set; where `wanted` is a run over one of them, the first run of its graph over each of the others."""
    named = next((run for run in runs if wanted in (run.name, *run.pooled)), None)
    found: dict[str, Run] = {}
    for name in dict.fromkeys(data.values()):
        members, over = [run for run in runs if data[run.name] == name], f" over {name}" if len(set(data.values())) > 1 else ""
        graph = wanted if named is None else named.file.graph
        alike = [named] if named in members else [run for run in members if run.file.graph == graph]
        if wanted is None:
            alike = [min(members, key=lambda run: (run.file.graph != "target", bool(run.file.plan.drafters)))]
        elif not alike:
            raise UsageError(f"--baseline {wanted}: no such run or graph here{over}; there are {', '.join(run.name for run in runs)}")
        elif len(alike) > 1 and named is None:
            raise UsageError(f"--baseline {wanted}: {', '.join(run.name for run in alike)} are all of that graph{over}; name one of them")
        found[name] = alike[0]
    return found


def flags_of(run: Run, base: Run) -> Iterator[str]:
    """Reasons other than their graphs why `run` may differ from `base`; raises `UsageError` where they have no problem in common."""
    ends, both = run.ends, int(np.isin(run.sums["problem"], base.sums["problem"]).sum())
    if not both:
        raise UsageError(f"{run.name} and {base.name} have no finished problem in common")
    if run.status != "finished":
        yield f"it is {run.status}: only finished chains count"
    if ends.failed:
        yield f"failed chains: {ends.failed:,}; they count as wrong and are in no other figure"
    if ends.lost:
        yield "because chains failed, it has no wall time to compare"
    if ends.cancelled:
        yield f"cancelled chains: {ends.cancelled:,}; they are in no figure"
    for name, ours in run.settings.items():
        if ours != (theirs := base.settings[name]):
            yield f"{name} is {ours}, the baseline's {theirs}"
    if run.file.virtual_time != base.file.virtual_time:
        yield "one of the two is simulated, the other measured"
    elif not run.file.virtual_time:
        hosts = ((words, getattr(run.file.host, name), getattr(base.file.host, name)) for name, words in HOST.items())
        if said := ", ".join(f"{words} {ours}, the baseline's {theirs}" for words, ours, theirs in hosts if ours != theirs):
            yield f"it ran on another machine or system than the baseline: {said}"
    if both < max(len(run.sums["problem"]), len(base.sums["problem"])):
        yield f"{both} of its {len(run.sums['problem'])} problems are also the baseline's; differences are over these"
    yield from differences(run.rules, base.rules).values()
    if run.resources.amounts != base.resources.amounts or (run.models.keys() == base.models.keys() and run.resources != base.resources):
        yield f"it had {run.resources.label}, the baseline {base.resources.label}"


def brief(c: Comparison) -> list[str | Table]:
    """A comparison in one table, a sentence about each run but the baseline, and how runs differ otherwise."""
    pooled = [f"- {run}: the runs {names}" for run, names in pooled_runs(c)]
    flags = [f"- {run}: {said}" for run, clauses in c.flags.items() for said in clauses]
    found: list[str | Table] = [speeds(c), "\n".join(sentences(c)) or ALONE]
    found += ["\n".join(["Pooled, as they differ only in the seed:", "", *pooled])] if pooled else []
    return [*found, *filter(None, [simulated(c)]), *(["\n".join(["Not the same in all runs:", "", *flags])] if flags else [])]


def pooled_runs(c: Comparison) -> Iterator[tuple[str, str]]:
    """The runs that pool others, which differ only in the seed, and the names of these."""
    return ((run.name, ", ".join(run.pooled)) for run in c.runs if run.pooled)


def simulated(c: Comparison) -> str:
    """What is to be known of simulated runs, and how far their times may be off; empty where there are none."""
    runs = [run for run in c.runs if run.file.virtual_time]
    return f"{SIMULATED} {stated([each for run in runs for each in run.facts.values()])}" if runs else ""


def speeds(c: Comparison) -> Table:
    """Accuracy and speed of each run, a row each."""
    several, rows = len(c.baselines) > 1, []
    for run in c.runs:
        base, right = c.baseline_of(run), run.figures["accuracy"]
        row = [run.name, *([c.data[run.name]] if several else []), run.file.graph + (" (simulated)" if run.file.virtual_time else "")]
        row += [" + ".join(run.models.values()), str(run.file.options.batch_size)]
        row += [of_answers(right.value, run.answers, right.shown("percent")), plain(run.problems_per_s), plain(run.kept_tokens_per_s)]
        if run is base:
            row += ["baseline" if len(c.runs) > 1 else "-", "-", "-", "-"]
        else:
            over = changes(run.sums, base.sums)
            row += [times(run.problems_per_s, base.problems_per_s)]
            row += [over[name].shown() for name in ("speed_up", "token_factor", "rate_factor")]
        rows.append(tuple(row))
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
