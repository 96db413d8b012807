"""When each chain was on which replica: a run folder and its outline enter, `Stays` leave.

A chain is on one replica from its admission to its end, unless that was lost and it continued elsewhere. Then it was on each earlier
replica from when its first call there was ready until its last one there ended, and from then on where it ended. Calls are streamed;
held are those pairs of a chain and a replica where the chain did not end.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from msgspec import Struct

from pipeline.analysis.time.outline import Chains, Outline, ready_of
from pipeline.analysis.time.timeline import NO_REPLICA, Array, replicas_of
from pipeline.store.read import read_batches
from pipeline.store.run_file import RunFile

NAMED = ("chain_id", "submit_unix_ns", "end_unix_ns", "client_wait_s")
"""Columns of the calls table that are read, in addition to `replica`."""


class Lives(Struct, frozen=True):
    """The chains of one replica, as far as an occupancy needs them: columns of equal length, as in `outline.Chains`."""

    start: Array
    end: Array
    status: Array


class Stays(Struct, frozen=True, kw_only=True):
    """The stays of all chains of a run with several replicas, as columns in the order of replicas and, of one, of chains."""

    numbers: Array
    """The numbers of the replicas that were started or have rows, in order."""
    replica: Array
    """Indices into `numbers`."""
    chain: Array
    """Indices into the outline's chains."""
    start: Array
    """Nanoseconds of work, see `outline.Axis`."""
    end: Array
    status: Array
    """The status of the chain."""
    admitted: Array
    """For each replica when the last chain began there, after which no more problems waited for it, nanoseconds of work. Of one that was
    lost, or never began any: when the last chain began anywhere."""

    def lives(self, place: int) -> Lives:
        """The chains of the replica with this place in `numbers`."""
        mine = self._mine(place)
        return Lives(self.start[mine], self.end[mine], self.status[mine])

    def places(self, place: int, chains: Array) -> Array:
        """The index of each of `chains`, which were on the replica with this place, among its `lives`."""
        return np.searchsorted(self.chain[self._mine(place)], chains)

    def _mine(self, place: int) -> slice:
        return slice(*np.searchsorted(self.replica, [place, place + 1]).tolist())


def started_replicas(run: RunFile) -> set[int]:
    """The numbers of the replicas whose engines were started in any session of `run`; empty where the process had the engines."""
    return {number for session in run.sessions for number, replica in enumerate(session.replicas) if replica.starts}


def lost_replicas(run: RunFile) -> set[int]:
    """The numbers of the replicas that were lost in any session of `run`."""
    return {number for session in run.sessions for number, replica in enumerate(session.replicas) if replica.losses}


def read_stays(run: Path, outline: Outline) -> Stays | None:
    """The stays of the chains in the run folder `run`; None where it has no more than one replica. Raises `InputError`."""
    chains = outline.chains
    known = set(np.unique(chains.replica).tolist()) | started_replicas(outline.run)
    if known <= {NO_REPLICA} and not _has_replicas(run):
        return None
    chain, replica, start, end = _pairs(run, outline)
    numbers = np.array(sorted({*known, *replica.tolist()} - {NO_REPLICA}), np.int32)
    if len(numbers) < 2:
        return None
    home = _homes(chains, chain, replica, end)
    away = home[chain] != replica
    chain, replica, start, end = (column[away] for column in (chain, replica, start, end))
    came = chains.start.copy()
    np.maximum.at(came, chain, end)
    settled = np.flatnonzero(home != NO_REPLICA)
    chain, replica = np.concatenate([chain, settled]), np.searchsorted(numbers, np.concatenate([replica, home[settled]]))
    start = np.concatenate([start, np.minimum(came, chains.end)[settled]])
    end = np.concatenate([end, chains.end[settled]])
    order = np.lexsort((chain, replica))
    columns = {"replica": replica[order], "chain": chain[order], "start": start[order], "end": np.maximum(start, end)[order]}
    admitted = _admitted(columns["chain"], columns["replica"], columns["start"], len(numbers), len(chains.start))
    lost = np.isin(numbers, [*lost_replicas(outline.run)])
    admitted[lost] = admitted.max(initial=0)
    return Stays(numbers=numbers, **columns, status=chains.status[columns["chain"]], admitted=admitted)


def _admitted(chain: Array, replica: Array, start: Array, replicas: int, chains: int) -> Array:
    """For each replica the latest first stay of any chain; of a replica without one that of all. A chain that comes from elsewhere did not
    wait for a replica as a problem does."""
    first = np.full(chains, np.iinfo(np.int64).max)
    np.minimum.at(first, chain, start)
    found = np.full(replicas, -1)
    began = start == first[chain]
    np.maximum.at(found, replica[began], start[began])
    return np.where(found < 0, found.max(initial=0), found)


def _has_replicas(run: Path) -> bool:
    """Whether the first calls of the run say on which replica they were computed, of a run without a row for any chain."""
    for batch in read_batches(run, "calls", ["end_unix_ns"], ["replica"]):
        if batch.num_rows:
            return bool((replicas_of(batch) != NO_REPLICA).any())
    return False


def _homes(chains: Chains, chain: Array, replica: Array, end: Array) -> Array:
    """The replica of each chain's end; of a chain without one that of its last call."""
    home = chains.replica.copy()
    order = np.argsort(end, kind="stable")
    lost = order[home[chain[order]] == NO_REPLICA]
    home[chain[lost]] = replica[lost]  # of several assignments the last one counts
    return home


def _pairs(run: Path, outline: Outline) -> tuple[Array, Array, Array, Array]:
    """The chain and the replica of calls on a replica where their chain did not end, each pair once, with the first ready time and the
    last end, nanoseconds of work."""
    parts = [(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64)), *_parts(run, outline)]
    return _reduced(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _parts(run: Path, outline: Outline) -> Iterator[tuple[Array, Array, Array, Array]]:
    axis, chains = outline.axis, outline.chains
    homes = np.append(chains.replica, NO_REPLICA)  # also where there are no chains
    for batch in read_batches(run, "calls", NAMED, ["replica"]):
        chain, replica = chains.places(batch.column("chain_id")), replicas_of(batch)
        elsewhere = (chain >= 0) & (replica != NO_REPLICA) & (homes[chain] != replica)
        if elsewhere.any():
            ready, end = axis.of(ready_of(batch)), axis.of(batch.column("end_unix_ns").to_numpy())
            yield _reduced(chain[elsewhere], replica[elsewhere], ready[elsewhere], end[elsewhere])


def _reduced(chain: Array, replica: Array, start: Array, end: Array) -> tuple[Array, Array, Array, Array]:
    """Each pair of a chain and a replica once, with its least start and greatest end."""
    keys, where = np.unique(chain.astype(np.int64) << 32 | replica, return_inverse=True)
    first, last = np.full(len(keys), np.iinfo(np.int64).max), np.full(len(keys), np.iinfo(np.int64).min)
    np.minimum.at(first, where, start)
    np.maximum.at(last, where, end)
    return keys >> 32, (keys & 0xFFFFFFFF).astype(np.int32), first, last
