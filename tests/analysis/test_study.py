"""One reading for everything; traces that do not fit into what their chains and card say; what is known of devices."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba.core.caching import CacheImpl

from pipeline.analysis.compiled import compiled
from pipeline.analysis.ledger import ledger
from pipeline.analysis.study import analyse
from pipeline.analysis.time import calls as calls_module
from pipeline.analysis.time import outline as outline_module
from pipeline.analysis.time.calls import Calls, accumulate
from pipeline.analysis.time.critical_path import critical_path
from pipeline.analysis.time.latency import latencies
from pipeline.analysis.time.occupancy import occupancy
from pipeline.analysis.time.outline import CHAIN, FINISHED, OPEN, Axis, Outline, read_outline
from pipeline.analysis.time.timeline import NO_REPLICA
from pipeline.store.run_file import UNKNOWN
from pipeline.store.tables import TraceStore
from tests.support.runs import solve
from tests.support.traces import S, T, call, card, chain, same, write


def test_one_reading_tells_what_four_do(tmp_path: Path) -> None:
    folder = solve(tmp_path).folder
    found = analyse(folder, bins=20)
    assert same(found.occupancy, occupancy(folder, bins=20))
    assert (found.critical_path, found.ledger) == (critical_path(folder), ledger(folder))
    assert found.latencies == latencies(folder)


@pytest.mark.slow
def test_a_long_run_is_told_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = solve(tmp_path, samples=3).folder
    plain = analyse(folder)
    monkeypatch.setattr(calls_module, "LONG", 0)
    found = analyse(folder)
    assert same(found.occupancy, plain.occupancy)
    assert (found.critical_path, found.ledger, found.latencies) == (plain.critical_path, plain.ledger, plain.latencies)


class Seen:
    """Remembers what it was shown."""

    columns: tuple[str, ...] = ("call_index",)

    def __init__(self, outline: Outline) -> None:
        self.outline, self.shown = outline, []  # type: ignore[var-annotated]

    def add(self, calls: Calls) -> None:
        self.shown.append((calls.table.column("call_index").to_pylist(), calls.end.tolist()))


def seen(folder: Path) -> Seen:
    [found] = accumulate(folder, lambda outline: (Seen(outline),))
    return found


def parts(folder: Path, *rows: Any, **more: Any) -> Path:
    """A run folder in which each group of rows is a part of its own."""
    for each in rows:
        write(folder, calls=each)
    return write(folder, chains=[chain("a", 0, 9)], **more)


def a_call(index: int, submit: float, end: float, name: str = "a", engine: str = "d") -> Any:
    return call(name, engine, submit, submit, end, call_index=index)


def test_the_last_calls_come_first(tmp_path: Path) -> None:
    found = seen(parts(tmp_path, [a_call(0, 0, 1), a_call(1, 0, 2)], [a_call(2, 1, 3)], card=card(0, 9)))
    assert found.shown == [([2], [3 * S]), ([0, 1], [S, 2 * S])]
    assert not found.outline.whole


@pytest.mark.parametrize(
    "odd", [a_call(2, 0, 1), a_call(2, 1, 3, engine="new"), a_call(2, 1, 3, name="new"), a_call(2, -1, 3), a_call(2, 1, 12)]
)
def test_calls_that_do_not_fit_are_looked_at_before(tmp_path: Path, odd: Any) -> None:
    found = seen(parts(tmp_path, [a_call(0, 0, 1.5), a_call(1, 0, 2)], [odd], card=card(0, 9)))
    assert found.outline.whole
    assert sorted(index for indices, _ in found.shown for index in indices) == [0, 1, 2]
    assert all(ends == sorted(ends) for _, ends in found.shown)


def test_a_call_before_the_start_moves_the_start(tmp_path: Path) -> None:
    outline = seen(parts(tmp_path, [a_call(0, -1, 3)], card=card(0, 9))).outline
    assert (outline.axis.origin, outline.span) == (T - S, 10 * S)


def test_rows_of_a_run_that_goes_on_meanwhile_are_left_out(tmp_path: Path) -> None:
    store = TraceStore(tmp_path)
    store.append("calls", [a_call(0, 0, 1, name="first")])

    def late(outline: Outline) -> tuple[Seen]:
        if outline.whole:  # all calls were looked at, and then
            store.append("calls", [a_call(1, 1, 2, name="second"), a_call(2, 1, 3, name="first")])
        return (Seen(outline),)

    [found] = accumulate(tmp_path, late)
    assert [indices for indices, _ in found.shown if indices] == [[0]]
    store.close()


@pytest.mark.slow
@given(st.lists(st.text(), unique=True, max_size=60), st.lists(st.text(), max_size=60))
def test_chains_are_found_by_their_names(names: list[str], others: list[str]) -> None:
    numbers = dict.fromkeys(CHAIN, np.arange(len(names)))
    status, replica = np.full(len(names), FINISHED, np.int8), np.full(len(names), NO_REPLICA, np.int32)
    rows = outline_module._Rows(outline_module._hashes(names), status, replica, numbers)
    chains = outline_module._outline(UNKNOWN, rows, (), None).chains
    asked = pa.array([*names, *others], pa.string())
    for name, place, status in zip(asked.to_pylist(), chains.places(asked), chains.status_of(asked), strict=True):
        assert status == (FINISHED if name in names else OPEN)
        assert (chains.thought_tokens[place] == names.index(name)) if name in names else place == -1


def test_of_a_chain_with_several_rows_the_last_counts(tmp_path: Path) -> None:
    rows = [chain("a", 0, 5, stop_reason="error"), chain("b", 0, 6), chain("a", 0, 9)]
    chains = read_outline(write(tmp_path, chains=rows, card=card(0, 9))).chains
    assert (sorted(chains.end.tolist()), chains.status.tolist()) == ([6 * S, 9 * S], [FINISHED, FINISHED])


def test_pauses_are_left_out_of_time() -> None:
    axis = Axis(10, ((20, 30), (50, 51)))
    assert axis.of(np.array([10, 20, 25, 30, 50, 51, 60])).tolist() == [0, 10, 10, 10, 30, 30, 39]
    assert axis.seconds(np.array([10, 60])).tolist() == [0, 39 / 1e9]


def test_a_run_file_with_nonsense_in_it_says_nothing(tmp_path: Path) -> None:
    write(tmp_path, chains=[chain("a", 0, 5)])
    before = read_outline(tmp_path)
    (tmp_path / "run.json").write_text('{"status": 1, "batch_size": "x", "sessions": [1], "engines": [], "graph": null}')
    after = read_outline(tmp_path)
    assert (after.run, after.span, after.engines) == (before.run, before.span, before.engines) == (UNKNOWN, 5 * S, ())


def test_without_a_place_for_its_cache_numba_compiles_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])

    def double(number: int) -> int:
        return 2 * number

    assert compiled(double)(21) == 42


@pytest.mark.slow
def test_a_short_run_waits_for_no_compiler(tmp_path: Path) -> None:
    folder = solve(tmp_path).folder
    code = f"import sys; from pathlib import Path; from pipeline.analysis.study import analyse; analyse(Path({str(folder)!r})); "
    done = subprocess.run([sys.executable, "-c", code + "assert 'numba' not in sys.modules"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
