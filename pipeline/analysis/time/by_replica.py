"""What each replica of a run did: a run folder enters, one `ReplicaFigures` for each replica leaves; none for a run with fewer than two.

Busy and idle time are those of `occupancy`, of each replica alone. Tokens are added up from the calls table, chains from theirs; starts and
losses are those in `run.json`, of all sessions.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from pipeline.analysis.time.calls import Calls, accumulate, is_long
from pipeline.analysis.time.occupancy import BINS, CAUSES, Occupancy, OccupancyAccumulator
from pipeline.analysis.time.outline import FINISHED, Outline
from pipeline.analysis.time.stays import Stays, read_stays
from pipeline.analysis.time.timeline import NO_REPLICA, Array, Names, replicas_of
from pipeline.store.read import read_batches
from pipeline.store.run_file import Replica


class ReplicaEngine(Struct, frozen=True, kw_only=True):
    """One engine of one replica."""

    output_tokens: int
    """Tokens that it sampled, failed attempts included as far as their rows count them."""
    output_tokens_per_s: float | None
    """`output_tokens` over the span of the run; null where that is 0."""
    busy_share: float
    """Share of the run in which at least one request was in flight, 0 to 1."""
    idle_s: dict[str, float]
    """Seconds by each of `occupancy.CAUSES`; with the busy ones they are the span of the run."""


class ReplicaFigures(Struct, frozen=True, kw_only=True):
    """What one replica did in a run."""

    replica: int
    """Its number, from 0."""
    nodes: tuple[str, ...]
    """The cluster's ids of the nodes that it was on, as far as rows and `run.json` name them, the first one first."""
    chains: int
    """Chains that ended on it, failed ones included."""
    done: int
    """Those of them that gave an answer."""
    problems_per_s: float | None
    """`done` over the samples of a problem and the span of the run; those of all replicas add up to that of the run."""
    engines: dict[str, ReplicaEngine]
    """By role."""
    idle_share: dict[str, float]
    """Share of the run in which an engine was idle by each of `occupancy.CAUSES`, mean of its engines."""
    busy_share: float
    """Share of the run in which an engine was busy, mean of its engines; with `idle_share` it is 1."""
    tail_s: float
    """Seconds from the end of its last chain until the end of the run; without a chain, all of the run."""
    starts: int
    """How often its engines were started."""
    losses: tuple[str, ...]
    """Why it was lost, an error message for each time."""
    dropped: bool
    """Whether it was not started again, because it was lost again and again."""

    @property
    def output_tokens_per_s(self) -> float:
        """Those of all its engines."""
        return sum(engine.output_tokens_per_s or 0.0 for engine in self.engines.values())


def by_replica(run: Path) -> tuple[ReplicaFigures, ...]:
    """The replicas of the run folder `run`, by their numbers; empty where it has fewer than two. Raises `InputError` where it cannot be
    read."""
    long = is_long(run)

    def accumulators(outline: Outline) -> tuple[OccupancyAccumulator, ByReplicaAccumulator]:
        stays = read_stays(run, outline)
        return OccupancyAccumulator(outline, BINS, long=long, stays=stays), ByReplicaAccumulator(run, outline, stays)

    times, replicas = accumulate(run, accumulators)
    return replicas.result(times.result())


class ByReplicaAccumulator:
    """Makes the figures of the replicas of the run folder `run`, which were at work as `stays` say, from the calls that are added. See
    `Accumulator`."""

    def __init__(self, run: Path, outline: Outline, stays: Stays | None) -> None:
        self._run, self._outline, self._stays = run, outline, stays
        self.columns: tuple[str, ...] = () if stays is None else ("replica", "output_tokens")
        count = 0 if stays is None else len(stays.numbers)
        self._tokens = np.zeros(count * len(outline.engines), np.int64)

    def add(self, calls: Calls) -> None:
        if self._stays is None:
            return
        replica = replicas_of(calls.table)
        known = replica != NO_REPLICA
        unit = np.searchsorted(self._stays.numbers, replica[known]) * len(self._outline.engines) + calls.engine[known]
        sampled = calls.table.column("output_tokens").to_numpy()[known]
        self._tokens += np.bincount(unit, sampled, len(self._tokens)).astype(np.int64)

    def result(self, occupancy: Occupancy) -> tuple[ReplicaFigures, ...]:
        """The figures of all replicas, when all calls have been added; `occupancy` is that of the run."""
        if self._stays is None:
            return ()
        nodes, tokens = _nodes(self._run), self._tokens.reshape(len(self._stays.numbers), -1).tolist()
        pairs = zip(self._stays.numbers.tolist(), tokens, strict=True)
        return tuple(self._figures(number, occupancy.replicas[number], sampled, nodes.get(number, [])) for number, sampled in pairs)

    def _figures(self, number: int, mine: Occupancy, sampled: Sequence[int], nodes: Sequence[str]) -> ReplicaFigures:
        chains, span_s, sessions = self._outline.chains, mine.span_s, _sessions(self._outline, number)
        ended = chains.replica == number
        done = int((chains.status[ended] == FINISHED).sum())
        engines = {role: _engine(mine, role, tokens) for role, tokens in zip(self._outline.engines, sampled, strict=True)}
        known = [*nodes, *(session.node for session in sessions if session.node is not None)]
        return ReplicaFigures(
            replica=number,
            nodes=tuple(dict.fromkeys(known)),
            chains=int(ended.sum()),
            done=done,
            problems_per_s=done / max(self._outline.run.samples, 1) / span_s if span_s else None,
            engines=engines,
            idle_share={cause: _mean_share([each.idle_s[cause] for each in engines.values()], span_s) for cause in CAUSES},
            busy_share=_mean_share([each.total_busy_s for each in mine.engines.values()], span_s),
            tail_s=float(self._outline.span - chains.end[ended].max(initial=0)) / 1e9,
            starts=sum(session.starts for session in sessions),
            losses=tuple(loss for session in sessions for loss in session.losses),
            dropped=bool(sessions) and sessions[-1].dropped,
        )


def _engine(mine: Occupancy, role: str, tokens: int) -> ReplicaEngine:
    engine, span_s = mine.engines[role], mine.span_s
    return ReplicaEngine(
        output_tokens=tokens,
        output_tokens_per_s=tokens / span_s if span_s else None,
        busy_share=_mean_share([engine.total_busy_s], span_s),
        idle_s=engine.total_idle_s,
    )


def _mean_share(seconds: Sequence[float], span_s: float) -> float:
    return sum(seconds) / len(seconds) / span_s if seconds and span_s else 0.0


def _sessions(outline: Outline, number: int) -> list[Replica]:
    """What `run.json` says of the replica in each session that had it."""
    return [session.replicas[number] for session in outline.run.sessions if number < len(session.replicas)]


def _nodes(run: Path) -> dict[int, list[str]]:
    """The nodes that the calls of each replica name, in the order of the rows."""
    found: dict[int, list[str]] = {}
    for batch in read_batches(run, "calls", ["end_unix_ns"], ["replica", "node"]):
        if "node" not in batch.schema.names:
            continue
        names, replica = Names(), replicas_of(batch)
        node = names.codes(batch.column("node"))
        for number, code in _pairs(replica, node):
            if number != NO_REPLICA and (name := list(names)[code]) and name not in found.setdefault(number, []):
                found[number].append(name)
    return found


def _pairs(replica: Array, node: Array) -> list[tuple[int, int]]:
    """Each pair of these columns once, in the order in which they come."""
    keys, first = np.unique(replica.astype(np.int64) << 32 | node, return_index=True)
    ordered = keys[np.argsort(first)]
    return list(zip((ordered >> 32).tolist(), (ordered & 0xFFFFFFFF).tolist(), strict=True))
