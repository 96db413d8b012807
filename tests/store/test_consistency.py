"""Chains whose rows are not consistent are found, and taken back to a beginning that does."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.store import rewrite
from pipeline.store.checking.consistency import Broken, find_broken, take_back
from pipeline.store.checking.inventory import take_inventory
from pipeline.store.events import CallRow, ChainRow, RewardRow, StepRow
from pipeline.store.rewrite import remove
from pipeline.store.tables import TraceStore

Blank = Callable[..., Any]
ROUND = 3
"""Calls of each step."""


@pytest.fixture
def run(tmp_path: Path, blank: Blank) -> Path:
    """Three finished chains of four steps, and one that was begun, with a fifth round that is not committed."""
    store = TraceStore(tmp_path)
    for name in "abcd":
        calls = ROUND * (5 if name == "d" else 4)
        store.append("calls", [blank(CallRow, chain_id=name, call_index=i, step_index=1 + i // ROUND) for i in range(calls)])
        store.append("steps", [blank(StepRow, chain_id=name, step_index=i, calls=ROUND * i) for i in range(1, 5)])
        if name != "d":
            store.append("chains", [blank(ChainRow, chain_id=name, stop_reason="closed", steps=4, calls=calls)])
    store.close()
    return tmp_path


def numbers(run: Path, table: str) -> list[tuple[str, int]]:
    content = pq.read_table(run / table).to_pylist()
    return [(row["chain_id"], row.get(f"{table[:-1]}_index", 0)) for row in content]


def drop(run: Path, table: str, gone: Callable[[str, int], bool]) -> None:
    columns = ["chain_id"] if table == "chains" else ["chain_id", f"{table[:-1]}_index"]
    remove(run, table, columns, lambda rows: [gone(*row.values(), *([0] * (2 - len(row)))) for row in rows.to_pylist()])


def again(run: Path) -> tuple[list[Broken], list[Broken]]:
    """What was found broken, and what is after it was taken back."""
    found = find_broken(run)
    take_back(run, found)
    return found, find_broken(run)


def test_a_whole_run_hangs_together(run: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert again(run) == ([], [])
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.parametrize("chain", ["b", "d"])
@pytest.mark.parametrize("call", [0, 4, 8, 11])
def test_a_step_whose_calls_are_missing_is_taken_back_with_all_after_it(run: Path, chain: str, call: int) -> None:
    drop(run, "calls", lambda name, index: (name, index) == (chain, call))
    found, left = again(run)
    assert [(each.chain_id, each.again, each.calls, sorted(each.steps)) for each in found] == [
        (chain, True, call, list(range(1, 1 + call // ROUND)))
    ]
    assert left == []
    assert [index for name, index in numbers(run, "calls") if name == chain] == list(range(call))
    assert [index for name, index in numbers(run, "steps") if name == chain] == list(range(1, 1 + call // ROUND))
    assert ("b" in {name for name, _ in numbers(run, "chains")}) == (chain == "d")


@pytest.mark.parametrize("step", [1, 3, 4])
def test_a_finished_chain_whose_steps_are_missing_is_taken_back_and_keeps_its_answered_calls(run: Path, step: int) -> None:
    drop(run, "steps", lambda name, index: (name, index) == ("c", step))
    found, left = again(run)
    assert ([(each.chain_id, each.calls) for each in found], left) == ([("c", 4 * ROUND)], [])
    assert [index for name, index in numbers(run, "steps") if name == "c"] == list(range(1, step))
    assert [name for name, _ in numbers(run, "chains")] == ["a", "b"]


def test_rewards_of_steps_that_are_made_again_go(run: Path, blank: Blank) -> None:
    with rewrite.replacing(run, "rewards", RewardRow) as append:
        append([blank(RewardRow, chain_id=name, step_index=index) for name in "abc" for index in range(1, 5)])
    drop(run, "steps", lambda name, index: (name, index) == ("c", 3))
    again(run)
    assert {row["chain_id"] for row in pq.read_table(run / "rewards").to_pylist()} == {"a", "b"}
    assert [each for each in take_inventory(run).files if each.verdict != "sound"] == []


def test_a_chain_none_of_whose_rows_are_there_but_its_end(run: Path) -> None:
    for table in ("calls", "steps"):
        drop(run, table, lambda name, index: name == "a")
    found, left = again(run)
    assert ([(each.chain_id, each.calls, each.steps) for each in found], left) == ([("a", 0, frozenset())], [])
    assert [name for name, _ in numbers(run, "chains")] == ["b", "c"]


@pytest.mark.parametrize("error", ["ResumeMismatch", "PastMismatch"])
def test_a_chain_that_came_out_differently_is_solved_from_its_first_call(run: Path, blank: Blank, error: str) -> None:
    store = TraceStore(run)
    store.append("chains", [blank(ChainRow, chain_id="d", stop_reason="error", error_type=error, steps=4, calls=5 * ROUND)])
    store.close()
    found, left = again(run)
    assert ([(each.chain_id, each.why, each.calls) for each in found], left) == ([("d", "its steps came out differently", 0)], [])
    assert {name for table in ("calls", "steps", "chains") for name, _ in numbers(run, table)} == {"a", "b", "c"}


@pytest.mark.parametrize("tables", [("calls",), ("steps",), ("chains",), ("calls", "steps", "chains")])
def test_rows_that_are_there_twice_go_and_the_chain_stays(run: Path, blank: Blank, tables: Sequence[str]) -> None:
    before = {table: sorted(numbers(run, table)) for table in ("calls", "steps", "chains")}
    kinds: dict[str, Any] = {"calls": CallRow, "steps": StepRow, "chains": ChainRow}
    store = TraceStore(run)
    for table in tables:
        content = [row for row in pq.read_table(run / table).to_pylist() if row["chain_id"] in "bd"]
        store.append(table, [kinds[table](**row) for row in content])
    store.close()
    found, left = again(run)
    assert ({each.why for each in found}, left) == ({"rows are there twice"}, [])
    assert {table: sorted(numbers(run, table)) for table in before} == before


def test_rows_of_versions_that_did_not_count_the_calls_of_a_step(tmp_path: Path, blank: Blank) -> None:
    store = TraceStore(tmp_path)
    store.append("calls", [blank(CallRow, chain_id="d", call_index=i, step_index=1 + i // ROUND) for i in range(2 * ROUND)])
    store.append("steps", [blank(StepRow, chain_id="d", step_index=i) for i in range(1, 5)])
    store.close()
    [found], left = again(tmp_path)
    assert (found.calls, sorted(found.steps), left) == (2 * ROUND, [1, 2], [])


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.slow
def test_whatever_rows_are_lost_what_is_left_hangs_together(run: Path, blank: Blank, tmp_path_factory: Any, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("lost") / "run"
    shutil.copytree(run, folder)
    for table in ("calls", "steps", "chains"):
        there = sorted(set(numbers(folder, table)))
        gone = data.draw(st.sets(st.sampled_from(there), max_size=4))
        drop(folder, table, lambda name, index, gone=gone: (name, index) in gone)
    again(folder)
    assert find_broken(folder) == []
    ended = {name for name, _ in numbers(folder, "chains")}
    for chain in "abcd":
        calls = [index for name, index in numbers(folder, "calls") if name == chain]
        steps = [index for name, index in numbers(folder, "steps") if name == chain]
        assert calls == list(range(len(calls)))
        assert steps == list(range(1, 1 + len(steps)))
        assert len(calls) >= ROUND * len(steps)
        assert chain not in ended or (len(calls), len(steps)) == (4 * ROUND, 4)


def test_taking_back_may_be_cut_short_after_every_part(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drop(run, "calls", lambda name, index: (name, index) in (("a", 2), ("d", 7)))

    class Cut(BaseException):
        """The process ends."""

    for _ in range(4):
        whole = rewrite._replace

        def once(*arguments: Any, whole: Any = whole) -> None:
            whole(*arguments)
            raise Cut

        with monkeypatch.context() as patched:
            patched.setattr(rewrite, "_replace", once)
            try:
                take_back(run, find_broken(run))
                break
            except Cut:
                continue
    assert find_broken(run) == []
    assert [name for name, _ in numbers(run, "chains")] == ["b", "c"]
    assert [index for name, index in numbers(run, "calls") if name == "d"] == list(range(7))
