"""Busy time and overlap of engines, the tail of a run, and how evenly its replicas worked: a run on its axis enters, one `Timeline` leaves.

An engine is busy while at least one request is in flight to it; each replica has its own engines.

The tail of a run of one process begins at the last moment at which as many chains lived as the batch size (or as ever did). That of a run
with several replicas begins when the first of them has fewer chains in flight than that because no more problems wait for it, which is
after the last chain that began there. Of a replica that was lost it is after the last chain that began anywhere: until then it lacked
chains for another reason. The tail ends with the last chain of all.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from pipeline.analysis.arrays import NO_REPLICA
from pipeline.analysis.time.sweep import OPEN
from pipeline.analysis.time.work import RunTimes, Stays


class EngineTime(Struct, frozen=True):
    """One engine over the span of the run; of a run with several replicas the mean of its engines of this role, but for the requests."""

    busy_s: float
    """Seconds in which at least one request was in flight."""
    busy_share: float
    """`busy_s` over the span, 0 to 1."""
    mean_in_flight: float
    """Requests in flight, averaged over the span; of several replicas those of all."""


class StageTime(Struct, frozen=True):
    """One stage over the span of the run."""

    stage: str
    calls: int
    in_flight_s: float
    """Seconds that its requests were in flight, added up over the requests."""


class ReplicaTime(Struct, frozen=True):
    """One of several replicas, or the one process of a run."""

    busy_s: dict[str, float]
    """Seconds in which at least one request was in flight, by role."""
    overlap_s: float
    """Seconds in which two or more of its engines were busy."""


class Imbalance(Struct, frozen=True, kw_only=True):
    """How evenly several replicas worked. A ratio is null where its mean is 0, a time where no chain was on a replica."""

    replicas: int
    """Those that were started or have rows."""
    busy: float | None
    """The most busy seconds of a replica, added up over its engines, over the mean of all replicas: 1 where all are equal."""
    chains: float | None
    """The most chains that ended on a replica over the mean of all replicas."""
    tail_s: float | None
    """Seconds of the tail, without pauses between sessions."""
    tail_idle_share: float | None
    """The share of the tail in which a replica had no request at any engine, mean of all replicas, 0 to 1."""


class Timeline(Struct, frozen=True, kw_only=True):
    """Busy time, overlap and time in flight of a run, without pauses between sessions."""

    span_s: float
    """Seconds from the first request that was sent until the last that ended."""
    engines: dict[str, EngineTime]
    """By role."""
    overlap_s: float
    """Seconds in which two or more engines were busy; of several replicas the mean of each one's seconds with its own engines."""
    overlap_share: float
    """`overlap_s` over the span, 0 to 1."""
    stages: dict[str, StageTime]
    """By the stage's name."""
    tail_s: float | None
    """Seconds of the tail; null without chains."""
    replicas: dict[int, ReplicaTime] = {}
    """Of a run with several replicas each one alone, by its number; else empty."""
    imbalance: Imbalance | None = None
    """Of a run with several replicas how evenly they worked."""


class _Busy(Struct, frozen=True):
    replica: int
    engine: str
    busy_s: float


class _Seconds(Struct, frozen=True):
    replica: int
    seconds: float


class _ChainCount(Struct, frozen=True):
    replica: int
    chains: int


class _InFlight(Struct, frozen=True):
    engine: str
    calls: int
    in_flight_s: float


class _Tail(Struct, frozen=True):
    since: int | None
    until: int | None


def timeline(work: RunTimes) -> Timeline:
    """The timeline of a run; calls of a run with several replicas that name none count only as requests in flight."""
    db = work.db
    # Numbers sort faster than names: an engine is one of a type that lists them.
    roles = ", ".join(f"""'{role.replace("'", "''")}'""" for role in work.engines) or "''"
    db.execute(f"CREATE OR REPLACE TEMP TABLE blocks AS {merged(_IN_FLIGHT.format(roles=roles), 'replica, engine')}")
    span_s = db.scalar('SELECT coalesce((max("end") - min(submit)) / 1e9, 0) FROM timed')
    share = 1 / span_s if span_s else 0.0
    replicas = _replicas(work)
    engines = db.rows(_SUMS.format("engine"), _InFlight)
    busy = {each.engine: _mean([one.busy_s.get(each.engine, 0.0) for one in replicas.values()]) for each in engines}
    overlap_s = _mean([one.overlap_s for one in replicas.values()])
    even = None if work.stays is None else _imbalance(work, work.stays, replicas)
    return Timeline(
        span_s=span_s,
        engines={each.engine: EngineTime(busy[each.engine], busy[each.engine] * share, each.in_flight_s * share) for each in engines},
        overlap_s=overlap_s,
        overlap_share=overlap_s * share,
        stages={each.stage: each for each in db.rows(_SUMS.format("stage"), StageTime)},
        tail_s=even.tail_s if even else _tail_s(work),
        replicas=replicas if even else {},
        imbalance=even,
    )


def _replicas(work: RunTimes) -> dict[int, ReplicaTime]:
    """By number; of a run of one process or replica the time of that, whatever its number."""
    busy, overlap = work.db.rows(_BUSY, _Busy), {each.replica: each.seconds for each in work.db.rows(_OVERLAP, _Seconds)}
    numbers = [*work.stays.admitted] if work.stays else list({each.replica: None for each in busy})[-1:] or [NO_REPLICA]
    by_role = {number: {each.engine: each.busy_s for each in busy if each.replica == number} for number in numbers}
    return {number: ReplicaTime(by_role[number], overlap.get(number, 0.0)) for number in numbers}


def _imbalance(work: RunTimes, stays: Stays, times: Mapping[int, ReplicaTime]) -> Imbalance:
    batch_size = work.run.batch_size or len(work.lives.start)
    admitted = ", ".join(f"({number}, {at})" for number, at in stays.admitted.items())
    tail = work.db.row(_TAIL_OF_REPLICAS.format(open=open_spans(_STAYS, "replica"), full=batch_size, admitted=admitted), _Tail)
    tail_s = idle = None
    if tail.since is not None and tail.until is not None:
        tail_s = (tail.until - tail.since) / 1e9
        active = work.db.rows(_ACTIVE.format(blocks=merged("blocks", "replica"), since=tail.since, until=tail.until), _Seconds)
        known = sum(each.seconds for each in active if each.replica in times)
        idle = 1 - known / (len(times) * tail_s) if tail_s else None
    chains = dict.fromkeys(times, 0) | {each.replica: each.chains for each in work.db.rows(_CHAINS, _ChainCount)}
    return Imbalance(
        replicas=len(times),
        busy=_over_mean([sum(each.busy_s.values()) for each in times.values()]),
        chains=_over_mean(list(chains.values())),
        tail_s=tail_s,
        tail_idle_share=idle,
    )


def _tail_s(work: RunTimes) -> float | None:
    """The tail of the chains that are over."""
    lives = f'(SELECT start AS since, "end" AS until FROM lives WHERE status <> {OPEN})'
    tail = work.db.row(_TAIL.format(open=open_spans(lives), full=work.run.batch_size or len(work.lives.start)), _Tail)
    return None if tail.since is None or tail.until is None else (tail.until - tail.since) / 1e9


def merged(spans: str, keys: str) -> str:
    """The SQL of the `spans`, from `since` to `until`, merged where they touch or overlap, for each of the values of the columns `keys`."""
    return f"""
        SELECT {keys}, since, coalesce(lead(before) OVER (PARTITION BY {keys} ORDER BY since), last) AS until
        FROM (
            SELECT {keys}, since, max(until) OVER (PARTITION BY {keys}) AS last,
                   max(until) OVER (PARTITION BY {keys} ORDER BY since ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
            FROM {spans})
        WHERE before IS NULL OR since > before"""


def open_spans(spans: str, keys: str = "1") -> str:
    """The SQL of how many of the `spans` are `open` from each `instant`, at which any begins or ends, until the `following` one."""
    return f"""
        SELECT {keys}, instant, sum(sum(change)) OVER later AS open, lead(instant) OVER later AS following
        FROM (SELECT {keys}, since AS instant, 1 AS change FROM {spans} UNION ALL SELECT {keys}, until, -1 FROM {spans})
        GROUP BY {keys}, instant WINDOW later AS (PARTITION BY {keys} ORDER BY instant)"""


def _mean(seconds: Sequence[float]) -> float:
    return sum(seconds) / len(seconds)


def _over_mean(values: Sequence[float]) -> float | None:
    return max(values) * len(values) / total if (total := sum(values)) else None


_IN_FLIGHT = f"""(
SELECT coalesce(replica, {NO_REPLICA}) AS replica, engine::ENUM({{roles}}) AS engine, submit AS since, "end" AS until FROM timed)"""
_STAYS = '(SELECT replica, start AS since, "end" AS until FROM stays)'
_SUMS = 'SELECT {0}, count(*) AS calls, sum("end" - submit) / 1e9 AS in_flight_s FROM timed GROUP BY {0} ORDER BY {0}'
_BUSY = "SELECT replica, engine, sum(until - since) / 1e9 AS busy_s FROM blocks GROUP BY ALL ORDER BY replica"
_OVERLAP = f"""
SELECT replica, sum(following - instant) / 1e9 AS seconds FROM ({open_spans("blocks", "replica")}) WHERE open >= 2 GROUP BY replica
"""
_CHAINS = "SELECT replica, count(*) AS chains FROM lives WHERE replica IS NOT NULL GROUP BY replica"
_ACTIVE = """
SELECT replica, sum(least(until, {until}) - greatest(since, {since})) / 1e9 AS seconds
FROM ({blocks}) WHERE until > {since} AND since < {until} GROUP BY replica
"""
_TAIL = """
WITH open AS ({open})
SELECT coalesce(max(following) FILTER (open >= (SELECT least({full}, greatest(max(open), 1)) FROM open)), min(instant)) AS since,
       max(instant) AS until
FROM open
"""
_TAIL_OF_REPLICAS = """
WITH open AS ({open}),
enough AS (SELECT replica, least({full}, greatest(max(open), 1)) AS batch FROM open GROUP BY replica),
lacking AS (
    SELECT replica, if(min(instant) <= admitted,
                       min(greatest(instant, admitted)) FILTER (open < batch AND (following > admitted OR following IS NULL)),
                       admitted) AS since
    FROM (VALUES {admitted}) AS replicas(replica, admitted) LEFT JOIN enough USING (replica) LEFT JOIN open USING (replica)
    GROUP BY replica, admitted)
SELECT (SELECT min(since) FROM lacking) AS since, max(instant) AS until FROM open
"""
