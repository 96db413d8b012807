"""Whether the rows of each chain are consistent, and taking back what is not: tables are read, rows are removed, none are invented.

A chain that is over has all calls and steps that its row counts; one that is not has its first calls and steps without a gap, and each step
has the calls before its commit. What a full disk, a lost file or a second copy broke is taken back to such a beginning, from which
the chain continues, also on engines that do not answer the same twice.

Tables are read in batches. Of a chain that is over two checksums are held, of the others the numbers of their calls and steps.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.store.read import read_batches
from pipeline.store.rewrite import remove
from pipeline.store.run_file import RunFile

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Sums: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"
Why = Literal["calls or steps are missing", "rows are there twice", "its steps came out differently"]
MISMATCHES = ("ResumeMismatch", "PastMismatch")
"""Errors of chains whose calls and steps did not fit together when they were resumed; the second is of earlier versions."""
CHAIN, STEP, CALL = ("chain_id", "stop_reason"), ("chain_id", "step_index"), ("chain_id", "call_index")
# Columns that very early versions did not write.
COUNTS = ("steps", "calls", "error_type")


class Broken(Struct, frozen=True, kw_only=True):
    """One chain whose rows are not consistent, and what of it can stay."""

    chain_id: str
    why: Why
    again: bool
    """Whether it will be continued: then its row in `chains`, if it has one, cannot stay."""
    calls: int
    """The number of its first calls that can stay."""
    steps: frozenset[int]
    """The indices of those of its steps that can stay."""


def find_broken(run: Path) -> list[Broken]:
    """The chains of a run folder whose rows are not consistent. Raises `InputError` where a table cannot be read."""
    over = _Over(run)
    if over.unknown:
        return []
    others: dict[str, _Rows] = defaultdict(_Rows)
    _read_indices(run, over, lambda hashes: ~over.has(hashes), others)
    plan = RunFile.read_known(run).plan
    switched = plan.speculate == "auto"  # a chain that the target began alone has no guidance
    wrong = over.wrong(switched)
    if len(wrong):
        _read_rows(run, lambda hashes: np.isin(hashes, wrong), others)
    guided = not switched and (over.guided or any(stage.spec.purpose == "guide" for stage in plan.stages()))
    return [found for chain, rows in others.items() if (found := _judged(chain, rows, over.row(chain), guided)) is not None]


def take_back(run: Path, broken: Sequence[Broken]) -> int:
    """Remove the rows that cannot stay, those that rest on others first, rewards of steps included; the number of bytes written for it.

    May be interrupted and repeated. Write-ahead files must have become parts before, see `store.recover`.
    """
    by_id = {each.chain_id: each for each in broken}
    if not by_id:
        return 0
    again = pa.array([each.chain_id for each in broken if each.again], pa.string())
    written = remove(run, "rewards", ["chain_id"], lambda rows: pc.is_in(rows.column("chain_id"), again).to_pylist())
    written += remove(run, "chains", CHAIN, _Gone(by_id, lambda chain, row: chain.again, None))
    written += remove(run, "steps", STEP, _Gone(by_id, lambda chain, row: row["step_index"] not in chain.steps, "step_index"))
    return written + remove(run, "calls", CALL, _Gone(by_id, lambda chain, row: row["call_index"] >= chain.calls, "call_index"))


class _Gone:
    """Says which rows of the parts of one table go, part after part: those that cannot stay, and each row that was there before."""

    def __init__(self, broken: dict[str, Broken], gone: Callable[[Broken, dict[str, Any]], bool], index: str | None) -> None:
        self._broken, self._gone, self._index = broken, gone, index
        self._seen: set[tuple[str, int]] = set()

    def __call__(self, rows: pa.Table) -> list[bool]:
        found = pc.is_in(rows.column("chain_id"), pa.array(list(self._broken), pa.string())).to_pylist()
        return [concerned and self._goes(rows.slice(place, 1).to_pylist()[0]) for place, concerned in enumerate(found)]

    def _goes(self, row: dict[str, Any]) -> bool:
        if self._gone(self._broken[row["chain_id"]], row):
            return True
        key = (row["chain_id"], row[self._index] if self._index else 0)
        if key in self._seen:
            return True
        self._seen.add(key)
        return False


class _Rows(Struct):
    """The numbers of one chain's calls and steps, in the order of their rows."""

    calls: list[int] = []
    call_steps: list[int] = []
    """The step to which each of `calls` belongs."""
    steps: list[int] = []
    needs: list[int | None] = []
    """How many calls there were when each of `steps` was committed; None in traces of earlier versions."""


class _Ended(Struct, frozen=True):
    """What the row of a chain that is over says."""

    steps: int
    calls: int
    mismatch: bool


class _Over:
    """The chains that are over, by the hash of their ids: what their rows count, and checksums of what was found."""

    def __init__(self, run: Path) -> None:
        found = [np.empty((0, 4), np.int64)]
        self.unknown = False
        """Whether the folder lacks the columns that tell."""
        for batch in read_batches(run, "chains", CHAIN, COUNTS):
            self.unknown |= not set(COUNTS) <= set(batch.schema.names)
            found += [] if self.unknown else [_ended(batch)]
        columns = np.concatenate(found)
        self._hashes, first, count = np.unique(columns[:, 0], return_index=True, return_counts=True)
        self._rows, self._doubled = columns[first], count > 1
        self._calls, self._steps = np.zeros(len(first), np.uint64), np.zeros(len(first), np.uint64)
        self._guides = np.zeros(len(first), np.int64)
        self._most_calls = self._most_steps = 0

    @property
    def guided(self) -> bool:
        """Whether any of them has guidance, step 0."""
        return bool(self._guides.any())

    def has(self, hashes: Numbers) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Which of the chains with these `hashes` are over."""
        if not len(self._hashes):
            return np.zeros(len(hashes), np.bool_)
        return np.equal(self._hashes[self._places(hashes)], hashes)

    def row(self, chain: str) -> _Ended | None:
        """What the row of a chain says; None where it is not over."""
        one = np.array([hash(chain)])
        if not self.has(one)[0]:
            return None
        _, steps, calls, mismatch = self._rows[self._places(one)[0]].tolist()
        return _Ended(steps, calls, bool(mismatch))

    def add_calls(self, hashes: Numbers, indices: Numbers) -> None:
        """Count calls of chains that are over."""
        np.add.at(self._calls, self._places(hashes), _mixed(indices))
        self._most_calls += len(indices)

    def add_steps(self, hashes: Numbers, indices: Numbers) -> None:
        """Count steps of chains that are over."""
        places, guides = self._places(hashes), indices == 0
        np.add.at(self._guides, places[guides], 1)
        np.add.at(self._steps, places[~guides], _mixed(indices[~guides]))
        self._most_steps += len(indices)

    def wrong(self, switched: bool) -> Numbers:
        """The hashes of the chains whose rows are not what their row in `chains` counts; `switched`: some may be without guidance."""
        _, steps, calls, mismatch = self._rows.T
        calls_sums, steps_sums = _sums(self._most_calls), _sums(self._most_steps + 1)
        right = (calls <= self._most_calls) & (steps <= self._most_steps) & (calls >= 0) & (steps >= 0)
        right &= self._calls == calls_sums[np.where(right, calls, 0)]
        right &= self._steps == steps_sums[np.where(right, steps, 0) + 1] - steps_sums[1]
        guides = self._guides <= 1 if switched else self._guided_right(steps)
        found: Numbers = self._hashes[~right | ~guides | (mismatch != 0) | self._doubled]
        return found

    def _guided_right(self, steps: Numbers) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Which chains have one guidance, or none where no chain has one; those without `steps` need none."""
        return (self._guides == 1) | ((self._guides == 0) & (steps == 0)) if self.guided else np.equal(self._guides, 0)

    def _places(self, hashes: Numbers) -> Numbers:
        found: Numbers = np.minimum(np.searchsorted(self._hashes, hashes), max(len(self._hashes) - 1, 0))
        return found


def _ended(batch: pa.RecordBatch) -> Numbers:
    """Of the chains in `batch` that are over: hash, steps, calls, and 1 where its steps came out differently."""
    batch = batch.filter(pc.not_equal(batch.column("stop_reason"), "cancelled"))
    hashes = [hash(chain) for chain in batch.column("chain_id").to_pylist()]
    counts = [batch.column(name).to_numpy(zero_copy_only=False) for name in ("steps", "calls")]
    mismatch = [error in MISMATCHES for error in batch.column("error_type").to_pylist()]
    found: Numbers = np.array([hashes, *counts, mismatch], np.int64).T
    return found


def _read_indices(run: Path, over: _Over, others_of: Callable[[Numbers], Any], others: dict[str, _Rows]) -> None:
    """Count the calls and steps of the chains that are `over`, and collect those of the `others`."""
    for table, add in (("calls", over.add_calls), ("steps", over.add_steps)):
        column = f"{table[:-1]}_index"
        for batch, hashes in _batches(run, table):
            other = others_of(hashes)
            indices = batch.column(column).to_numpy(zero_copy_only=False)
            add(hashes[~other], indices[~other])
            _collect(batch.filter(pa.array(other)), table, others)


def _read_rows(run: Path, wanted: Callable[[Numbers], Any], others: dict[str, _Rows]) -> None:
    """Collect the calls and steps of the chains that are `wanted`."""
    for table in ("calls", "steps"):
        for batch, hashes in _batches(run, table):
            _collect(batch.filter(pa.array(wanted(hashes))), table, others)
    for batch in read_batches(run, "chains", CHAIN):
        hashes = np.fromiter(map(hash, batch.column("chain_id").to_pylist()), np.int64, batch.num_rows)
        for chain in batch.filter(pa.array(wanted(hashes))).column("chain_id").to_pylist():
            others[chain]  # also one of which nothing else is there


def _batches(run: Path, table: str) -> Iterator[tuple[pa.RecordBatch, Numbers]]:
    """Batches of `calls` or `steps`, and the hash of the chain of each row."""
    columns, maybe = (CALL, ("step_index",)) if table == "calls" else (STEP, ("calls",))
    for batch in read_batches(run, table, columns, maybe):
        names = batch.column("chain_id")
        names = names if pa.types.is_dictionary(names.type) else names.dictionary_encode()
        hashes = np.fromiter(map(hash, names.dictionary.to_pylist()), np.int64, len(names.dictionary))
        yield batch, hashes[names.indices.to_numpy(zero_copy_only=False)] if len(hashes) else np.empty(0, np.int64)


def _collect(batch: pa.RecordBatch, table: str, others: dict[str, _Rows]) -> None:
    for row in batch.to_pylist():
        rows = others[row["chain_id"]]
        if table == "calls":
            rows.calls.append(row["call_index"])
            rows.call_steps.append(row.get("step_index", 0))
        else:
            rows.steps.append(row["step_index"])
            rows.needs.append(row.get("calls"))


def _judged(chain: str, rows: _Rows, ended: _Ended | None, guided: bool) -> Broken | None:
    """What of a chain can stay; None where all of it can."""
    if ended is not None and ended.mismatch:
        return Broken(chain_id=chain, why="its steps came out differently", again=True, calls=0, steps=frozenset())
    there = set(rows.calls)
    calls = next(index for index in range(len(there) + 1) if index not in there)
    steps = _whole_steps(rows, calls, first=0 if guided or 0 in rows.steps else 1)
    lost = len(there) > calls or len(set(rows.steps)) > len(steps)
    if ended is not None:
        lost |= calls != ended.calls or sum(index > 0 for index in steps) != ended.steps
    if lost:
        return Broken(chain_id=chain, why="calls or steps are missing", again=True, calls=calls, steps=steps)
    if ended is not None or len(rows.calls) > calls or len(rows.steps) > len(steps):
        return Broken(chain_id=chain, why="rows are there twice", again=False, calls=calls, steps=steps)
    return None


def _whole_steps(rows: _Rows, calls: int, first: int) -> frozenset[int]:
    """The indices from `first` on of the steps that are there with their calls, of which the first `calls` are there."""
    with_calls = {step for call, step in zip(rows.calls, rows.call_steps, strict=True) if call < calls}
    whole = {step for step, need in zip(rows.steps, rows.needs, strict=True) if (step in with_calls if need is None else need <= calls)}
    found = []
    for index in range(first, first + len(whole)):
        if index not in whole:
            break
        found.append(index)
    return frozenset(found)


def _mixed(indices: Numbers) -> Sums:
    """A number of 64 bits for each index, so that sums of different sets of indices differ (splitmix64)."""
    found: Sums = (indices.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        found = (found ^ (found >> np.uint64(shift))) * np.uint64(factor)
    return found ^ (found >> np.uint64(31))


def _sums(count: int) -> Sums:
    """For each n from 0 to `count`, the sum of the numbers of 0 to n - 1."""
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(_mixed(np.arange(count, dtype=np.int64)), dtype=np.uint64)])
