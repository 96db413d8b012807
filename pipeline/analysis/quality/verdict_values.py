"""How far a verifier's value can be trusted: steps with a verdict enter, counts and shares in bins of its value leave.

For accepted steps it is counted how often the chain of such a step ended right and, where the run has a rewards table
(`pipeline score`), how often a reward model holds the step good. A few numbers of each step are held.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.analysis.capabilities import SCALE_COLUMNS, scale_of
from pipeline.analysis.quality.samples import Interval, interval
from pipeline.analysis.time.timeline import Array, Names
from pipeline.reasoning.chain import Scale
from pipeline.store.read import read_batches

COLUMNS = ("chain_id", "step_index", "score_value", "threshold", "verify_kind", *SCALE_COLUMNS)
"""Columns of the steps that are added; see `capabilities.read_steps`."""
GOOD = 0.5
"""From this reward on a step counts as good."""
BINS = 20
"""Number of bins of a scale with two ends; about half as many, of round width, where an end is open."""
OUTLIERS = 0.005
"""Share of the values that lie beyond the last edge at an open end; they count in the last bin."""


class Grades(Struct, frozen=True):
    """Whether chains ended right; the arrays have one element for each chain."""

    place: Mapping[str, int]
    """The index of each chain in the arrays, by its name."""
    problem: Array
    """A number that chains of one problem share."""
    correct: Array
    """1 right, 0 wrong, -1 not graded."""


class Share(Struct, frozen=True):
    """In what share of `count` steps something held; nulls without steps."""

    count: int
    share: float | None
    interval: Interval | None
    """95 % interval with problems as clusters, because steps of one chain share its outcome; see `samples.interval`."""


class Scores(Struct, frozen=True, kw_only=True):
    """The values of one kind of verdict, in bins; the sequences have one element for each bin."""

    scale: Scale
    """What the values mean."""
    edges: Array
    """Edges of the bins, one more than there are bins."""
    accepted: Array
    """Number of accepted steps."""
    rejected: Array
    """Number of rejected steps."""
    threshold: float | None
    """Null where it was not the same in all steps."""
    right: tuple[Share, ...]
    """Among accepted steps of graded chains, the share whose chain ended right."""
    good: tuple[Share, ...]
    """Among accepted steps with a reward, the share with a reward of `GOOD` or more. Empty where the run has no rewards."""


class _Rows(Struct):
    """Verified steps, as columns of equal length."""

    chain: Array
    step: Array
    value: Array
    accepted: Array


class VerdictValues:
    """Collects verdicts from batches of steps, by the kind of the verifier and its scale."""

    def __init__(self) -> None:
        self._chains = Names()
        self._rows: dict[tuple[str, Scale], list[_Rows]] = {}
        self._thresholds: dict[tuple[str, Scale], set[float]] = {}

    def add(self, steps: pa.RecordBatch, accepted: Array) -> None:
        """Add the verdicts of `steps`, a batch with `COLUMNS`; `accepted` marks the accepted ones."""
        value = steps.column("score_value").cast("float64").fill_null(float("nan")).to_numpy(zero_copy_only=False)
        chain, step = self._chains.codes(steps.column("chain_id")), steps.column("step_index").to_numpy()
        for key, mine in _by_scale(steps):
            mine = mine & ~np.isnan(value)
            rows = _Rows(chain[mine], step[mine].astype(np.int32), value[mine], accepted[mine])
            self._rows.setdefault(key, []).append(rows)
            thresholds = pc.unique(steps.column("threshold").filter(pa.array(mine)).drop_null()).to_pylist()
            self._thresholds.setdefault(key, set()).update(thresholds)

    def scores(self, run: Path, grades: Grades) -> dict[str, Scores]:
        """Bins of the verdicts that were added, by kind of verifier, or by kind and scale where one kind has several scales.

        `run` is the run folder whose rewards are read. Chains that are not in `grades` count in no share.
        """
        rewards = _read_rewards(run, self._chains)
        kinds = [kind for kind, _ in self._rows]
        names = {key: key[0] if kinds.count(key[0]) == 1 else f"{key[0]}, {key[1].name}" for key in self._rows}
        return {name: self._scores(key, grades, rewards) for key, name in names.items()}

    def _scores(self, key: tuple[str, Scale], grades: Grades, rewards: tuple[Array, Array] | None) -> Scores:
        rows = _joined(self._rows[key])
        edges = edges_of(key[1], rows.value)
        bins, count = np.clip(np.searchsorted(edges, rows.value, "right") - 1, 0, len(edges) - 2), len(edges) - 1
        place = np.array([grades.place.get(name, -1) for name in self._chains], int)[rows.chain]
        known = rows.accepted & (place >= 0)
        known_bins, place = bins[known], place[known]
        problem, correct = grades.problem[place], grades.correct[place]
        graded = correct >= 0
        thresholds = self._thresholds[key]
        return Scores(
            scale=key[1],
            edges=edges,
            accepted=np.bincount(bins[rows.accepted], minlength=count),
            rejected=np.bincount(bins[~rows.accepted], minlength=count),
            threshold=next(iter(thresholds)) if len(thresholds) == 1 else None,
            right=_shares(known_bins[graded], problem[graded], correct[graded] == 1, count),
            good=() if rewards is None else _good(rewards, _keys(rows.chain, rows.step)[known], known_bins, problem, count),
        )


def edges_of(scale: Scale, values: Array) -> Array:
    """Edges of the bins for `values` on `scale`. Whole numbers are in the middle of their bins; open ends are where the values end."""
    finite = values[np.isfinite(values)]
    low, high = np.quantile(finite, (OUTLIERS, 1 - OUTLIERS)) if len(finite) else (0.0, 0.0)
    low, high = sorted(float(found if end is None else end) for end, found in ((scale.low, low), (scale.high, high)))
    if scale.integers:
        first, last = math.floor(low), math.ceil(high)
        whole = -(-(last - first + 1) // (2 * BINS))
        return np.asarray(first - 0.5 + whole * np.arange((last - first) // whole + 2))
    if scale.low is not None and scale.high is not None:
        return np.linspace(low, high, BINS + 1)
    width = round_width((high - low) / (BINS / 2))
    digits = 3 - math.floor(math.log10(width))
    if scale.high is not None:
        return np.round(high - width * np.arange(max(1, math.ceil((high - low) / width)), -1, -1), digits)
    start = low if scale.low is not None else width * math.floor(low / width)
    return np.round(start + width * np.arange(max(1, math.ceil((high - start) / width)) + 1), digits)


def round_width(width: float) -> float:
    """The least number of 1, 2 or 5 times a power of ten that is not below `width`; 1 where `width` is 0."""
    if width <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(width))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= width * (1 - 1e-9))


def _by_scale(steps: pa.RecordBatch) -> list[tuple[tuple[str, Scale], Array]]:
    """The kinds and scales of verdicts that occur in a batch, each with a mask of its steps."""
    names = ("verify_kind", "score_scale", "score_unit", "score_low", "score_high", "score_integers")
    texts = [steps.column(name).cast("string") for name in names]
    joined = pc.binary_join_element_wise(*texts, "\0", null_handling="replace", null_replacement="").dictionary_encode()
    codes, verified = joined.indices.to_numpy(), steps.column("verify_kind").is_valid().to_numpy(zero_copy_only=False)
    found = []
    for code in range(len(joined.dictionary)):
        mine = (codes == code) & verified
        if mine.any():
            [row] = steps.select(names).slice(int(mine.argmax()), 1).to_pylist()
            found.append(((row["verify_kind"], scale_of(row)), mine))
    return found


def _joined(parts: Sequence[_Rows]) -> _Rows:
    return _Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in _Rows.__struct_fields__))


def _keys(chain: Array, step: Array) -> Array:
    """A number for each pair of chain and step."""
    return np.asarray(chain.astype(np.int64) << 32 | step)


def _good(rewards: tuple[Array, Array], key: Array, bins: Array, problem: Array, count: int) -> tuple[Share, ...]:
    known, reward = rewards
    found = np.searchsorted(known, key)
    there = found < len(known)
    there[there] = known[found[there]] == key[there]
    return _shares(bins[there], problem[there], reward[found[there]] >= GOOD, count)


def _shares(bins: Array, problem: Array, holds: Array, count: int) -> tuple[Share, ...]:
    masks: Sequence[Array] = [bins == number for number in range(count)]
    return tuple(
        Share(int(mask.sum()), float(holds[mask].mean()) if mask.any() else None, interval(problem[mask], holds[mask])) for mask in masks
    )


def _read_rewards(run: Path, chains: Names) -> tuple[Array, Array] | None:
    """Sorted keys of (chain, step) and the rewards of the candidates that were selected there; None without a rewards table."""
    parts: list[tuple[Array, Array]] = []
    for batch in read_batches(run, "rewards", ("chain_id", "step_index", "candidate_index", "selected", "reward")):
        reward = batch.column("reward").cast("float64").fill_null(float("nan")).to_numpy(zero_copy_only=False)
        drafted = batch.column("candidate_index").is_valid().to_numpy(zero_copy_only=False)
        counts = batch.column("selected").to_numpy(zero_copy_only=False) & drafted & ~np.isnan(reward)
        key = _keys(chains.codes(batch.column("chain_id")), batch.column("step_index").to_numpy())
        parts.append((key[counts], reward[counts]))
    if not parts:
        return None
    key, reward = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(key)
    return key[order], reward[order]
