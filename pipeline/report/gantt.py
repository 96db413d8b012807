"""What chains did when: the calls of a sample of chains enter, stretches of time leave, in seconds of the run. Streamed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.analysis.time.timeline import Array, Names
from pipeline.report.chain_list import ChainList, evenly
from pipeline.trace.read import read_batches

COLUMNS = ("chain_id", "stage", "submit_unix_ns", "end_unix_ns", "client_wait_s", "queue_time_s", "error_type")
MOST_CHAINS = 4_000
MOST_CALLS = 40_000
"""What a browser without a GPU still draws within seconds, and about 4 MB of the page."""
SHORTEST = 1e-3
"""Waiting of less than this share of a usual chain's time is not drawn: nobody sees it, and every call has some."""
WAITING, QUEUED, FAILED = "waiting in the lane", "queued in the engine", "failed attempt"


class Clock(Struct, frozen=True):
    """Seconds of a run, from `start` (ns UTC) on, without its pauses."""

    start: int
    pauses: Sequence[tuple[int, int]] = ()

    def seconds(self, instants: Array) -> Array:
        """Of `instants`, ns UTC."""
        worked = instants - self.start
        for since, until in self.pauses:
            worked = worked - np.clip(instants - since, 0, until - since)
        return worked / 1e9


class Stretches(Struct, frozen=True):
    """Pieces of time of one kind; arrays of equal length, seconds."""

    lane: Array
    """Which of the drawn chains."""
    start: Array
    end: Array


class Gantt(Struct, frozen=True):
    """Drawn chains, from the first to begin on."""

    names: Sequence[str]
    stretches: dict[str, Stretches]
    """By stage while a request was at an engine, or one of `WAITING`, `QUEUED`, `FAILED`."""
    alive: Stretches
    """From admission to the end."""


def read_gantt(run: Path, chains: ChainList, places: Array, clock: Clock) -> Gantt:
    """The stretches of the chains at `places`; of a chain that was taken up again also the earlier calls."""
    names = [chains.names[place] for place in places]
    wanted = pa.array(names, pa.string())
    alive = Stretches(np.arange(len(places)), clock.seconds(chains.start[places]), clock.seconds(chains.end[places]))
    least = SHORTEST * float(np.median(alive.end - alive.start)) if len(places) else 0.0
    parts: dict[str, list[Stretches]] = {}
    for batch in read_batches(run, "calls", COLUMNS):
        lane = pc.index_in(batch.column("chain_id"), wanted)
        mine = lane.is_valid()
        if pc.any(mine).as_py():
            _add(parts, batch.filter(mine), lane.drop_null().to_numpy(), clock, least)
    return Gantt(names, {kind: _joined(some) for kind, some in parts.items()}, alive)


def sample(chains: ChainList, *, most_chains: int = MOST_CHAINS, most_calls: int = MOST_CALLS) -> Array:
    """Places of as many chains as can be drawn, evenly spaced by their start."""
    mean_calls = max(1.0, float(chains.calls.mean())) if len(chains.calls) else 1.0
    return evenly(np.arange(len(chains.names)), max(1, min(most_chains, int(most_calls / mean_calls))))


def middle(chains: ChainList, count: int) -> Array:
    """Places of `count` chains that began one after the other, in the middle of the run."""
    first = max(0, (len(chains.names) - count) // 2)
    return np.arange(first, min(first + count, len(chains.names)))


def _add(parts: dict[str, list[Stretches]], batch: pa.RecordBatch, lane: Array, clock: Clock, least: float) -> None:
    submit, end = (clock.seconds(batch.column(name).to_numpy()) for name in ("submit_unix_ns", "end_unix_ns"))
    wait = batch.column("client_wait_s").to_numpy()
    queue = batch.column("queue_time_s").cast("float64").fill_null(0.0).to_numpy(zero_copy_only=False)
    begin = submit + np.clip(queue, 0.0, end - submit)
    failed = batch.column("error_type").is_valid().to_numpy(zero_copy_only=False)
    stages = Names()
    stage = stages.codes(batch.column("stage"))
    _put(parts, WAITING, lane, submit - wait, submit, wait > least)
    _put(parts, QUEUED, lane, submit, begin, begin - submit > least)
    _put(parts, FAILED, lane, begin, end, failed)
    for name, code in stages.items():
        _put(parts, name, lane, begin, end, (stage == code) & ~failed)


def _put(parts: dict[str, list[Stretches]], kind: str, lane: Array, start: Array, end: Array, which: Array) -> None:
    if which.any():
        parts.setdefault(kind, []).append(Stretches(lane[which], start[which], end[which]))


def _joined(parts: Sequence[Stretches]) -> Stretches:
    return Stretches(*(np.concatenate([getattr(part, name) for part in parts]) for name in Stretches.__struct_fields__))
