"""Busy seconds, overlap and time in flight, exact to the nanosecond; the fast ways agree with the plain one."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.analysis.time.timeline import EngineTime, Intervals, StageTime, TimelineTotals, measure, merged, read_chunks, timeline
from pipeline.errors import InputError
from pipeline.store.events import CallRow
from pipeline.store.tables import TraceStore

Blank = Callable[..., Any]
S = 1_000_000_000


def calls(*rows: tuple[str, int, int]) -> Intervals:
    """Intervals of (engine, submit, end) in seconds; the stage is the engine's name in capitals."""
    engines = sorted({engine for engine, _, _ in rows})
    codes = np.array([engines.index(engine) for engine, _, _ in rows], np.int32)
    submit, end = (np.array([row[place] * S for row in rows], np.int64) for place in (1, 2))
    return Intervals(engines, [engine.upper() for engine in engines], codes, codes, submit, end)


def test_busy_overlap_and_in_flight_by_hand() -> None:
    #      0 1 2 3 4 5 6 7 8 9 10
    # d    =====   ===                 5 busy, of which 2 twice
    # t        =======     ===         6 busy
    found = measure(calls(("d", 0, 2), ("d", 1, 3), ("d", 4, 6), ("d", 4, 5), ("t", 2, 6), ("t", 8, 10)))
    assert found.span_s == 10
    assert found.engines == {"d": EngineTime(5, 0.5, pytest.approx(0.7)), "t": EngineTime(6, pytest.approx(0.6), pytest.approx(0.6))}
    assert (found.overlap_s, found.overlap_share) == (3, pytest.approx(0.3))
    assert found.stages == {"D": StageTime(4, 7), "T": StageTime(2, 6)}


def test_blocks_that_touch_are_one_and_do_not_overlap_another_engine() -> None:
    found = measure(calls(("d", 0, 1), ("t", 1, 2), ("d", 2, 3), ("d", 3, 4)))
    assert found.overlap_s == 0
    assert found.engines["d"].busy_s == 3


def test_no_calls_and_an_instant() -> None:
    assert measure(calls()).span_s == 0
    assert measure(calls(("d", 5, 5))).engines == {"d": EngineTime(0, 0, 0)}


intervals = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 9)), max_size=30)


def columns(rows: list[tuple[int, int, int]]) -> tuple[Any, Any, Any]:
    ordered = sorted(rows, key=lambda row: row[1])
    engine, submit, length = (np.array(column, np.int64) for column in (zip(*ordered, strict=True) if rows else ([], [], [])))
    return submit, submit + length, engine.astype(np.int32)


def merged_one_by_one(rows: list[tuple[int, int, int]]) -> list[list[tuple[int, int]]]:
    """The busy blocks of each engine, call by call."""
    blocks: list[list[tuple[int, int]]] = [[], [], []]
    for engine, start, length in sorted(rows, key=lambda row: row[1]):
        mine = blocks[engine]
        if mine and start <= mine[-1][1]:
            mine[-1] = mine[-1][0], max(mine[-1][1], start + length)
        else:
            mine.append((start, start + length))
    return blocks


@settings(max_examples=60, deadline=None)
@given(intervals)
def test_arrays_agree_with_the_plain_loop(rows: list[tuple[int, int, int]]) -> None:
    found = merged(*columns(rows), 3)
    assert [list(zip(starts.tolist(), ends.tolist(), strict=True)) for starts, ends in found] == merged_one_by_one(rows)


@settings(max_examples=40, deadline=None)
@given(intervals)
def test_measured_times_agree_with_counting_seconds(rows: list[tuple[int, int, int]]) -> None:
    submit, end, engine = columns(rows)
    found = measure(Intervals(["a", "b", "c"], ["s"], engine, np.zeros_like(engine), submit * S, end * S))
    busy = [
        {second for start, stop in zip(submit[engine == e], end[engine == e], strict=True) for second in range(start, stop)}
        for e in range(3)
    ]
    assert [each.busy_s for each in found.engines.values()] == [len(seconds) for seconds in busy]
    several = [second for second in range(50) if sum(second in seconds for seconds in busy) > 1]
    assert found.overlap_s == len(several)


@settings(max_examples=40, deadline=None)
@given(intervals, st.randoms(use_true_random=False))
def test_each_replica_has_engines_of_its_own(rows: list[tuple[int, int, int]], random: Any) -> None:
    submit, end, engine = columns(rows)
    replica = np.array([random.randrange(3) for _ in rows], np.int32)
    totals = TimelineTotals(replicas=[0, 1, 2])
    for places in np.array_split(np.arange(len(rows)), 2):
        part = (column[places] for column in (engine, np.zeros_like(engine), submit * S, end * S))
        totals.add(Intervals(["a", "b", "c"], ["s"], *part, replica=replica[places]))
    found = totals.timeline()
    seconds = {
        (number, role): {second for start, stop in zip(submit[of_both], end[of_both], strict=True) for second in range(start, stop)}
        for number in range(3)
        for role, code in {"a": 0, "b": 1, "c": 2}.items()
        for of_both in [(replica == number) & (engine == code)]
    }
    several = [sum(sum(second in seconds[number, role] for role in "abc") > 1 for second in range(50)) for number in range(3)]
    for number, each in found.replicas.items():
        assert each.busy_s == {role: len(seconds[number, role]) for role in "abc"}
        assert each.overlap_s == several[number]
        active = {second for start, stop in zip(*each.active, strict=True) for second in range(start // S, stop // S)}
        assert active == set().union(*(seconds[number, role] for role in "abc"))
    assert {role: each.busy_s for role, each in found.engines.items()} == pytest.approx(
        {role: sum(len(seconds[number, role]) for number in range(3)) / 3 for role in "abc"}
    )
    assert found.overlap_s == pytest.approx(sum(several) / 3)


def test_chunks_in_any_order_come_to_the_same() -> None:
    rng = np.random.default_rng(1)
    submit = rng.integers(0, 2000, 600) * S
    engine, stage = rng.integers(0, 3, 600).astype(np.int32), np.zeros(600, np.int32)
    names, end = ["a", "b", "c"], submit + rng.integers(0, 9, 600) * S
    totals = TimelineTotals()
    for places in np.array_split(rng.permutation(600), 7):
        totals.add(Intervals(names, ["s"], engine[places], stage[places], submit[places], end[places]))
    assert totals.timeline() == measure(Intervals(names, ["s"], engine, stage, submit, end))


@pytest.mark.slow
def test_numba_is_not_imported_for_an_ordinary_run() -> None:
    code = "import sys, pipeline, pipeline.analysis.summary; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_calls_are_read_from_all_parts(tmp_path: Path, blank: Blank) -> None:
    for engine, start in (("draft", 0), ("target", 1), ("draft", 2)):
        store = TraceStore(tmp_path)
        store.append("calls", [blank(CallRow, engine=engine, stage="s", submit_unix_ns=start * S, end_unix_ns=(start + 2) * S)])
        store.close()
    assert [calls.engine.tolist() for calls in read_chunks(tmp_path)] == [[0, 1, 0]]
    found = timeline(tmp_path)
    assert {name: each.busy_s for name, each in found.engines.items()} == {"draft": 4, "target": 2}
    assert found.overlap_s == 2


def test_a_clock_that_stepped_back_counts_as_an_instant(tmp_path: Path, blank: Blank) -> None:
    store = TraceStore(tmp_path)
    store.append("calls", [blank(CallRow, engine="draft", stage="s", submit_unix_ns=5 * S, end_unix_ns=3 * S)])
    store.close()
    assert timeline(tmp_path).stages == {"s": StageTime(1, 0)}


def test_a_part_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    part = tmp_path / "calls" / "part-00000.parquet"
    part.write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"part-00000\.parquet: cannot be read: Parquet"):
        timeline(tmp_path)
    pq.write_table(pa.table({"engine": ["draft"]}), part)
    with pytest.raises(InputError, match=r"part-00000\.parquet: has no column `end_unix_ns`, `stage`, `submit_unix_ns`"):
        timeline(tmp_path)
