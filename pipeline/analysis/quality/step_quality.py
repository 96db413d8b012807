"""Rewards of drafted and selected steps by a process reward model: the rewards table of a run enters, sums for each problem leave.

`pipeline score RUN --prm FILE` writes that table; a run without it has no quality.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.analysis.time.timeline import Array, Names
from pipeline.store.read import read_batches

COLUMNS = ["chain_id", "step_index", "candidate_index", "selected", "decision", "reward", "model"]


class Quality(Struct, frozen=True, kw_only=True):
    """Sums of rewards, which are 0 to 1, over the steps of each problem; texts without a reward are left out."""

    model: str
    """The reward model; several, separated by commas."""
    drafted: Array
    """Sum over steps with candidates of the mean reward of the step's candidates."""
    steps: Array
    """Number of steps with candidates."""
    selected: Array
    """Sum over steps with a selected candidate of that candidate's reward."""
    selected_from: Array
    """Sum over the same steps of the mean reward of all their candidates."""
    selections: Array
    """Number of steps with a selected candidate."""
    fallback: Array
    """Sum of the rewards of steps that the target wrote after rejecting all candidates."""
    fallbacks: Array
    """Number of such steps."""


class _Rows(Struct):
    """Texts with a reward, as columns of equal length."""

    step: Array
    """A number that texts of one step share."""
    problem: Array
    reward: Array
    drafted: Array
    selected: Array
    fallback: Array


def read_quality(folder: Path, place: Mapping[str, int], problems: int) -> Quality | None:
    """Sums of the rewards in the run folder `folder`; None where it has none. Raises `InputError`.

    `place` is the index of each chain's problem, below `problems`; chains that are not in it do not count.
    """
    models, chains = Names(), Names()
    parts = []
    for batch in read_batches(folder, "rewards", COLUMNS):
        models.codes(batch.column("model"))
        parts.append(_columns(batch, chains, place))
    if not parts:
        return None
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return _sums(_Rows(*columns), problems, ", ".join(sorted(models)))


def _columns(batch: pa.RecordBatch, chains: Names, place: Mapping[str, int]) -> list[Array]:
    """The columns of `_Rows`, without texts that have no reward or whose chain is not in `place`."""
    chain = chains.codes(batch.column("chain_id")).astype(np.int64)
    problem = np.array([place.get(name, -1) for name in chains], int)[chain]
    reward = batch.column("reward").cast("float64").to_numpy(zero_copy_only=False)
    drafted = batch.column("candidate_index").is_valid().to_numpy(zero_copy_only=False)
    selected = batch.column("selected").to_numpy(zero_copy_only=False)
    fallback = pc.equal(batch.column("decision"), "fallback").to_numpy(zero_copy_only=False)
    step = chain << 32 | batch.column("step_index").to_numpy()
    counts = (problem >= 0) & ~np.isnan(reward)
    return [column[counts] for column in (step, problem, reward, drafted, drafted & selected, ~drafted & fallback)]


def _sums(rows: _Rows, problems: int, model: str) -> Quality:
    steps, step = np.unique(rows.step, return_inverse=True)
    owner = np.zeros(len(steps), int)
    owner[step] = rows.problem

    def of_steps(which: Array) -> tuple[Array, Array]:
        """Sum and number of the rewards that `which` marks, for each step."""
        return np.bincount(step[which], rows.reward[which], len(steps)), np.bincount(step[which], minlength=len(steps))

    def over(values: Array, which: Array) -> Array:
        """The `values` of the steps that `which` marks, added up for each problem."""
        return np.bincount(owner[which], values[which], problems)

    drafted, candidates = of_steps(rows.drafted)
    selected, selections = of_steps(rows.selected)
    mean = drafted / np.maximum(candidates, 1)
    return Quality(
        model=model,
        drafted=over(mean, candidates > 0),
        steps=np.bincount(owner[candidates > 0], minlength=problems),
        selected=over(selected, selections > 0),
        selected_from=over(mean, selections > 0),
        selections=np.bincount(owner[selections > 0], minlength=problems),
        fallback=np.bincount(rows.problem[rows.fallback], rows.reward[rows.fallback], problems),
        fallbacks=np.bincount(rows.problem[rows.fallback], minlength=problems),
    )
