"""Do the answers depend on the batch? Two runs of one graph over one input enter, where their chains part leaves.

Trace files only. Of each chain a hash for every step is held.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from pipeline.analysis.compare.runs import RunTable, read_run
from pipeline.analysis.quality.estimates import Estimate, difference
from pipeline.analysis.quality.samples import Interval, wilson
from pipeline.analysis.time.timeline import Array
from pipeline.errors import UsageError
from pipeline.trace.events import UNFINISHED
from pipeline.trace.read import read_batches

SAME = ("graph", "params", "seed", "samples")


class Invariance(Struct, frozen=True, kw_only=True):
    """Two runs, chain by chain."""

    runs: tuple[str, str]
    chains: int
    """That ended in both."""
    only_in_one: int
    equal: int
    """Chains whose every step has the same token ids, and the answer the same text."""
    equal_share: float
    equal_interval: Interval
    """Of 95 %, chains taken as independent."""
    equal_answers: int
    """Chains that give the same answer, by whatever way."""
    first_difference: dict[int, int]
    """Of the others: how many part at this step."""
    parted_by_drafts: int
    """They part at a step for which other candidates were drafted."""
    parted_by_verdict: int
    """The candidates were the same and the verdict another one."""
    parted_by_writing: int
    """Another text was written for a step without candidates, or as a fallback, or as the answer."""
    accuracy: tuple[float | None, float | None]
    accuracy_difference: Estimate
    """Second less first; interval by bootstrap over problems."""
    differing: dict[str, tuple[str, str]]
    """What else the two differ in: batch size, schedule, engine fields."""


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
    sides = [{"batch_size": run.batch_size, "schedule": run.schedule} | _fields(run.engines) for run in (one, other)]
    names = sorted(sides[0].keys() | sides[1].keys())
    return {name: (str(sides[0].get(name)), str(sides[1].get(name))) for name in names if sides[0].get(name) != sides[1].get(name)}


def _fields(engines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{role}.{name}": value for role, spec in engines.items() for name, value in spec.items()}


def _answers(run: Path) -> dict[str, str]:
    """What each finished chain answered."""
    found: dict[str, str] = {}
    for batch in read_batches(run, "chains", ["chain_id", "answer", "stop_reason"]):
        found |= {row["chain_id"]: row["answer"] or "" for row in batch.to_pylist() if row["stop_reason"] not in UNFINISHED}
    return found


Steps = dict[str, list[tuple[int, int, bool]]]
"""Of each chain's steps: a hash of what was committed, one of what was drafted for it, and whether it was accepted."""


def _steps(run: Path, chains: set[str]) -> Steps:
    found: Steps = {chain: [] for chain in chains}
    for batch in read_batches(run, "steps", ["chain_id", "step_token_ids", "candidate_texts", "decision"]):
        for row in batch.to_pylist():
            if row["chain_id"] in found:
                drafted = hash(tuple(row["candidate_texts"]))
                found[row["chain_id"]].append((hash(tuple(row["step_token_ids"])), drafted, row["decision"] == "accepted"))
    return found


def _parts(chain: str, steps: tuple[Steps, Steps], answers: tuple[dict[str, str], dict[str, str]]) -> tuple[int, str] | None:
    """At which step the two part, from 0, and by what; None where they do not."""
    one, other = steps[0][chain], steps[1][chain]
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a[0] != b[0]:
            why = "drafts" if a[1] != b[1] else "verdict" if a[2] or b[2] else "writing"
            return place, why
    if len(one) != len(other) or answers[0][chain] != answers[1][chain]:
        return min(len(one), len(other)), "writing"
    return None


def _verdicts(run: RunTable, other: RunTable) -> tuple[Array, Array]:
    """Right and graded chains of each problem that both have, in the order of their ids."""
    common = np.isin(run.problem_ids, other.problem_ids)
    return run.right[common], run.graded[common]


def _share(right: Array, graded: Array) -> float | None:
    return float(right.sum() / graded.sum()) if graded.sum() else None


def invariance_markdown(found: Invariance) -> str:
    """The comparison in a few lines."""
    low, high = found.equal_interval.low, found.equal_interval.high
    lines = [
        f"{found.runs[0]} against {found.runs[1]}, {found.chains} chains that ended in both ({found.only_in_one} in one only):",
        "",
        f"- equal to the last token: {found.equal} ({found.equal_share:.1%}; 95 % interval {low:.1%} to {high:.1%})",
        f"- the same answer: {found.equal_answers} ({found.equal_answers / found.chains:.1%})",
        f"- the others part by their drafts {found.parted_by_drafts}, by a verdict {found.parted_by_verdict}, "
        f"by a written text {found.parted_by_writing}",
    ]
    if found.first_difference:
        lines.append("- at step: " + ", ".join(f"{step} ({count})" for step, count in found.first_difference.items()))
    gain = found.accuracy_difference
    if gain.value is not None and None not in found.accuracy:
        a, b = found.accuracy
        between = f", 95 % interval {gain.low:+.2%} to {gain.high:+.2%}" if gain.low is not None and gain.high is not None else ""
        lines.append(f"- accuracy {a:.2%} and {b:.2%}, difference {gain.value:+.2%}{between}")
    if found.differing:
        lines.append("- they differ in: " + "; ".join(f"{name} {a} and {b}" for name, (a, b) in found.differing.items()))
    return "\n".join(lines) + "\n"


def invariance_json(found: Invariance) -> str:
    """The comparison as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"
