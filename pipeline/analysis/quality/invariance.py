"""Whether answers depend on the batch: two runs of one graph over one input enter, where their chains begin to differ leaves.

Only trace files are read. For each chain a hash of every step is held.
"""

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
from pipeline.store.events import UNFINISHED
from pipeline.store.read import read_batches
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


def invariance(first: Path, second: Path) -> Invariance:
    """Compare two run folders chain by chain; raises `UsageError` where they are not runs of the same graph, seed and input."""
    tables = read_run(first), read_run(second)
    _refuse(*tables)
    answers = _answers(first), _answers(second)
    common = answers[0].keys() & answers[1].keys()
    if not common:
        raise UsageError(f"{tables[0].name} and {tables[1].name} have no finished chain in common")
    steps = _steps(first, common), _steps(second, common)
    parted = {chain: where for chain in common if (where := _parts(chain, steps, answers)) is not None}
    equal = len(common) - len(parted)
    by = Counter(why for _, why in parted.values())
    (right, graded), (right_2, graded_2) = _verdicts(tables[0], tables[1]), _verdicts(tables[1], tables[0])
    return Invariance(
        runs=(tables[0].name, tables[1].name),
        chains=len(common),
        only_in_one=len(answers[0].keys() ^ answers[1].keys()),
        equal=equal,
        equal_share=equal / len(common),
        equal_interval=wilson(equal / len(common), len(common)),
        equal_answers=sum(answers[0][chain] == answers[1][chain] for chain in common),
        first_difference=dict(sorted(Counter(step for step, _ in parted.values()).items())),
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


def _answers(run: Path) -> dict[str, str]:
    """The answer of each finished chain, by its name; empty where it gave none."""
    found: dict[str, str] = {}
    for batch in read_batches(run, "chains", ["chain_id", "answer", "stop_reason"]):
        found |= {row["chain_id"]: row["answer"] or "" for row in batch.to_pylist() if row["stop_reason"] not in UNFINISHED}
    return found


Steps = dict[str, list[tuple[int, int, bool]]]
"""By chain, for each of its steps: a hash of the committed tokens, one of the candidates, and whether a candidate was accepted."""


def _steps(run: Path, chains: set[str]) -> Steps:
    found: Steps = {chain: [] for chain in chains}
    for batch in read_batches(run, "steps", ["chain_id", "step_token_ids", "candidate_texts", "decision"]):
        for row in batch.to_pylist():
            if row["chain_id"] in found:
                drafted = hash(tuple(row["candidate_texts"]))
                found[row["chain_id"]].append((hash(tuple(row["step_token_ids"])), drafted, row["decision"] == "accepted"))
    return found


def _parts(chain: str, steps: tuple[Steps, Steps], answers: tuple[dict[str, str], dict[str, str]]) -> tuple[int, str] | None:
    """The first step, from 0, in which the two runs of `chain` differ, and why: `drafts`, `verdict` or `writing`; None where none does."""
    one, other = steps[0][chain], steps[1][chain]
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a[0] != b[0]:
            why = "drafts" if a[1] != b[1] else "verdict" if a[2] or b[2] else "writing"
            return place, why
    if len(one) != len(other) or answers[0][chain] != answers[1][chain]:
        return min(len(one), len(other)), "writing"
    return None


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
