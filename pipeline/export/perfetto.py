"""A run as a Perfetto trace: the run folder enters, a file for https://ui.perfetto.dev leaves.

Every engine is a process, with a thread for each of its slots; where a run has replicas, every engine of each replica is. A slice is one
attempt at a call, from being sent until it was answered; slices within it are queue, prefill and decode as the engine measured them, from
its start on, so that what remains at its end is the way to and from the engine. A failed attempt has its error in its name. Arrows join the
calls of a chain. Counters show calls in flight and waiting of each engine, its output tokens so far, and live chains, of the run and of
each replica. Calls are streamed.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from pipeline.analysis.arrays import NO_REPLICA, Names, replicas_of
from pipeline.errors import InputError
from pipeline.export.output import whole_file
from pipeline.export.packets import Packets, Value, identity
from pipeline.export.source import END_OF_TIME, Array, Survey, beginnings, open_run, survey, windows
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
)
COLUMNS = ("engine", "stage", "submit_unix_ns", "end_unix_ns", *ARGUMENTS)
PLACE = ("replica", "node")
"""Columns that say where a call was computed; null where a run has no replicas."""
ENGINE_COUNTERS = {"in flight": "calls", "waiting": "calls", "output tokens": "tokens"}
"""Names and units of the counters of an engine."""
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
    run_file, calls = open_run(run)
    chains = survey(run, "chains")
    with whole_file(output) as file:
        origin = min(run_file.started_unix_ns or END_OF_TIME, calls.watermark(0), chains.watermark(0))
        packets = Packets(file, origin)
        track = RunTrack(packets, run_file, origin)
        track.sessions()
        track.chains(run, chains)
        engines = EngineTracks(packets, run_file, origin)
        for window in windows(run, "calls", COLUMNS, calls, PLACE):
            engines.count(window.read, window.until)
            for row in _rows(window.begun):
                engines.draw(row)
        packets.close()
    return Written(calls.rows, output.stat().st_size)


class RunTrack:
    """The run as a process: a thread with its sessions, and a counter of live chains."""

    def __init__(self, packets: Packets, run: RunFile, origin: int) -> None:
        self._packets, self._run, self._origin = packets, run, origin
        self._uuid = identity("run")
        packets.process(self._uuid, RUN_PID, f"run {run.run_id}")

    def sessions(self) -> None:
        """Write a slice for each session of the run; one in progress has no end."""
        track = identity("run", "sessions")
        self._packets.thread(track, RUN_PID, RUN_PID * TIDS, "sessions")
        for number, session in enumerate(self._run.sessions, 1):
            start = max(0, session.started_unix_ns - self._origin)
            self._packets.begin(track, start, f"session {number}", "session", {"status": session.status})
            if session.ended_unix_ns is not None:
                self._packets.end(track, max(start, session.ended_unix_ns - self._origin))

    def chains(self, run: Path, found: Survey) -> None:
        """Write the counters of live chains, which are 0 between two sessions: of all and, where there are replicas, of those that ended on
        each; `found` is the survey of the chains table."""
        counters = {NO_REPLICA: self._counter("live chains", 0)}
        for window in windows(run, "chains", ["end_unix_ns"], found, PLACE[:1]):
            replica = replicas_of(window.read)
            for number in np.unique(replica).tolist():
                if number not in counters:
                    counters[number] = self._counter(f"live chains of replica {number}", number + 1)
            for number, (track, live) in counters.items():
                self._add(live, window.read, slice(None) if number == NO_REPLICA else replica == number)
                for time, value in live.until(window.until):
                    self._packets.value(track, time - self._origin, value)

    def _counter(self, name: str, rank: int) -> "tuple[int, CountOverTime]":
        track = identity("run", name)
        self._packets.counter(track, self._uuid, name, "chains", rank)
        return track, CountOverTime()

    def _add(self, live: "CountOverTime", chains: pa.RecordBatch, which: Any) -> None:
        """Add those of `chains` that `which` marks to a counter."""
        starts, ends = (chains.column(name).to_numpy()[which] for name in ("start_unix_ns", "end_unix_ns"))
        live.span(starts, ends)
        for since, until in self._run.pauses:
            over = (starts < since) & (ends > until)
            live.change(starts[over] * 0 + since, -1)
            live.change(starts[over] * 0 + until, 1)


class EngineTracks:
    """The engines as processes, one for each role and, where there are replicas, for each replica that calls name."""

    def __init__(self, packets: Packets, run: RunFile, origin: int) -> None:
        self._packets, self._origin, self._run = packets, origin, run
        self._engines: dict[tuple[int, str], EngineTrack] = {}
        if not any(session.replicas for session in run.sessions):
            for role in run.plan.engines:
                self._engine(NO_REPLICA, role)

    def count(self, calls: pa.RecordBatch, until: int) -> None:
        """Add `calls`, in any order, to the counters, and write these up to `until`, ns UTC."""
        roles = Names()
        unit = replicas_of(calls).astype(np.int64) << 8 | roles.codes(calls.column("engine"))
        names = list(roles)
        submit, end, tokens = (calls.column(name).to_numpy() for name in ("submit_unix_ns", "end_unix_ns", "output_tokens"))
        columns = (beginnings(calls, "calls"), submit, end, tokens)
        for each in np.unique(unit).tolist():
            self._engine(each >> 8, names[each & 0xFF]).count(*(column[unit == each] for column in columns))
        for engine in self._engines.values():
            engine.show(until, self._origin)

    def draw(self, row: dict[str, Any]) -> None:
        """Write the slices of one call; calls must come in the order of their starts."""
        start, end = row["submit_unix_ns"] - self._origin, row["end_unix_ns"] - self._origin
        replica = NO_REPLICA if row["replica"] is None else row["replica"]
        track = self._engine(replica, row["engine"]).track_of(start, end)
        failed = row["error_type"]
        name = f"{row['stage']} ({failed})" if failed else row["stage"]
        flow = identity("chain", row["chain_id"])
        self._packets.begin(track, start, name, "failed" if failed else "call", _arguments(row), flow)
        for phase, since, until in _phases(row, start, end):
            self._packets.begin(track, since, phase, "phase", {})
            self._packets.end(track, until)
        self._packets.end(track, end)

    def _engine(self, replica: int, role: str) -> "EngineTrack":
        """The track of an engine, which is begun where it is the first that is asked for; raises `InputError` for a role that the run has
        not."""
        if role not in self._run.plan.engines:
            raise InputError("run.json", f"names no engine `{role}`, which calls of the run were sent to")
        if (replica, role) not in self._engines:
            pid = RUN_PID + 1 + len(self._engines)
            self._engines[replica, role] = EngineTrack(self._packets, self._run, replica, role, pid)
        return self._engines[replica, role]


class EngineTrack:
    """An engine as a process: its counters, and a thread for each slot."""

    def __init__(self, packets: Packets, run: RunFile, replica: int, role: str, pid: int) -> None:
        self._packets, self._pid = packets, pid
        self._name = role if replica == NO_REPLICA else f"replica {replica} {role}"
        uuid = identity("engine", self._name)
        packets.process(uuid, pid, f"{self._name}: {run.model(role)}")
        self._counts = {identity("counter", self._name, name): CountOverTime() for name in ENGINE_COUNTERS}
        for rank, (track, (name, unit)) in enumerate(zip(self._counts, ENGINE_COUNTERS.items(), strict=True)):
            packets.counter(track, uuid, name, unit, rank)
        self._slots = Slots()
        self._tracks: list[int] = []

    def count(self, ready: Array, submit: Array, end: Array, tokens: Array) -> None:
        """Add calls to the counters: when they were ready, sent and ended, ns UTC, and their output tokens."""
        in_flight, waiting, produced = self._counts.values()
        in_flight.span(submit, end)
        waiting.span(ready, submit)
        produced.change(end, tokens)

    def show(self, until: int, origin: int) -> None:
        """Write the counters up to `until`, ns UTC."""
        for track, count in self._counts.items():
            for time, value in count.until(until):
                self._packets.value(track, time - origin, value)

    def track_of(self, start: int, end: int) -> int:
        """The track of the slot that a call from `start` to `end` takes."""
        slot = self._slots.take(start, end)
        if slot == len(self._tracks):
            self._tracks.append(identity("slot", self._name, slot))
            self._packets.thread(self._tracks[slot], self._pid, self._pid * TIDS + slot, f"slot {slot:03}")
        return self._tracks[slot]


class CountOverTime:
    """A number over time, such as calls in flight: changes enter in any order, values leave in order of time.

    Changes are held until an instant is asked for after which no earlier one can come.
    """

    def __init__(self) -> None:
        self.value = 0
        """The number after the last instant that was asked for."""
        self._times, self._steps = np.empty(0, np.int64), np.empty(0, np.int64)

    def change(self, times: Array, steps: int | Array) -> None:
        """Change the number by `steps` at `times`, none of which may be before an instant that was asked for."""
        self._times = np.concatenate([self._times, times])
        self._steps = np.concatenate([self._steps, np.broadcast_to(np.asarray(steps, np.int64), times.shape)])

    def span(self, starts: Array, ends: Array) -> None:
        """Add one from each of `starts` until the same element of `ends`."""
        lasting = ends > starts
        self.change(starts[lasting], 1)
        self.change(ends[lasting], -1)

    def until(self, instant: int) -> Iterator[tuple[int, int]]:
        """Each time before `instant` at which the number changed, with the number from then on."""
        order = np.argsort(self._times, kind="stable")
        due = int(np.searchsorted(self._times[order], instant))
        now, later = order[:due], order[due:]
        times, values = self._times[now], self.value + np.cumsum(self._steps[now])
        self._times, self._steps = self._times[later], self._steps[later]
        last = np.append(times[1:] != times[:-1], True)[:due]
        for time, value in zip(times[last].tolist(), values[last].tolist(), strict=True):
            if value != self.value:
                self.value = value
                yield time, value


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


def _rows(calls: pa.Table) -> Iterator[dict[str, Any]]:
    columns = {name: calls.column(name).to_pylist() for name in (*COLUMNS, *PLACE)}
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _arguments(row: dict[str, Any]) -> dict[str, Value]:
    """The arguments of a call's slice, by the names of its columns; without nulls."""
    said = {name: row[name] for name in (*ARGUMENTS, *PLACE) if row[name] is not None}
    said["finish_reason"] = ", ".join(row["finish_reason"])
    return said


def _phases(row: dict[str, Any], start: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Name, start and end of the phases that the engine measured, one after the other and within the call."""
    for phase in PHASES:
        if row[phase]:
            since, start = start, min(end, start + round(row[phase] * 1e9))
            if start > since:
                yield phase.removesuffix("_time_s"), since, start
