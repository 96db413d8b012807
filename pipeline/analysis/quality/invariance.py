"""Whether answers depend on the batch: two runs of one graph over one input enter, where their chains begin to differ leaves."""

from collections import Counter
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.analysis.quality.estimates import Estimate, difference
from pipeline.analysis.quality.samples import Interval, wilson
from pipeline.analysis.resources import answers as answers_of
from pipeline.analysis.resources import engine_facts, of_answers, replica_count
from pipeline.errors import UsageError
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile
from pipeline.text import in_markdown

SAME: dict[str, Callable[[RunFile], Any]] = {
    "graph": attrgetter("graph"),
    "params": attrgetter("plan.params"),
    "seed": attrgetter("seed"),
    "samples": attrgetter("samples"),
}
"""Settings in which the two runs must agree."""
VERDICTS = """
SELECT count(counted) FILTER (run = $one) AS graded, count(*) FILTER (run = $one AND counted) AS "right",
       count(counted) FILTER (run <> $one) AS graded_2, count(*) FILTER (run <> $one AND counted) AS right_2
FROM chains WHERE finished OR counted IS NOT NULL GROUP BY problem_id HAVING count(DISTINCT run) = 2 ORDER BY problem_id"""
"""The chains that count as right or wrong, and the right ones among them, of each problem that both runs have."""


class Invariance(Struct, frozen=True, kw_only=True):
    """Two runs compared chain by chain."""

    runs: tuple[str, str]
    """Their names."""
    chains: int
    """Chains that finished in both runs."""
    only_in_one: int
    """Chains that finished in one run only."""
    equal: int
    """Chains with the same token ids in every step and the same text as answer."""
    equal_share: float
    """`equal` over `chains`, 0 to 1."""
    equal_interval: Interval
    """95% interval of `equal_share`, with chains taken as independent."""
    equal_answers: int
    """Chains with the same answer, whatever their steps."""
    first_difference: dict[int, int]
    """Of the chains that are not equal: how many first differ at this step, from 0."""
    parted_by_drafts: int
    """Chains that first differ at a step for which other candidates were drafted."""
    parted_by_verdict: int
    """Chains that first differ at a step with the same candidates and another verdict."""
    parted_by_writing: int
    """Chains that first differ in a text that was written without candidates, as a fallback, or as the answer."""
    answers: str | None = None
    """`simulated` or `recorded` where models did not give the answers; see `resources.answers`."""
    accuracy: tuple[float | None, float | None]
    """Share of right chains among graded ones, in each run, on the problems that both have."""
    accuracy_difference: Estimate
    """Accuracy of the second run less that of the first; interval by bootstrap over problems."""
    differing: dict[str, tuple[str, str]]
    """Settings in which the runs differ, with both values: batch size, schedule, fields of engines."""


class _Parting(Struct, frozen=True):
    """Chains that first differ at one step for one reason; null where they are equal."""

    step: int | None
    why: str | None
    chains: int
    equal_answers: int


def invariance(first: Path, second: Path) -> Invariance:
    """Compare two run folders chain by chain; raises `UsageError` where they are not runs of the same graph, seed and input."""
    runs = RunFile.read(first), RunFile.read(second)
    with Query(first, second) as db:
        names = (db.names[0], db.names[1])
        _refuse(names, runs)
        parted = db.rows(Path(__file__).with_suffix(".sql"), _Parting, one=names[0])
        finished = db.scalar("SELECT count(DISTINCT chain_id) FROM chains WHERE finished")
        graded, right, graded_2, right_2 = db.columns(VERDICTS, one=names[0]).values()
    common = sum(each.chains for each in parted)
    if not common:
        raise UsageError(f"{names[0]} and {names[1]} have no finished chain in common")
    by, steps = Counter[str | None](), Counter[int]()
    for each in parted:
        by[each.why] += each.chains
        if each.step is not None:
            steps[each.step] += each.chains
    return Invariance(
        runs=names,
        chains=common,
        only_in_one=finished - common,
        equal=by[None],
        equal_share=by[None] / common,
        equal_interval=wilson(by[None] / common, common),
        equal_answers=sum(each.equal_answers for each in parted),
        first_difference=dict(sorted(steps.items())),
        parted_by_drafts=by["drafts"],
        parted_by_verdict=by["verdict"],
        parted_by_writing=by["writing"],
        answers=answers_of(facts for run in runs for facts in engine_facts(run).values()),
        accuracy=(_share(right, graded), _share(right_2, graded_2)),
        accuracy_difference=difference(right_2, graded_2, right, graded),
        differing=_differing(*map(_settings, runs)),
    )


def _refuse(names: tuple[str, str], runs: tuple[RunFile, RunFile]) -> None:
    one, other = runs
    if one.input.sha256 != other.input.sha256:
        raise UsageError(f"{names[0]} and {names[1]} solved different files")
    for name, of in SAME.items():
        if of(one) != of(other):
            raise UsageError(f"{name} of {names[0]} is {of(one)}, of {names[1]} {of(other)}; expected the same")


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    names = sorted(one.keys() | other.keys())
    return {name: (str(one.get(name)), str(other.get(name))) for name in names if one.get(name) != other.get(name)}


def _settings(run: RunFile) -> dict[str, Any]:
    fields = {f"{role}.{name}": value for role, spec in run.engines.items() for name, value in spec.items()}
    return {"batch_size": run.batch_size, "replicas": replica_count(run), "schedule": run.schedule} | fields


def _share(right: Array, graded: Array) -> float | None:
    return float(right.sum() / graded.sum()) if graded.sum() else None


def invariance_markdown(found: Invariance) -> str:
    """The comparison as a few lines of Markdown."""
    low, high = found.equal_interval.low, found.equal_interval.high
    which = in_markdown(f"{found.runs[0]} against {found.runs[1]}")
    lines = [
        f"{which}, {found.chains} chains that ended in both ({found.only_in_one} in one only):",
        "",
        f"- equal to the last token: {found.equal} ({found.equal_share:.1%}; 95% interval {low:.1%} to {high:.1%})",
        f"- the same answer: {found.equal_answers} ({found.equal_answers / found.chains:.1%})",
        f"- the others diverge by their drafts {found.parted_by_drafts}, by a verdict {found.parted_by_verdict}, "
        f"by a written text {found.parted_by_writing}",
    ]
    if found.first_difference:
        lines.append("- at step: " + ", ".join(f"{step} ({count})" for step, count in found.first_difference.items()))
    gain = found.accuracy_difference
    if gain.value is not None and None not in found.accuracy:
        a, b = found.accuracy
        between = f", 95% interval {gain.low:+.2%} to {gain.high:+.2%}" if gain.low is not None and gain.high is not None else ""
        lines.append(f"- {of_answers('accuracy', found.answers)} {a:.2%} and {b:.2%}, difference {gain.value:+.2%}{between}")
    if found.differing:
        lines.append(in_markdown("- they differ in: " + "; ".join(f"{name} {a} and {b}" for name, (a, b) in found.differing.items())))
    return "\n".join(lines) + "\n"


def invariance_json(found: Invariance) -> str:
    """The comparison as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"
