"""When each engine and device was busy, and why it was idle, over time in bins; and what each replica of a run did.

Every nanosecond of an engine is either busy or idle for exactly one cause, so that in every bin the parts add up to its length.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.analysis.resources import EngineFacts, devices_of, engine_facts
from pipeline.analysis.time.idle import BY_ENGINE, EARLY, LIVE, OVERLAP, IdleRules, occupancy_sums
from pipeline.analysis.time.spans import Spans, open_at
from pipeline.analysis.time.work import FINISHED, Calls, Lives, RunTimes
from pipeline.store.run_file import Replica

BINS = 600
CAUSES = ("nothing_admitted", "recovery", "barrier", "orchestration", "tail", "other_engine")
"""Why an engine without a request is idle; at any instant the first cause that holds:

- `nothing_admitted`: no chain lives (on the replica, of several).
- `recovery`: a call to it failed and waits to be sent again: the engine is being restarted, or is given fewer calls. This comes
  before the next two causes, because its other calls are held back for the same reason.
- `barrier`: in a lockstep run, a call to it is ready and waits for the rest of its round.
- `orchestration`: a call to it is ready and was not sent, or a chain is between its calls and the next one is for it. A chain
  that has made its last call and has not ended keeps the next chain from being admitted, and counts for every engine.
- `tail`: the last chain was admitted and fewer live than the batch size (or than ever lived at once): too little work is left. On one
  of several replicas: the last chain began there (`work.Stays.admitted`), and fewer live there, or none while others still have some.
- `other_engine`: none of these: all live chains have their current or next call at other engines.
"""


class Spent(Struct, frozen=True, kw_only=True):
    """What the time of an engine or device was spent on; the arrays have one element for each bin."""

    busy_s: Array
    """Seconds of the bin in which at least one request was in flight."""
    idle_s: dict[str, Array]
    """Seconds of the bin by each of `CAUSES`; with `busy_s` they are the bin's length."""
    total_busy_s: float
    """Sum of `busy_s` over all bins."""
    total_idle_s: dict[str, float]
    """Sums of `idle_s` over all bins, by cause."""


class EngineOccupancy(Spent, frozen=True, kw_only=True):
    """One engine over time."""

    in_flight: Array
    """Requests in flight, averaged over the bin."""
    waiting: Array
    """Requests in its lane, held back by a barrier or until they are sent again, averaged over the bin."""


class DeviceOccupancy(Spent, frozen=True, kw_only=True):
    """One device over time: it is busy while any of its engines is; else the first cause that holds for any of them counts."""

    roles: tuple[str, ...]
    """Its engines."""


class Occupancy(Struct, frozen=True, kw_only=True):
    """A run over time, without the pauses between the sessions of a run that was resumed.

    Of a run with several replicas chains and requests are those of all of them; seconds, of engines, devices and overlap, are means over
    the replicas, so that busy and idle ones still add up to the length of a bin. A replica whose engines are not there, because it was lost
    or is yet to start, has no chain and counts as idle. The batch size is that of each replica.
    """

    span_s: float
    """Seconds from the start of the run until its end; of one in progress or killed, until the last event in the trace."""
    edges_s: Array
    """Edges of the bins, one more than there are bins; seconds since the start."""
    live: Array
    """Live chains, averaged over the bin."""
    engines: dict[str, EngineOccupancy]
    """By role."""
    devices: dict[str, DeviceOccupancy]
    """By the device's name."""
    overlap: Array
    """Seconds of the bin in which two or more engines were busy."""
    overlap_s: float
    """Sum of `overlap` over all bins."""
    overlap_share: float
    """`overlap_s` over `span_s`, 0 to 1."""
    replicas: dict[int, "Occupancy"] = {}
    """Of a run with several replicas each one alone, by its number; else empty."""


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
    """The cluster's ids of the nodes that it was on, as far as rows and `run.json` name them, the first one first; of a replica without a
    cluster the devices that it had."""
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


def occupancy(work: RunTimes, bins: int = BINS) -> Occupancy:
    """The occupancy of a run, with time divided into `bins`; calls of a run with several replicas that name none are left out."""
    rules, calls = _rules(work, bins), work.calls
    if work.stays is None:
        return _occupancy(work, rules, _sums(work, rules, work.lives, calls))
    parts = {}
    for number, admitted in work.stays.admitted.items():
        mine = Calls(*(column[calls.replica == number] for column in calls))
        mine = mine._replace(chain=work.stays.places(number, mine.chain))
        parts[number] = _sums(work, rules._replace(last_admission=admitted), work.stays.lives(number), mine)
    alone = {number: _occupancy(work, rules, sums) for number, sums in parts.items()}
    return _occupancy(work, rules, np.sum(list(parts.values()), axis=0), alone)


def _rules(work: RunTimes, bins: int) -> IdleRules:
    alone = [1 << place for place in range(len(work.engines))]
    return IdleRules(
        edges=np.rint(np.linspace(0, work.span, bins + 1)).astype(np.int64),
        engines=len(alone),
        groups=np.array([*alone, *sorted(set(_devices(work).values()) - set(alone))], np.int64),
        lockstep=work.run.schedule == "lockstep",
        full=0,
        last_admission=int(work.lives.start.max(initial=0)),
        last_end=EARLY if work.stays is None else int(work.lives.end.max(initial=EARLY)),
    )


def _sums(work: RunTimes, rules: IdleRules, lives: Lives, calls: Calls) -> Array:
    most = int(open_at(Spans(lives.start, lives.end))[1].max(initial=0))
    full = min(work.run.batch_size or most, most)
    return occupancy_sums(rules._replace(full=full), lives, calls)


def _occupancy(work: RunTimes, rules: IdleRules, sums: Array, replicas: Mapping[int, Occupancy] | None = None) -> Occupancy:
    edges, count, devices = rules.edges, len(replicas or (1,)), _devices(work)
    width, span_s, in_flight = np.maximum(np.diff(edges), 1), work.span / 1e9, sums[BY_ENGINE:]
    overlap = sums[OVERLAP] if count == 1 else sums[OVERLAP] / count
    overlap_s = float(overlap.sum() / 1e9)
    spent = sums[BY_ENGINE + 2 * rules.engines :].reshape(len(rules.groups), 7, len(width))
    parts = {group: _parts(each if count == 1 else each / count) for group, each in zip(rules.groups.tolist(), spent, strict=True)}
    return Occupancy(
        span_s=span_s,
        edges_s=edges / 1e9,
        live=sums[LIVE] / width,
        engines={
            role: EngineOccupancy(in_flight=in_flight[place] / width, waiting=in_flight[rules.engines + place] / width, **parts[1 << place])
            for place, role in enumerate(work.engines)
        },
        devices={name: DeviceOccupancy(roles=_roles(work.engines, group), **parts[group]) for name, group in devices.items()},
        overlap=overlap / 1e9,
        overlap_s=overlap_s,
        overlap_share=overlap_s / span_s if span_s else 0.0,
        replicas=dict(replicas or {}),
    )


def _parts(spent: Array) -> dict[str, Any]:
    """The fields with busy and idle seconds of a group of engines that `spent` so many nanoseconds, by what and by bin."""
    *idle, busy = spent
    by_cause = dict(zip(CAUSES, idle, strict=True))
    return {
        "busy_s": busy / 1e9,
        "idle_s": {cause: each / 1e9 for cause, each in by_cause.items()},
        "total_busy_s": float(busy.sum() / 1e9),
        "total_idle_s": {cause: float(each.sum() / 1e9) for cause, each in by_cause.items()},
    }


def _roles(engines: Sequence[str], group: int) -> tuple[str, ...]:
    return tuple(role for place, role in enumerate(engines) if group >> place & 1)


def _devices(work: RunTimes) -> dict[str, int]:
    """The engines on each device, as a bit mask of their places."""
    devices: dict[str, int] = {}
    facts = engine_facts(work.run)
    for place, role in enumerate(work.engines):
        for name in devices_of(role, facts.get(role, EngineFacts())):
            devices[name] = devices.get(name, 0) | 1 << place
    return devices


class _Tokens(Struct, frozen=True):
    replica: int
    engine: str
    tokens: int


class _Nodes(Struct, frozen=True):
    replica: int
    nodes: list[str]


class _ReplicaChains(Struct, frozen=True):
    replica: int
    chains: int
    done: int
    last: int


def by_replica(work: RunTimes, occupancy: Occupancy) -> tuple[ReplicaFigures, ...]:
    """The replicas of a run by their numbers; empty where it has fewer than two."""
    if work.stays is None:
        return ()
    db = work.db
    tokens = {(each.replica, each.engine): each.tokens for each in db.rows(_TOKENS, _Tokens)}
    nodes = {each.replica: each.nodes for each in db.rows(_NODES, _Nodes)}
    chains = {each.replica: each for each in db.rows(_CHAINS, _ReplicaChains)}
    return tuple(
        _figures(
            work,
            mine,
            chains.get(number, _ReplicaChains(number, 0, 0, 0)),
            nodes.get(number, []),
            {role: tokens.get((number, role), 0) for role in work.engines},
        )
        for number, mine in occupancy.replicas.items()
    )


_TOKENS = """
SELECT replica, engine, sum(output_tokens)::BIGINT AS tokens FROM flights WHERE replica IS NOT NULL GROUP BY ALL
"""
_NODES = """
SELECT replica, list(node ORDER BY first) AS nodes
FROM (SELECT replica, node, min("end") AS first FROM flights WHERE replica IS NOT NULL AND node IS NOT NULL GROUP BY ALL)
GROUP BY replica
"""
_CHAINS = f"""
SELECT replica, count(*) AS chains, count(*) FILTER (status = {FINISHED}) AS done, max("end") AS last
FROM lives WHERE replica IS NOT NULL GROUP BY replica
"""


def _figures(work: RunTimes, mine: Occupancy, chains: _ReplicaChains, nodes: Sequence[str], tokens: Mapping[str, int]) -> ReplicaFigures:
    span_s, sessions = mine.span_s, _sessions(work, chains.replica)
    engines = {role: _engine(mine.engines[role], sampled, span_s) for role, sampled in tokens.items()}
    known = [*nodes, *(place for session in sessions if (place := session.node or session.devices) is not None)]
    return ReplicaFigures(
        replica=chains.replica,
        nodes=tuple(dict.fromkeys(known)),
        chains=chains.chains,
        done=chains.done,
        problems_per_s=chains.done / max(work.run.mean_samples, 1) / span_s if span_s else None,
        engines=engines,
        idle_share={cause: _mean_share([each.idle_s[cause] for each in engines.values()], span_s) for cause in CAUSES},
        busy_share=_mean_share([each.total_busy_s for each in mine.engines.values()], span_s),
        tail_s=(work.span - chains.last) / 1e9,
        starts=sum(session.starts for session in sessions),
        losses=tuple(loss for session in sessions for loss in session.losses),
        dropped=bool(sessions) and sessions[-1].dropped,
    )


def _engine(mine: EngineOccupancy, tokens: int, span_s: float) -> ReplicaEngine:
    return ReplicaEngine(
        output_tokens=tokens,
        output_tokens_per_s=tokens / span_s if span_s else None,
        busy_share=_mean_share([mine.total_busy_s], span_s),
        idle_s=mine.total_idle_s,
    )


def _mean_share(seconds: Sequence[float], span_s: float) -> float:
    return sum(seconds) / len(seconds) / span_s if seconds and span_s else 0.0


def _sessions(work: RunTimes, number: int) -> list[Replica]:
    """What `run.json` says of the replica in each session that had it."""
    return [session.replicas[number] for session in work.run.sessions if number < len(session.replicas)]
