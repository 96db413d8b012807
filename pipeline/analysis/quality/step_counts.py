"""What became of drafted steps, counted: the steps table of a run folder enters, counts by length, step number and score leave.

Streamed: of a step that was accepted a few numbers are held, never a text. How far a verifier's number can be trusted is
asked of the accepted steps: how often the chain that such a step is part of ended right, and, where the run has a rewards
table (`pipeline grade --prm`), how often a reward model agrees with the step.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.analysis.quality.samples import Interval, interval
from pipeline.analysis.time.timeline import Array, Names
from pipeline.trace.read import read_batches

COLUMNS = (
    "chain_id",
    "step_index",
    "decision",
    "verify_kind",
    "score_value",
    "threshold",
    "num_candidates",
    "chosen_candidate",
    "step_token_ids",
    "candidate_tokens",
)
EDGES = {"choose": np.linspace(0.0, 1.0, 21), "score": np.arange(-0.5, 10.0), "likelihood": np.linspace(-5.0, 0.0, 11)}
"""Bins of each kind's number: a probability; 0 to 9, each digit in the middle of its bin; nats per token, what is less in the first."""
GOOD = 0.5
"""From here on a reward says that the step is rather good than bad."""


class Verdicts(Struct, frozen=True):
    """What is known of the chains; the arrays have one place a chain."""

    place: Mapping[str, int]
    """Of each chain."""
    problem: Array
    """A number that chains of one problem share."""
    correct: Array
    """1 right, 0 wrong, -1 not graded."""


class Share(Struct, frozen=True):
    """How often something held of `count` steps; nulls where there are none."""

    count: int
    share: float | None
    interval: Interval | None
    """Of 95 %, problems as clusters: steps of one chain share its end; see `samples.interval`."""


class Scores(Struct, frozen=True, kw_only=True):
    """The verifier's number of one kind of stage: what `score_value` says of it. One place a bin, edges one more."""

    edges: Array
    accepted: Array
    rejected: Array
    threshold: float | None
    """Where it was the same in all steps."""
    right: tuple[Share, ...]
    """Of accepted steps of graded chains: the chain ended right."""
    good: tuple[Share, ...]
    """Of accepted steps with a reward: it is `GOOD` or more. Empty where the run has no rewards."""


class StepCounts(Struct, frozen=True, kw_only=True):
    """Steps by length, number and score."""

    lengths: dict[str, Array]
    """How many have so many tokens (place), by kind: the decision about a committed step, or of candidates `rejected`, in rounds
    in which all were turned down, and `not_chosen`, beside one that was accepted."""
    verified: Array
    """Steps with a verdict, by step number."""
    accepted: Array
    """Those that were accepted; as long."""
    scores: dict[str, Scores]
    """By kind of verifying stage."""


class _Accepted(Struct):
    """Accepted steps of one kind, column by column."""

    chain: Array
    step: Array
    bin: Array


def count_steps(run: Path, verdicts: Verdicts) -> StepCounts:
    """Count the steps of the run folder; steps of chains that `verdicts` does not know count in no share of right ones."""
    counting = _Counting()
    for batch in read_batches(run, "steps", COLUMNS):
        counting.add(batch)
    rewards = _read_rewards(run, counting.chains)
    return StepCounts(
        lengths=dict(sorted(counting.lengths.items())),
        verified=counting.verified,
        accepted=counting.accepted,
        scores={kind: counting.scores(kind, verdicts, rewards) for kind in EDGES if kind in counting.judged},
    )


class _Counting:
    """Sums over batches of steps."""

    def __init__(self) -> None:
        self.chains = Names()
        self.lengths: dict[str, Array] = {}
        self.verified, self.accepted = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.judged: dict[str, list[Array]] = {}
        self._accepted: dict[str, list[_Accepted]] = {}
        self._thresholds: dict[str, set[float]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch in."""
        decision, kind = batch.column("decision"), batch.column("verify_kind")
        step = batch.column("step_index").to_numpy()
        accepted = _equal(decision, "accepted")
        for name in pc.unique(decision).to_pylist():
            self._add_lengths(name, pc.list_value_length(batch.column("step_token_ids")).to_numpy()[_equal(decision, name)])
        self._add_candidates(batch, accepted)
        verified = kind.is_valid().to_numpy(zero_copy_only=False)
        self.verified = _sum(self.verified, np.bincount(step[verified]))
        self.accepted = _sum(self.accepted, np.bincount(step[verified & accepted], minlength=len(self.verified)))
        for name in set(pc.unique(kind).to_pylist()) & EDGES.keys():
            self._add_scores(name, batch, _equal(kind, name), accepted)

    def _add_lengths(self, kind: str, tokens: Array) -> None:
        if len(tokens):
            self.lengths[kind] = _sum(self.lengths.get(kind, np.zeros(0, np.int64)), np.bincount(tokens))

    def _add_candidates(self, batch: pa.RecordBatch, accepted: Array) -> None:
        """Lengths of the candidates that were not committed."""
        lists = batch.column("candidate_tokens")
        counts = lists.value_lengths().to_numpy()
        owner = np.repeat(np.arange(batch.num_rows), counts)
        place = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        tokens = lists.flatten().to_numpy()
        chosen = batch.column("chosen_candidate").fill_null(-1).to_numpy()
        self._add_lengths("rejected", tokens[~accepted[owner]])
        self._add_lengths("not_chosen", tokens[accepted[owner] & (place != chosen[owner])])

    def _add_scores(self, kind: str, batch: pa.RecordBatch, mine: Array, accepted: Array) -> None:
        value = batch.column("score_value").cast("float64").fill_null(float("nan")).to_numpy(zero_copy_only=False)
        mine = mine & ~np.isnan(value)
        edges = EDGES[kind]
        bins = np.clip(np.searchsorted(edges, value, "right") - 1, 0, len(edges) - 2)
        sums = self.judged.setdefault(kind, [np.zeros(len(edges) - 1, np.int64) for _ in range(2)])
        for total, which in zip(sums, (mine & accepted, mine & ~accepted), strict=True):
            total += np.bincount(bins[which], minlength=len(total))
        chain, step = self.chains.codes(batch.column("chain_id")), batch.column("step_index").to_numpy()
        which = mine & accepted
        self._accepted.setdefault(kind, []).append(_Accepted(chain[which], step[which].astype(np.int32), bins[which].astype(np.int8)))
        self._thresholds.setdefault(kind, set()).update(pc.unique(batch.column("threshold").filter(pa.array(mine)).drop_null()).to_pylist())

    def scores(self, kind: str, verdicts: Verdicts, rewards: tuple[Array, Array] | None) -> Scores:
        """The number of `kind`, and what it was worth."""
        rows = self._accepted[kind]
        chain, step, bins = (np.concatenate([getattr(part, name) for part in rows]) for name in ("chain", "step", "bin"))
        place = np.array([verdicts.place.get(name, -1) for name in self.chains], int)[chain]
        accepted, rejected = self.judged[kind]
        thresholds = self._thresholds[kind]
        known = place >= 0
        bins, place, key = bins[known], place[known], (chain.astype(np.int64) << 32 | step)[known]
        problem, correct = verdicts.problem[place], verdicts.correct[place]
        graded = correct >= 0
        return Scores(
            edges=EDGES[kind],
            accepted=accepted,
            rejected=rejected,
            threshold=thresholds.pop() if len(thresholds) == 1 else None,
            right=_shares(bins[graded], problem[graded], correct[graded] == 1, len(accepted)),
            good=() if rewards is None else _good(rewards, key, bins, problem, len(accepted)),
        )


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
    """Keys of (chain, step) in order, and the reward of the candidate that was selected there; None where nothing was scored."""
    parts: list[tuple[Array, Array]] = []
    for batch in read_batches(run, "rewards", ("chain_id", "step_index", "candidate_index", "selected", "reward")):
        reward = batch.column("reward").cast("float64").fill_null(float("nan")).to_numpy(zero_copy_only=False)
        drafted = batch.column("candidate_index").is_valid().to_numpy(zero_copy_only=False)
        counts = batch.column("selected").to_numpy(zero_copy_only=False) & drafted & ~np.isnan(reward)
        key = chains.codes(batch.column("chain_id")).astype(np.int64) << 32 | batch.column("step_index").to_numpy()
        parts.append((key[counts], reward[counts]))
    if not parts:
        return None
    key, reward = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(key)
    return key[order], reward[order]


def _equal(column: pa.Array, value: str) -> Array:
    return np.asarray(pc.equal(column, value).fill_null(False).to_numpy(zero_copy_only=False))


def _sum(so_far: Array, more: Array) -> Array:
    """Of lengths that may differ."""
    longest = max(len(so_far), len(more))
    return np.asarray(np.pad(so_far, (0, longest - len(so_far))) + np.pad(more, (0, longest - len(more))))
