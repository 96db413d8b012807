"""Whether answers depend on the batch: two runs of one graph over one input enter, where their chains begin to differ leaves."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.analysis.compare.runs import RunTable, read_run
from pipeline.analysis.quality.estimates import Estimate, difference
from pipeline.analysis.quality.samples import Interval, wilson
from pipeline.analysis.resources import answers as answers_of
from pipeline.analysis.resources import of_answers
from pipeline.errors import UsageError
from pipeline.store.query import Query
from pipeline.text import in_markdown

SAME = ("graph", "params", "seed", "samples")
"""Settings in which the two runs must agree."""


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
    tables = read_run(first), read_run(second)
    _refuse(*tables)
    with Query(first, second) as db:
        parted = db.rows(Path(__file__).with_suffix(".sql"), _Parting, one=db.names[0])
        finished = db.scalar("SELECT count(DISTINCT chain_id) FROM chains WHERE finished")
    common = sum(each.chains for each in parted)
    if not common:
        raise UsageError(f"{tables[0].name} and {tables[1].name} have no finished chain in common")
    by, steps = Counter[str | None](), Counter[int]()
    for each in parted:
        by[each.why] += each.chains
        if each.step is not None:
            steps[each.step] += each.chains
    (right, graded), (right_2, graded_2) = _verdicts(tables[0], tables[1]), _verdicts(tables[1], tables[0])
    return Invariance(
        runs=(tables[0].name, tables[1].name),
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
        answers=answers_of(each for table in tables for each in table.facts.values()),
        accuracy=(_share(right, graded), _share(right_2, graded_2)),
        accuracy_difference=difference(right_2, graded_2, right, graded),
        differing=_differing(*tables),
    )


def _refuse(one: RunTable, other: RunTable) -> None:
    if one.input.sha256 != other.input.sha256:
        raise UsageError(f"{one.name} and {other.name} solved different files")
    for name in SAME:
        if getattr(one, name) != getattr(other, name):
            raise UsageError(f"{name} of {one.name} is {getattr(one, name)}, of {other.name} {getattr(other, name)}; expected the same")


def _differing(one: RunTable, other: RunTable) -> dict[str, tuple[str, str]]:
    named = ("batch_size", "replicas", "schedule")
    sides = [{name: getattr(run, name) for name in named} | _fields(run.engines) for run in (one, other)]
    names = sorted(sides[0].keys() | sides[1].keys())
    return {name: (str(sides[0].get(name)), str(sides[1].get(name))) for name in names if sides[0].get(name) != sides[1].get(name)}


def _fields(engines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{role}.{name}": value for role, spec in engines.items() for name, value in spec.items()}


def _verdicts(run: RunTable, other: RunTable) -> tuple[Array, Array]:
    """Numbers of right and of graded chains in `run`, for each problem that both runs have, in the order of their ids."""
    common = np.isin(run.problem_ids, other.problem_ids)
    return run.right[common], run.graded[common]


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
