"""The chains of a run as columns of numbers, and which of them to show: the chains table enters, indices of chains leave.

Of a chain that was resumed the last row counts. Names and numbers are held, never a text.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.store.events import UNFINISHED
from pipeline.store.read import read_batches

NUMBERS = ("input_row", "sample_index", "calls", "start_unix_ns", "end_unix_ns", "chain_time_s")


class ChainList(Struct, frozen=True, kw_only=True):
    """The chains that ended, in the order of their starts, as columns with one element for each chain."""

    names: Sequence[str]
    row: Array
    """Row of the problem in the input file, from 1."""
    sample: Array
    """Number of the chain among those of its problem, from 0."""
    calls: Array
    """Number of its calls."""
    start: Array
    """When it was admitted, ns UTC."""
    end: Array
    """When it ended, ns UTC."""
    seconds: Array
    """Seconds from admission to the end."""
    correct: Array
    """1 right, 0 wrong, -1 not graded."""
    failed: Array
    """Whether it failed."""
    cancelled: Array
    """Whether it was cancelled, because the run was interrupted or had to stop."""


def read_chain_list(run: Path) -> ChainList:
    """The chains of a run folder; raises `InputError` where they cannot be read."""
    names: list[str] = []
    parts: list[list[Array]] = [[np.empty(0, np.int64)] * (len(NUMBERS) + 3)]
    for batch in read_batches(run, "chains", ("chain_id", "correct", "stop_reason", *NUMBERS)):
        names += batch.column("chain_id").to_pylist()
        correct = batch.column("correct").cast("int8").fill_null(-1).to_numpy()
        reasons = np.array(batch.column("stop_reason").to_pylist(), object)
        parts.append([correct, *(reasons == each for each in UNFINISHED), *(batch.column(name).to_numpy() for name in NUMBERS)])
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    last = np.array(list({name: place for place, name in enumerate(names)}.values()), int)
    order = last[np.lexsort((last, columns[6][last]))]
    correct, failed, cancelled, row, sample, calls, start, end, seconds = (column[order] for column in columns)
    return ChainList(
        names=[names[place] for place in order],
        row=row,
        sample=sample,
        calls=calls,
        start=start,
        end=end,
        seconds=seconds,
        correct=correct,
        failed=failed.astype(bool),
        cancelled=cancelled.astype(bool),
    )


def evenly(places: Array, most: int) -> Array:
    """At most `most` elements of `places`, evenly spaced among them."""
    if len(places) <= most:
        return places
    return np.asarray(places[np.linspace(0, len(places) - 1, most).round().astype(int)])


def worth_reading(chains: ChainList, most: int) -> dict[int, tuple[str, ...]]:
    """Indices of at most `most` chains to read in full, and the reasons for each of them: `failed`, `wrong`, `slowest`.

    Each reason may take a third, and what earlier reasons leave. Failed and wrong ones are evenly spaced over the run.
    """
    slowest = np.argsort(-chains.seconds, kind="stable")
    groups = (
        ("failed", np.flatnonzero(chains.failed), True),
        ("wrong", np.flatnonzero(chains.correct == 0), True),
        ("slowest", slowest[~(chains.failed | chains.cancelled)[slowest]], False),
    )
    found: dict[int, list[str]] = {}
    for number, (reason, places, spread) in enumerate(groups):
        limit = most * (number + 1) // len(groups)
        for place in (evenly(places, max(0, limit - len(found))) if spread else places).tolist():
            if len(found) >= limit and place not in found:
                break
            found.setdefault(place, []).append(reason)
    return {place: tuple(reasons) for place, reasons in found.items()}
