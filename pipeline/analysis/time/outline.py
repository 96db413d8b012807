"""What is known of a run before its calls are analysed: its span, its engines and its chains. A run folder enters, an `Outline` leaves.

Instants are nanoseconds of work: since the start of the run, without the pauses between the sessions of a run that was resumed
again. A chain is identified by the hash of its name: among 10^6 chains two hashes agree once in some 10^7 runs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.analysis.arrays import NO_REPLICA, Array, Names, replicas_of
from pipeline.store.events import UNFINISHED
from pipeline.store.read import read_batches
from pipeline.store.run_file import RunFile

FINISHED, LOST, OPEN = 0, 1, 2
"""The status of a chain: it came to its end; it failed or was cancelled; it has no row in the chains table (yet)."""
CHAIN = ("start_unix_ns", "end_unix_ns", "thought_tokens")
"""Numeric columns of the chains table that are read."""


class Axis(Struct, frozen=True):
    """Converts instants in nanoseconds UTC into nanoseconds of work: since `origin`, without `pauses`."""

    origin: int
    """The start of the run, ns UTC."""
    pauses: tuple[tuple[int, int], ...] = ()
    """Start and end, ns UTC, of the times between sessions."""

    def of(self, instants: Any) -> Any:
        """Instants, a number or an array in ns UTC, as nanoseconds of work; those within a pause become its start."""
        paused = sum(np.clip(instants - since, 0, until - since) for since, until in self.pauses)
        return instants - self.origin - paused

    def seconds(self, instants: Any) -> Any:
        """Instants, a number or an array in ns UTC, as seconds of work."""
        return self.of(instants) / 1e9


class Chains(Struct, frozen=True, kw_only=True):
    """All chains of a run as columns, in the order of their rows, so that chains that lived at once are near each other."""

    hashes: Array
    """Hashes of their names, sorted."""
    by_hash: Array
    """For each of `hashes` the index of its chain in the columns below."""
    start: Array
    """Nanoseconds of work."""
    end: Array
    """Nanoseconds of work; the end of the run for a chain without a row."""
    status: Array
    """`FINISHED`, `LOST` or `OPEN`."""
    thought_tokens: Array
    replica: Array
    """The number of the replica on which it ended; `NO_REPLICA` where the run has one process, or the chain was on none."""

    first: Array
    """By a number of leading bits, the index of the first of `hashes` that has these bits; at the end the number of hashes."""

    def places(self, names: pa.Array) -> Array:
        """The index of each chain in `names`; -1 for chains that are not there."""
        coded = names if pa.types.is_dictionary(names.type) else names.dictionary_encode()
        return np.asarray(self._places(_hashes(coded.dictionary.to_pylist()))[coded.indices.to_numpy(zero_copy_only=False)])

    def status_of(self, names: pa.Array) -> Array:
        """The status of each chain in `names`; `OPEN` for chains that are not there."""
        return np.append(self.status, OPEN)[self.places(names)]

    def _places(self, hashes: Array) -> Array:
        leading = _leading(hashes, len(self.first) - 1)
        places, last = self.first[leading], self.first[leading + 1]
        found = np.full(len(hashes), -1)
        open_ = np.flatnonzero(places < last)
        while len(open_):  # as often as hashes have the same leading bits, which is a few times
            hit = self.hashes[places[open_]] == hashes[open_]
            found[open_[hit]] = self.by_hash[places[open_[hit]]]
            places[open_] += 1
            open_ = open_[~hit & (places[open_] < last[open_])]
        return found


class Outline(Struct, frozen=True, kw_only=True):
    """What is known of a run before its calls are analysed."""

    run: RunFile
    """The content of its `run.json`, as far as that can be read."""
    axis: Axis
    span: int
    """Nanoseconds of work from the start of the run until its end."""
    engines: tuple[str, ...]
    """Roles, in the order of the indices in `Calls.engine`."""
    chains: Chains
    whole: bool
    """Whether it was made with the calls table too."""


class _Rows(Struct, frozen=True):
    """The chains table as columns."""

    hashes: Array
    status: Array
    replica: Array
    numbers: dict[str, Array]


def read_outline(run: Path) -> Outline:
    """Make the outline from `run.json` and the chains table alone, which is right for a run that has ended. Raises `InputError`."""
    file, rows = RunFile.read_known(run), _read_rows(run)
    return _outline(file, rows, tuple(file.plan.engines), None)


def read_whole_outline(run: Path) -> Outline:
    """Make the outline from the calls table too, which is also right for a run that is in progress, was killed, or has no `run.json`.

    Raises `InputError` where a table cannot be read.
    """
    file, rows = RunFile.read_known(run), _read_rows(run)
    names, unfinished = Names({role: place for place, role in enumerate(file.plan.engines)}), _UnfinishedChains(rows.hashes)
    for batch in read_batches(run, "calls", ["chain_id", "engine", "submit_unix_ns", "end_unix_ns", "client_wait_s"]):
        names.codes(batch.column("engine"))
        unfinished.add(_hashes(batch.column("chain_id").to_pylist()), ready_of(batch), batch.column("end_unix_ns").to_numpy())
    return _outline(file, unfinished.joined(rows), tuple(names), unfinished.bounds)


def ready_of(calls: Any) -> Array:
    """When each call was ready to be sent, ns UTC; `calls` is a table or batch with `submit_unix_ns` and `client_wait_s`."""
    wait = np.rint(calls.column("client_wait_s").to_numpy() * 1e9).astype(np.int64)
    return np.asarray(calls.column("submit_unix_ns").to_numpy() - wait)


class _UnfinishedChains:
    """Collects chains that have calls and no row in the chains table, and the first and last instant of any call."""

    def __init__(self, known: Array) -> None:
        self._known = np.append(np.sort(known), 0)
        self._starts: dict[int, int] = {}
        self.bounds: list[int] = []

    def add(self, hashes: Array, ready: Array, end: Array) -> None:
        """Add calls: hashes of their chains, when they were ready and when they ended, ns UTC."""
        if len(ready):
            self.bounds = [min([*self.bounds, int(ready.min())]), max([*self.bounds, int(end.max())])]
        new = self._known[np.searchsorted(self._known[:-1], hashes)] != hashes
        for chain, since in zip(hashes[new].tolist(), ready[new].tolist(), strict=True):
            self._starts[chain] = min(since, self._starts.get(chain, since))

    def joined(self, rows: _Rows) -> _Rows:
        """`rows` and the chains that were collected, which end with the last call."""
        count = len(self._starts)
        more = dict.fromkeys(CHAIN, np.zeros(count, np.int64))
        more["start_unix_ns"] = np.fromiter(self._starts.values(), np.int64, count)
        more["end_unix_ns"] = np.full(count, max(self.bounds, default=0))
        return _Rows(
            np.concatenate([rows.hashes, np.fromiter(self._starts, np.int64, count)]),
            np.concatenate([rows.status, np.full(count, OPEN, np.int8)]),
            np.concatenate([rows.replica, np.full(count, NO_REPLICA, np.int32)]),
            {name: np.concatenate([column, more[name]]) for name, column in rows.numbers.items()},
        )


def _read_rows(run: Path) -> _Rows:
    parts: list[list[Array]] = [[np.empty(0, kind) for kind in (np.int64, np.int8, np.int32, *(np.int64 for _ in CHAIN))]]
    for batch in read_batches(run, "chains", ["chain_id", "stop_reason", *CHAIN], ["replica"]):
        lost = pc.is_in(batch.column("stop_reason"), value_set=pa.array(UNFINISHED)).to_numpy(zero_copy_only=False)
        numbers = [batch.column(name).to_numpy() for name in CHAIN]
        status = np.where(lost, LOST, FINISHED).astype(np.int8)
        parts.append([_hashes(batch.column("chain_id").to_pylist()), status, replicas_of(batch), *numbers])
    hashes, status, replica, *numbers = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _Rows(hashes, status, replica, dict(zip(CHAIN, numbers, strict=True)))


def _outline(run: RunFile, rows: _Rows, engines: tuple[str, ...], bounds: Sequence[int] | None) -> Outline:
    """Make an outline; `bounds` are the first and the last instant of the calls, None where these were not read."""
    by_hash = np.argsort(rows.hashes, kind="stable")
    last = np.ones(len(by_hash), np.bool_)  # of a chain with several rows the last counts
    last[:-1] = np.diff(rows.hashes[by_hash]) != 0
    by_hash = by_hash[last]
    order = np.sort(by_hash)
    place = np.empty(len(rows.hashes), np.int32)
    place[order] = np.arange(len(order))
    known = [instant for instant in (run.started, run.ended) if instant]
    instants = [*(bounds or ()), *known]
    for name, least in (("start_unix_ns", np.min), ("end_unix_ns", np.max)):
        instants += [int(least(rows.numbers[name][order]))] if len(order) else []
    axis = Axis(min(instants, default=0), run.pauses)
    start, end = (axis.of(rows.numbers[name][order]) for name in CHAIN[:2])
    hashes = rows.hashes[by_hash]
    buckets = 1 << max(len(hashes), 1).bit_length()
    chains = Chains(
        hashes=hashes,
        by_hash=place[by_hash],
        first=np.searchsorted(_leading(hashes, buckets), np.arange(buckets + 1)).astype(np.int32),
        start=start,
        end=np.maximum(start, end),
        status=rows.status[order],
        thought_tokens=rows.numbers["thought_tokens"][order],
        replica=rows.replica[order],
    )
    return Outline(
        run=run,
        axis=axis,
        span=int(axis.of(max(instants, default=0))),
        engines=engines,
        chains=chains,
        whole=bounds is not None,
    )


def _leading(hashes: Array, buckets: int) -> Array:
    """The leading bits of hashes, as numbers below `buckets`, a power of 2, in the order of the hashes."""
    return np.asarray((hashes >> (64 - (buckets.bit_length() - 1))) + (buckets >> 1))


def _hashes(names: Sequence[str]) -> Array:
    """A number for each string, the same for equal ones throughout this process."""
    return np.fromiter(map(hash, names), np.int64, len(names))
