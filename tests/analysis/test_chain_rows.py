"""Which rows of chains count, against a plain loop; and how many bytes of each chain are held."""

import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.analysis.chain_rows import ChainCounts, ChainRows
from pipeline.analysis.quality.samples import sample_statistics
from pipeline.store.columns import schema_of
from pipeline.store.conform import ROWS

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "input_row": st.integers(1, 4),
    "sample_index": st.integers(0, 2),
    "start_unix_ns": st.integers(0, 5),
    "end_unix_ns": st.integers(5, 9),
    "thought_tokens": st.integers(0, 9),
    "stop_reason": st.sampled_from(["thought_closed", "error", "cancelled"]),
    "error_type": st.sampled_from([None, "EngineDead"]),
    "correct": st.sampled_from([None, True, False]),
    "reference_answer": st.sampled_from([None, "7"]),
}
SCHEMA = schema_of(ROWS["chains"])


def write(folder: Path, columns: dict[str, Any]) -> Path:
    """A run folder whose table of chains has these columns."""
    (folder / "chains").mkdir()
    fields = [SCHEMA.field(name) for name in columns]
    pq.write_table(pa.table(list(columns.values()), pa.schema(fields)), folder / "chains/part-00000.parquet")
    return folder


@settings(max_examples=12, deadline=None)
@given(st.lists(st.fixed_dictionaries(VALUES), max_size=12))
def test_of_each_chain_the_row_that_ended_last_counts(rows: list[dict[str, Any]]) -> None:
    with TemporaryDirectory() as place:
        folder = write(Path(place), {name: [row[name] for row in rows] for name in VALUES})
        last: dict[tuple[int, int], tuple[int, dict[str, Any]]] = {}
        for index, row in enumerate(rows):
            chain = row["input_row"], row["sample_index"]
            if chain not in last or row["end_unix_ns"] >= last[chain][1]["end_unix_ns"]:
                last[chain] = index, row
        found = ChainRows(folder)
        counted = sorted(last.values(), key=lambda each: each[0])
        assert [place for _, places in found.batches(["input_row"]) for place in places.tolist()] == [index for index, _ in counted]
        chains = [row for _, row in counted]
        for times, name in zip(found.times(), ("start_unix_ns", "end_unix_ns"), strict=True):
            assert times.tolist() == sorted(row[name] for row in chains)
        counts = ChainCounts(found)
        assert counts.problems == len({row["input_row"] for row in chains})
        assert counts.done_problems == len({row["input_row"] for row in chains if row["stop_reason"] == "thought_closed"})
        assert counts.done_thought_tokens == sum(row["thought_tokens"] for row in chains if row["stop_reason"] == "thought_closed")
        assert counts.errors.total() == sum(row["error_type"] is not None for row in chains)


def test_of_each_chain_a_few_bytes_are_held(tmp_path: Path) -> None:
    few, many = (_peak(tmp_path, chains) for chains in (10_000, 30_000))
    assert (many - few) / 20_000 < 24


def _peak(folder: Path, chains: int) -> int:
    """The most bytes that are held while so many chains are counted."""
    numbers = np.arange(1, chains + 1)
    columns = {
        "input_row": numbers,
        "sample_index": np.zeros(chains, int),
        "start_unix_ns": numbers * 1000,
        "end_unix_ns": numbers * 1000 + 64_000,
        "thought_tokens": numbers,
        "stop_reason": ["thought_closed"] * chains,
        "error_type": [None] * chains,
        "correct": numbers % 3 == 0,
        "reference_answer": ["7"] * chains,
    }
    run = folder / str(chains)
    run.mkdir()
    write(run, columns)
    tracemalloc.start()
    try:
        rows = ChainRows(run)
        assert sample_statistics(run, ChainCounts(rows).graded).pass_at == {1: chains // 3 / chains}
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
