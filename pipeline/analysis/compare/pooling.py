"""Runs that differ in the seed alone as one run, and runs by what they solved: tables of runs enter, tables leave. Pure.

A run's arrays have an entry for each of its problems (`problem_ids`); those of the pooled run have one for each problem of any run. What
holds: counts (`SUMS`) are the sums over the runs, and means (`MEANS`) are those over all chains of a problem, whichever run they are of.
So pooling runs is the same as one run with their chains, but for what is of a run as a whole: its wall time is the mean.

Example: with seed 0 problems p and q have a chain each, right, of 2 s; with seed 1 only p has one, wrong, of 4 s. The pooled run has p with
2 chains, 1 of them right, and a mean of (2 + 4) / 2 = 3 s, and q with 1 chain, right, and 2 s.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs

from pipeline.analysis.arrays import Array
from pipeline.analysis.compare.runs import RunTable, SpeculatedTokens
from pipeline.analysis.quality.reward_agreement import ScoredSteps
from pipeline.analysis.quality.samples import SampleStatistics, interval, pass_at
from pipeline.analysis.quality.selection import ThoughtChoices
from pipeline.analysis.quality.step_quality import Quality
from pipeline.analysis.quality.step_texts import Texts

ALIKE = (
    "graph",
    "digest",
    "engines",
    "params",
    "resources",
    "host",
    "batch_size",
    "replicas",
    "schedule",
    "admission",
    "order",
    "samples",
    "simulated",
)
"""Fields of a `RunTable` that have to agree in addition to those of the input."""
SUMS = ("chains", "graded", "right")
MEANS = ("latency_s", "thinking_s", "thought_tokens", "answer_tokens", "steps", "accepted", "fallbacks")
SPLITS = ("train", "validation", "test", "dev", "data", "problems")
"""File names that say nothing without that of their folder."""


def data_sets(runs: Iterable[RunTable]) -> dict[str, str]:
    """The name of what each run solved, by the run's name: that of the file, or of the folder of a file such as `test.parquet`.

    Files are the same where their bytes are; different ones with one name are named with their folder, or else by their SHA-256.
    """
    files: dict[str, Path] = {}
    for run in runs:
        files.setdefault(run.input.sha256, Path(run.input.file))
    short = [_named(file) for file in files.values()]
    names = {sha: _named(file) if short.count(_named(file)) == 1 else f"{file.parent.name}/{file.stem}" for sha, file in files.items()}
    every = list(names.values())
    unique = {sha: name if every.count(name) == 1 else f"{name} ({sha[:8]})" for sha, name in names.items()}
    return {run.name: unique[run.input.sha256] for run in runs}


def _named(file: Path) -> str:
    return file.parent.name if file.stem in SPLITS and file.parent.name else file.stem


def pool(runs: Sequence[RunTable]) -> list[RunTable]:
    """`runs`, with those that differ in their seeds alone as one each, in the place of the first of them.

    The same graph with its params, engines, hardware, batch size, schedule, samples and problems. Chains of all seeds count as further
    samples of their problems. Of two runs with one seed only the first is pooled: the other one would say the same again.
    """
    groups: dict[Any, list[RunTable]] = {}
    for run in runs:
        group = groups.setdefault(_key(run), [])
        if any(run.seed == other.seed for other in group):
            groups[run.name] = [run]
        else:
            group.append(run)
    return [_pooled(group) if len(group) > 1 else group[0] for group in groups.values()]


def _key(run: RunTable) -> tuple[str, ...]:
    problems = {name: value for name, value in structs.asdict(run.input).items() if name not in ("file", "bad_rows")}
    return (*(repr(getattr(run, name)) for name in ALIKE), repr(problems), run.quality.model if run.quality else "")


class _Places(Struct, frozen=True):
    """Where the problems of each of several runs are among all of them."""

    ids: tuple[str, ...]
    places: tuple[Array, ...]

    def add(self, arrays: Sequence[Array]) -> Array:
        """The sums over the runs, by problem; `arrays` has one array for each run."""
        total = np.zeros(len(self.ids))
        for place, values in zip(self.places, arrays, strict=True):
            total[place] += values
        return total


def _pooled(runs: Sequence[RunTable]) -> RunTable:
    first = runs[0]
    ids = tuple(sorted({problem for run in runs for problem in run.problem_ids}))
    index = {problem: place for place, problem in enumerate(ids)}
    all_ = _Places(ids, tuple(np.array([index[problem] for problem in run.problem_ids], int) for run in runs))
    sums = {name: all_.add([getattr(run, name) for run in runs]) for name in SUMS}

    def means(arrays: "Sequence[Array | None]") -> Array:
        """Means over all chains of a problem, from those of each run; None of a run without any."""
        found = zip(arrays, runs, strict=True)
        added = all_.add([np.zeros(len(run.chains)) if each is None else each * run.chains for each, run in found])
        return np.asarray(added / np.maximum(sums["chains"], 1))

    return structs.replace(
        first,
        **sums,
        **{name: means([getattr(run, name) for run in runs]) for name in MEANS},
        kinds_s={kind: means([run.kinds_s.get(kind) for run in runs]) for kind in _keys(runs, "kinds_s")},
        output_tokens={role: means([run.output_tokens.get(role) for run in runs]) for role in _keys(runs, "output_tokens")},
        name=f"{first.name} (+{len(runs) - 1} seeds)",
        pooled=tuple(run.name for run in runs),
        seeds=tuple(run.seed for run in runs),
        status=next((run.status for run in runs if run.status != "finished"), first.status),
        wall_time_s=float(np.mean([run.wall_time_s for run in runs])),
        speculation={role: _speculated(runs, role) for role in _keys(runs, "speculation")},
        problem_ids=ids,
        failed=sum(run.failed for run in runs),
        cancelled=sum(run.cancelled for run in runs),
        sample_statistics=_statistics(runs, sums["graded"], sums["right"]),
        texts={kind: _texts(runs, kind, all_) for kind in _keys(runs, "texts")},
        masses=np.concatenate([run.masses for run in runs]),
        scored=_scored(runs, all_),
        choices=_choices(runs, all_),
        quality=_quality(runs, all_),
    )


def _keys(runs: Sequence[RunTable], name: str) -> list[str]:
    return list(dict.fromkeys(key for run in runs for key in getattr(run, name)))


def _speculated(runs: Sequence[RunTable], role: str) -> SpeculatedTokens:
    counts = [run.speculation[role] for run in runs if role in run.speculation]
    return SpeculatedTokens(sum(count.proposed for count in counts), sum(count.accepted for count in counts))


def _statistics(runs: Sequence[RunTable], graded: Array, right: Array) -> SampleStatistics:
    """Statistics of all chains as samples of their problems; pass@k for the k of one run, the majority vote as the mean over the runs."""
    problem = np.repeat(np.arange(len(graded)), graded.astype(int))
    before = np.repeat(np.cumsum(graded) - graded, graded.astype(int))
    correct = (np.arange(len(problem)) - before < np.repeat(right, graded.astype(int))).astype(float)
    samples = max(run.sample_statistics.samples for run in runs)
    votes = [run.sample_statistics.majority for run in runs if run.sample_statistics.majority is not None]
    return SampleStatistics(
        interval=interval(problem, correct),
        samples=samples,
        pass_at={k: share for k, share in pass_at(problem, correct).items() if k <= samples},
        majority=float(np.mean(votes)) if votes else None,
    )


def _texts(runs: Sequence[RunTable], kind: str, all_: _Places) -> Texts:
    def total(name: str) -> Array:
        return all_.add([getattr(run.texts[kind], name) if kind in run.texts else np.zeros(len(run.chains)) for run in runs])

    return Texts(*(total(name) for name in Texts.__struct_fields__))


def _scored(runs: Sequence[RunTable], all_: _Places) -> ScoredSteps | None:
    found = [(place, run.scored) for place, run in zip(all_.places, runs, strict=True) if run.scored]
    if not found:
        return None
    scales = ", ".join(sorted({steps.scale for _, steps in found}))
    problem = np.concatenate([place[steps.problem] for place, steps in found])
    return ScoredSteps(scales, problem, *(np.concatenate([getattr(steps, name) for _, steps in found]) for name in ("score", "reward")))


def _choices(runs: Sequence[RunTable], all_: _Places) -> ThoughtChoices | None:
    found = [(place, run.choices) for place, run in zip(all_.places, runs, strict=True) if run.choices]
    if not found:
        return None
    columns = ("right_drafts", "rejected", "picked_right", "agrees")
    return ThoughtChoices(
        problem=np.concatenate([place[choices.problem] for place, choices in found]),
        **{name: np.concatenate([getattr(choices, name) for _, choices in found]) for name in columns},
        may_reject=any(choices.may_reject for _, choices in found),
        unknown=sum(choices.unknown for _, choices in found),
    )


def _quality(runs: Sequence[RunTable], all_: _Places) -> Quality | None:
    """Sums over the runs, which have one reward model or none."""
    if (model := runs[0].quality) is None:
        return None
    names = [name for name in Quality.__struct_fields__ if name != "model"]
    return Quality(model=model.model, **{name: all_.add([getattr(run.quality, name) for run in runs]) for name in names})
