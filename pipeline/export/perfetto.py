"""A run as a Perfetto trace: the run folder enters, a file for https://ui.perfetto.dev leaves.

Every engine is a process, with a thread for each of its slots; where a run has replicas, every engine of each replica is. A slice is one
attempt at a call, from being sent until it was answered; slices within it are queue, prefill and decode as the engine measured them, from
its start on, so that what remains at its end is the way to and from the engine. A failed attempt has its error in its name. Arrows join the
calls of a chain. Counters show calls in flight and waiting of each engine, its output tokens so far, and live chains, of the run and of
each replica.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from pipeline.errors import InputError
from pipeline.export.output import NO_CALLS, whole_file
from pipeline.export.packets import Packets, Value, identity
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile

PHASES = ("queue_time_s", "prefill_time_s", "decode_time_s")
ARGUMENTS = (
    "chain_id",
    "step_index",
    "call_index",
    "attempt",
    "kind",
    "choice_count",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "client_wait_s",
    *PHASES,
    "time_to_first_token_s",
    "finish_reason",
    "error_type",
    "error_message",
    "replica",
    "node",
)
READY = "submit_unix_ns - (client_wait_s * 1e9)::BIGINT"
"""When a call could have been sent."""
ORIGIN = f"SELECT least((SELECT min({READY}) FROM calls), (SELECT min(start_unix_ns) FROM chains))"
ENGINES = "SELECT DISTINCT replica, engine FROM calls ORDER BY replica, engine"
CALLS = f"""
SELECT engine, stage, submit_unix_ns, end_unix_ns, {", ".join(ARGUMENTS)}
FROM calls ORDER BY submit_unix_ns, end_unix_ns, chain_id, call_index"""
ENGINE_COUNTERS = {"in flight": "calls", "waiting": "calls", "output tokens": "tokens"}
"""Names and units of the counters of an engine."""
ENGINE_VALUES = f"""
WITH spans AS (
    SELECT replica, engine, 'in flight' AS name, submit_unix_ns AS begun, end_unix_ns AS ended FROM calls
    UNION ALL SELECT replica, engine, 'waiting', {READY}, submit_unix_ns FROM calls
), changes AS (
    SELECT replica, engine, name, begun AS time, 1 AS step FROM spans WHERE ended > begun
    UNION ALL SELECT replica, engine, name, ended, -1 FROM spans WHERE ended > begun
    UNION ALL SELECT replica, engine, 'output tokens', end_unix_ns, output_tokens FROM calls
), steps AS (SELECT replica, engine, name, time, sum(step) AS step FROM changes GROUP BY ALL HAVING sum(step) != 0)
SELECT replica, engine, name, time, (sum(step) OVER (PARTITION BY replica, engine, name ORDER BY time))::BIGINT AS value
FROM steps ORDER BY time, replica, engine, name"""
"""The values of the counters of engines from each instant on at which one changes."""
LIVE_CHAINS = """
WITH spans AS (
    SELECT NULL AS replica, start_unix_ns AS begun, end_unix_ns AS ended FROM chains WHERE end_unix_ns > start_unix_ns
    UNION ALL SELECT replica, start_unix_ns, end_unix_ns FROM chains WHERE end_unix_ns > start_unix_ns AND replica IS NOT NULL
), changes AS (
    SELECT replica, begun AS time, 1 AS step FROM spans
    UNION ALL SELECT replica, ended, -1 FROM spans
    UNION ALL SELECT replica, since, -1 FROM spans JOIN pauses ON begun < since AND ended > until
    UNION ALL SELECT replica, until, 1 FROM spans JOIN pauses ON begun < since AND ended > until
), steps AS (SELECT replica, time, sum(step) AS step FROM changes GROUP BY ALL HAVING sum(step) != 0)
SELECT replica, time, (sum(step) OVER (PARTITION BY replica ORDER BY time))::BIGINT AS value FROM steps ORDER BY time, replica"""
"""How many chains live from each instant on at which that changes: all (`replica` is null), and those that ended on each replica. Between
two sessions none does."""
RUN_PID = 1
TIDS = 100_000
"""How many thread numbers are reserved for a process; an engine has at most 65,536 slots."""


class Written(Struct, frozen=True):
    """How much was written into a trace."""

    calls: int
    """Number of calls."""
    size: int
    """Size of the file in bytes."""


def export(run: Path, output: Path) -> Written:
    """Write the trace of the run folder `run` to the new file `output`; raises `InputError` where the run has no calls."""
    run_file, calls = RunFile.read(run), 0
    with Query(run) as query:
        if not query.scalar("SELECT count(*) FROM calls"):
            raise InputError(str(run), NO_CALLS)
        with whole_file(output) as file:
            origin = min(filter(None, (run_file.started_unix_ns, query.scalar(ORIGIN))))
            packets = Packets(file, origin)
            _draw_run(packets, run_file, query, origin)
            engines = _draw_engines(packets, run_file, query, origin)
            for batch in query.batches(CALLS):
                for row in batch.to_pylist():
                    engines[row["replica"], row["engine"]].draw(row, origin)
                calls += batch.num_rows
            packets.close()
    return Written(calls, output.stat().st_size)


def _draw_run(packets: Packets, run: RunFile, query: Query, origin: int) -> None:
    """Write the run as a process: a thread with a slice for each session, of which one in progress has no end, and counters of live
    chains."""
    process, track = identity("run"), identity("run", "sessions")
    packets.process(process, RUN_PID, f"run {run.run_id}")
    packets.thread(track, RUN_PID, RUN_PID * TIDS, "sessions")
    for number, session in enumerate(run.sessions, 1):
        start = max(0, session.started_unix_ns - origin)
        packets.begin(track, start, f"session {number}", "session", {"status": session.status})
        if session.ended_unix_ns is not None:
            packets.end(track, max(start, session.ended_unix_ns - origin))
    pauses = np.array(run.pauses, np.int64).reshape(-1, 2)
    query.register("pauses", since=pauses[:, 0], until=pauses[:, 1])
    tracks: dict[int | None, int] = {}
    replicas = query.columns("SELECT DISTINCT replica FROM chains WHERE replica IS NOT NULL ORDER BY replica")["replica"].tolist()
    for rank, replica in enumerate([None, *replicas]):
        name = "live chains" if replica is None else f"live chains of replica {replica}"
        tracks[replica] = identity("run", name)
        packets.counter(tracks[replica], process, name, "chains", rank)
    for replica, time, value in query.stream(LIVE_CHAINS):
        packets.value(tracks[replica], time - origin, value)


def _draw_engines(packets: Packets, run: RunFile, query: Query, origin: int) -> "dict[tuple[int | None, str], EngineTrack]":
    """Write the engines as processes, by replica and role, with the values of their counters; raises `InputError` for a role that the run
    has not."""
    replicated = any(session.replicas for session in run.sessions)
    found = dict.fromkeys([] if replicated else [(None, role) for role in run.plan.engines])
    found |= dict.fromkeys(query.stream(ENGINES))
    engines: dict[tuple[int | None, str], EngineTrack] = {}
    for pid, (replica, role) in enumerate(found, RUN_PID + 1):
        if role not in run.plan.engines:
            raise InputError("run.json", f"names no engine `{role}`, which calls of the run were sent to")
        name = role if replica is None else f"replica {replica} {role}"
        engines[replica, role] = EngineTrack(packets, pid, name, run.model(role))
    for replica, role, name, time, value in query.stream(ENGINE_VALUES):
        packets.value(engines[replica, role].counters[name], time - origin, value)
    return engines


class EngineTrack:
    """An engine as a process: its counters, and a thread for each slot."""

    def __init__(self, packets: Packets, pid: int, name: str, model: str) -> None:
        self._packets, self._pid, self._name = packets, pid, name
        process = identity("engine", name)
        packets.process(process, pid, f"{name}: {model}")
        self.counters = {counter: identity("counter", name, counter) for counter in ENGINE_COUNTERS}
        """The tracks of its counters, by their names."""
        for rank, (counter, unit) in enumerate(ENGINE_COUNTERS.items()):
            packets.counter(self.counters[counter], process, counter, unit, rank)
        self._slots = Slots()
        self._tracks: list[int] = []

    def draw(self, row: dict[str, Any], origin: int) -> None:
        """Write the slices of one call; calls must come in the order of their starts."""
        start, end = row["submit_unix_ns"] - origin, row["end_unix_ns"] - origin
        track, failed = self._track_of(start, end), row["error_type"]
        name = f"{row['stage']} ({failed})" if failed else row["stage"]
        flow = identity("chain", row["chain_id"])
        self._packets.begin(track, start, name, "failed" if failed else "call", _arguments(row), flow)
        for phase, since, until in _phases(row, start, end):
            self._packets.begin(track, since, phase, "phase", {})
            self._packets.end(track, until)
        self._packets.end(track, end)

    def _track_of(self, start: int, end: int) -> int:
        """The track of the slot that a call from `start` to `end` takes."""
        slot = self._slots.take(start, end)
        if slot == len(self._tracks):
            self._tracks.append(identity("slot", self._name, slot))
            self._packets.thread(self._tracks[slot], self._pid, self._pid * TIDS + slot, f"slot {slot:03}")
        return self._tracks[slot]


class Slots:
    """The slots of one engine: each call takes the lowest free one, so that there are as many as calls were ever in flight at once.

    For example calls from 0 to 5, from 1 to 2 and from 3 to 4 take the slots 0, 1 and again 1.
    """

    def __init__(self) -> None:
        self._free: list[int] = []
        self._taken: list[tuple[int, int]] = []
        self.count = 0
        """Number of slots so far."""

    def take(self, start: int, end: int) -> int:
        """The slot, from 0, of a call from `start` to `end`; no earlier call may have begun later."""
        while self._taken and self._taken[0][0] <= start:
            heappush(self._free, heappop(self._taken)[1])
        if self._free:
            slot = heappop(self._free)
        else:
            slot, self.count = self.count, self.count + 1
        heappush(self._taken, (end, slot))
        return slot


def _arguments(row: dict[str, Any]) -> dict[str, Value]:
    """The arguments of a call's slice, by the names of its columns; without nulls."""
    said = {name: row[name] for name in ARGUMENTS if row[name] is not None}
    said["finish_reason"] = ", ".join(row["finish_reason"])
    return said


def _phases(row: dict[str, Any], start: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Name, start and end of the phases that the engine measured, one after the other and within the call."""
    for phase in PHASES:
        if row[phase]:
            since, start = start, min(end, start + round(row[phase] * 1e9))
            if start > since:
                yield phase.removesuffix("_time_s"), since, start
