"""The rows of a run's chains that count: a run folder enters; their batches, counts, times and verdicts leave, a few bytes for each chain.

Of a chain that was resumed only the row that ended last counts. Every question reads its own columns, so that those of a million
chains are not in memory together.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.analysis.arrays import Array
from pipeline.analysis.quality.samples import GradedChains
from pipeline.analysis.quality.verdicts import COLUMNS as VERDICT_COLUMNS
from pipeline.analysis.quality.verdicts import verdicts
from pipeline.store.events import UNFINISHED
from pipeline.store.read import read_batches

NAMED = ("input_row", "sample_index")
"""Columns that say which chain a row is of."""


class ChainRows:
    """The rows of the table `chains` in the run folder `run` that count, of those that are there when this is made.

    Raises `InputError` where they cannot be read.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        chains = np.concatenate([np.empty(0, np.int64), *map(_chain, read_batches(run, "chains", NAMED))])
        self._rows = len(chains)
        chains.sort()
        again = np.unique(chains[1:][chains[1:] == chains[:-1]])
        self._counts = _last(run, again, self._rows) if len(again) else None
        """For each row whether it counts; None where all do."""
        self.number = self._rows if self._counts is None else int(self._counts.sum())
        """How many count: the number of chains."""

    def batches(self, columns: Sequence[str], maybe: Sequence[str] = ()) -> Iterator[tuple[pa.RecordBatch, Array]]:
        """These rows with `columns`, and those of `maybe` that they have; and for each its index in the table."""
        start = 0
        for batch in read_batches(self.run, "chains", columns, maybe):
            batch = batch.slice(0, self._rows - start)  # a run in progress may have more by now
            places = np.arange(start, start + batch.num_rows)
            start += batch.num_rows
            if self._counts is not None:
                counts = self._counts[places]
                batch, places = batch.filter(pa.array(counts)), places[counts]
            yield batch, places

    def times(self) -> tuple[Array, Array]:
        """The starts of the chains and their ends, ns UTC: each in order."""
        start, end = np.empty(self.number, np.int64), np.empty(self.number, np.int64)
        read = 0
        for batch, _ in self.batches(["start_unix_ns", "end_unix_ns"]):
            for times, column in zip((start, end), batch.columns, strict=True):
                times[read : read + batch.num_rows] = column.to_numpy()
            read += batch.num_rows
        start.sort()
        end.sort()
        return start, end


class ChainCounts:
    """What the chains of `rows` came to."""

    def __init__(self, rows: ChainRows) -> None:
        self.number = rows.number
        self.stop_reasons: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        """Failed chains by the type of their error."""
        self.grading_errors: Counter[str] = Counter()
        self.failed_as_wrong = 0
        """Chains that failed and count as wrong; see `events.counted`."""
        self.done_thought_tokens = 0
        """Tokens of the thoughts of those that neither failed nor were cancelled."""
        self._problems, self._done_problems, self._graded = [_NONE], [_NONE], [GradedChains(*[_NONE] * 4)]
        columns = dict.fromkeys((*NAMED, "error_type", "thought_tokens", *VERDICT_COLUMNS))
        for batch, places in rows.batches([*columns], ["grading_error"]):
            self._add(batch, places)
        self.problems, self.done_problems = _distinct(self._problems), _distinct(self._done_problems)
        """Distinct input rows, and those of them with a chain that neither failed nor was cancelled."""
        self.graded = GradedChains.joined(self._graded)
        self._graded.clear()
        for counter in (self.errors, self.grading_errors):
            counter.pop("", None)

    def _add(self, batch: pa.RecordBatch, places: Array) -> None:
        _count(self.stop_reasons, batch.column("stop_reason"))
        _count(self.errors, batch.column("error_type"))
        if "grading_error" in batch.schema.names:  # which earlier versions did not write
            _count(self.grading_errors, batch.column("grading_error"))
        problem, sample, verdict = (*(batch.column(name).to_numpy() for name in NAMED), verdicts(batch))
        counts, lost = verdict >= 0, pc.is_in(batch.column("stop_reason"), value_set=pa.array(UNFINISHED)).to_numpy(zero_copy_only=False)
        self.done_thought_tokens += int(batch.column("thought_tokens").to_numpy()[~lost].sum())
        self.failed_as_wrong += int((lost & counts).sum())  # one that was cancelled counts as nothing
        self._problems.append(_narrow(problem))
        self._done_problems.append(_narrow(problem[~lost]))
        self._graded.append(GradedChains(*(_narrow(each[counts]) for each in (problem, sample, verdict, places))))


_NONE = np.empty(0, np.uint8)


def _count(counter: Counter[str], column: pa.Array) -> None:
    """Count the texts in `column`; null counts as the empty one."""
    for found in pc.value_counts(column).to_pylist():
        counter[found["values"] or ""] += found["counts"]


def _chain(batch: pa.RecordBatch) -> Array:
    """A number for each chain: rows are below 2^40 and samples below 2^20 (`conform.COUNTS`, `conform.INDICES`)."""
    problem, sample = (batch.column(name).to_numpy() for name in NAMED)
    return np.asarray(problem << 20 | sample)


def _last(run: Path, again: Array, rows: int) -> Array:
    """For each of the first `rows` rows whether it ended last of those of its chain; `again` are the chains that have several."""
    parts = [(_chain(batch), batch.column("end_unix_ns").to_numpy()) for batch in read_batches(run, "chains", [*NAMED, "end_unix_ns"])]
    chain, end = (np.concatenate(column)[:rows] for column in zip(*parts, strict=True))
    several = np.flatnonzero(np.isin(chain, again))
    order = several[np.lexsort((end[several], chain[several]))]
    last = np.ones(len(chain), bool)
    last[order[:-1][chain[order[:-1]] == chain[order[1:]]]] = False
    return last


def _narrow(numbers: Array) -> Array:
    """`numbers`, of which none is negative, in the narrowest type that holds them."""
    return np.asarray(numbers.astype(np.min_scalar_type(int(numbers.max(initial=0)))))


def _distinct(parts: list[Array]) -> int:
    """How many different numbers are in `parts`, which is empty then."""
    numbers = np.concatenate(parts)
    parts.clear()
    numbers.sort()
    return int((numbers[1:] != numbers[:-1]).sum()) + bool(len(numbers))
