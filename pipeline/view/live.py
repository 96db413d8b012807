"""How a run goes on: its folder, open for queries, enters at every look; counts and rates since earlier looks leave."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock

from msgspec import Struct

from pipeline.analysis.progress import WINDOW_S, RecentRates
from pipeline.analysis.run_list import RunState
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile

BINS = 60
"""Slices that the time since the session began is divided into."""
RECENT_NS = 60_000_000_000
"""How long before the latest call of the run the latest one of an engine may have ended that still tells what it does."""
_MODES = """
SELECT coalesce(mode, '') AS mode, count(*) AS chains FROM (
    SELECT chain_id, arg_max(mode, step_index) AS mode FROM steps
    WHERE end_unix_ns >= $since AND chain_id NOT IN (SELECT chain_id FROM chains WHERE stop_reason <> 'cancelled')
    GROUP BY chain_id)
GROUP BY ALL ORDER BY mode DESC"""
_ENGINES = """
WITH each AS (
    SELECT engine, sum(output_tokens) AS tokens, max(end_unix_ns) AS ended, min(submit_unix_ns) AS began,
           arg_max(in_flight_engine, submit_unix_ns) AS in_flight, arg_max(waiting_engine, submit_unix_ns) AS waiting
    FROM calls GROUP BY engine, replica),
recent AS (SELECT max(ended) - $recent AS since FROM each)
SELECT engine AS role, sum(tokens)::BIGINT AS tokens, (sum(in_flight) FILTER (ended >= since))::BIGINT AS in_flight,
       coalesce(sum(waiting) FILTER (ended >= since), 0)::BIGINT AS waiting
FROM each, recent GROUP BY engine ORDER BY min(began)"""
_ENDED = """
WITH ended AS (SELECT end_unix_ns - $since AS after_ns FROM chains WHERE end_unix_ns >= $since),
span AS (SELECT greatest(max(after_ns), $elapsed, 1) AS length_ns FROM ended)
SELECT least(after_ns * $bins // length_ns, $bins - 1)::BIGINT AS bin, count(*) AS chains FROM ended, span GROUP BY bin"""


class ModeCount(Struct, frozen=True):
    """Chains in flight by the mode of their last step."""

    mode: str
    """`speculative` or `direct`; empty where the graph has but one way."""
    chains: int


class LiveEngine(Struct, frozen=True):
    """What an engine does."""

    role: str
    tokens: int
    """Tokens that it has sampled."""
    in_flight: int | None
    """Requests at it when the latest of its answered calls was sent, of replicas together; null where it has answered none of late."""
    waiting: int
    """Those in the client queue at that moment."""


class LiveRun(Struct, frozen=True, kw_only=True):
    """A run that goes on, as its folder tells."""

    left_s: float | None
    """Seconds to the end at the present rate; null where that is not known."""
    modes: list[ModeCount]
    """Chains that have committed a step in this session and have not ended."""
    engines: list[LiveEngine]
    per_s: dict[str, float | None]
    """By how much `over`, `steps` and `tokens ROLE` grow a second; null before the second look."""
    ended: list[float]
    """Chains that ended in each of `BINS` slices of the session until now, over the most of any."""

    @property
    def in_flight(self) -> int:
        """Chains that have committed a step and have not ended: at least so many are in flight."""
        return sum(each.chains for each in self.modes)


class _Slice(Struct, frozen=True):
    bin: int
    chains: int


class _Looks:
    """The looks at a session of a run."""

    def __init__(self, since: int) -> None:
        self.since, self.last = since, 0.0
        self.rates = RecentRates("over")


class LiveRuns:
    """The rates of runs that somebody looks at, by their folders. Methods may be called from any thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """`now` is the clock, in seconds."""
        self._now, self._lock = now, Lock()
        self._looks: dict[Path, _Looks] = {}

    def look(self, folder: Path, db: Query, run: RunFile, state: RunState) -> LiveRun:
        """The run in `folder`, which is open as `db` and in this state. Raises `InputError` where it cannot be read."""
        since = run.sessions[-1].started_unix_ns if run.sessions else run.started_unix_ns
        engines = db.rows(_ENGINES, LiveEngine, recent=RECENT_NS)
        counts = {"over": float(state.chains), "steps": float(db.scalar("SELECT count(*) FROM steps"))}
        counts |= {f"tokens {each.role}": float(each.tokens) for each in engines}
        per_s = self._per_s(folder, since, counts)
        left = None if state.of is None else state.of - state.chains
        elapsed = 0 if run.virtual_time else time.time_ns() - since
        found = {each.bin: each.chains for each in db.rows(_ENDED, _Slice, since=since, bins=BINS, elapsed=elapsed)}
        most = max(found.values(), default=1)
        ended = [found.get(place, 0) / most for place in range(BINS)]
        modes = db.rows(_MODES, ModeCount, since=since)
        left_s = left / per_s["over"] if left is not None and per_s["over"] else None
        return LiveRun(left_s=left_s, modes=modes, engines=engines, per_s=per_s, ended=ended)

    def _per_s(self, folder: Path, since: int, counts: Mapping[str, float]) -> dict[str, float | None]:
        """The rates of a session that began at `since`. They begin anew where nobody looked for longer than they are over."""
        with self._lock:
            now, looks = self._now(), self._looks.get(folder)
            if looks is None or looks.since != since or now - looks.last > WINDOW_S:
                self._looks[folder] = looks = _Looks(since)
            looks.last = now
            looks.rates.look(now, counts)
            return {name: looks.rates.per_s(name) for name in counts}
