"""Paths of chains by hand; whatever the calls, their parts add up to the chains' times; the walk agrees with a plain reference."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.analysis.compiled import compiled
from pipeline.analysis.time import calls as calls_module
from pipeline.analysis.time.calls import Calls, accumulate
from pipeline.analysis.time.critical_path import (
    END,
    SEGMENTS,
    CriticalPathAccumulator,
    PathCalls,
    critical_path,
    finish,
    frontier_of,
    path_calls,
    walk,
)
from pipeline.analysis.time.outline import Outline
from tests.support.reference_analyses import NO_PATH_CALLS, path_of, path_totals
from tests.support.runs import rows, solve
from tests.support.traces import call, card, chain, chains_of, random_chain, write

KNOWN = {"queue_time_s": 0.5, "prefill_time_s": 0.25, "decode_time_s": 1.0}


def test_a_path_by_hand(tmp_path: Path) -> None:
    calls = [
        call("a", "d", 0.5, 1, 3, **KNOWN),
        call("a", "t", 0.5, 0.5, 2),  # beside it
        call("a", "t", 4, 4, 5, error_type="CallTimeout"),
        call("a", "t", 5, 7, 9, attempt=1, **KNOWN | {"decode_time_s": 9.0}),
    ]
    run = write(tmp_path, calls=calls, chains=[chain("a", 0, 10), chain("b", 0, 4, stop_reason="error")], steps=[], card=card(0, 10))
    found = critical_path(run)
    assert (found.chains, found.chain_time_s) == (1, 10)
    assert (
        found.total_s
        == found.mean_s
        == {
            ("by d", "between"): 0.5,
            ("by d", "wait"): 0.5,
            ("by d", "queue"): 0.5,
            ("by d", "prefill"): 0.25,
            ("by d", "decode"): 1,
            ("by d", "transfer"): 0.25,
            ("by t", "between"): 1,
            ("by t", "engine"): 1,
            ("by t", "retry"): 2,
            ("by t", "queue"): 0.5,
            ("by t", "prefill"): 0.25,
            ("by t", "decode"): 1.25,  # an engine whose clock ran longer than ours
            (END, "between"): 1,
        }
    )


def test_the_reference_goes_along_the_path_by_hand() -> None:
    calls = [(1, 0, 1, 1, 4, -1, -1, -1), (0, 0, 1, 2, 6, 1, 1, 1), (1, 0, 8, 8, 10, -1, -1, -1), (1, 1, 10, 14, 18, 1, 1, 18)]
    names = [*SEGMENTS]
    assert [(stage, names[segment], length) for stage, segment, length in path_of(0, 20, calls)[::-1] if length] == [
        (0, "between", 1),
        (0, "wait", 1),
        (0, "queue", 1),
        (0, "prefill", 1),
        (0, "decode", 1),
        (0, "transfer", 1),
        (1, "between", 2),
        (1, "engine", 2),
        (1, "retry", 4),
        (1, "queue", 1),
        (1, "prefill", 1),
        (1, "decode", 2),
        (-1, "between", 2),
    ]


def test_calls_that_touch_follow_each_other_in_spite_of_rounding(tmp_path: Path) -> None:
    times = {"submit_unix_ns": 10, "end_unix_ns": 21, "client_wait_s": 0.0}
    calls = [call("a", "d", 0, 0, 0, **times), call("a", "t", 0, 0, 0, **times | {"submit_unix_ns": 20, "end_unix_ns": 30})]
    run = write(tmp_path, calls=calls, chains=[chain("a", 0, 0, start_unix_ns=10, end_unix_ns=30)], steps=[])
    assert critical_path(run).total_s == {("by d", "engine"): 10 / 1e9, ("by t", "engine"): 10 / 1e9}


class CallCollector:
    """Keeps all calls, in the order of their ends."""

    columns = CriticalPathAccumulator.columns

    def __init__(self, outline: Outline) -> None:
        self.chains, self.stages, self._calls = outline.chains, 0, [NO_PATH_CALLS]

    def add(self, calls: Calls) -> None:
        self.stages = len(calls.stages)
        self._calls.insert(1, path_calls(calls))

    def path_calls(self) -> PathCalls:
        return PathCalls(*(np.concatenate(column) for column in zip(*self._calls, strict=True)))


@pytest.mark.parametrize("graph", ["speccot", "likelihood", "target"])
def test_paths_of_whole_runs_add_up_to_the_times_of_their_chains(tmp_path: Path, graph: str) -> None:
    result = solve(tmp_path, graph=graph, batch_size=4, schedule="lockstep")
    found = critical_path(result.folder)
    chains = {row["chain_id"]: row["chain_time_s"] for row in rows(result, "chains")}
    assert found.chain_time_s == pytest.approx(sum(chains.values()), abs=1e-6)
    [calls] = accumulate(result.folder, lambda outline: (CallCollector(outline),))
    total = path_totals(calls.path_calls(), calls.chains.start, calls.chains.end, calls.chains.status == 0, calls.stages)
    assert sorted(found.total_s.values()) == sorted((total[total > 0] / 1e9).tolist())


known = st.integers(-1, 12)
random_step = st.tuples(st.integers(0, 5), st.integers(0, 2), st.booleans(), *[st.integers(0, 60)] * 3, known, known, known)


def path_calls_of(rows: Any) -> PathCalls:
    columns = np.array([(*row[:3], *sorted(row[3:6]), *row[6:]) for row in rows], np.int64).reshape(-1, 9)
    chain, stage, again, *instants = columns[np.argsort(columns[:, 5], kind="stable")].T
    return PathCalls(chain, stage.astype(np.int32), again.astype(np.bool_), *instants)


random_steps = st.lists(random_step, max_size=25)
random_chains = st.lists(random_chain, min_size=6, max_size=6)


@given(random_steps, random_chains)
def test_whatever_the_calls_the_parts_add_up(rows: Any, lives: Any) -> None:
    chains = chains_of(lives)
    total = path_totals(path_calls_of(rows), chains.start, chains.end, chains.status == 0, 3)
    assert total.sum() == (chains.end - chains.start)[chains.status == 0].sum()
    assert (total >= 0).all()


def check_walk(rows: Any, lives: Any, chunks: int, walk: Callable[..., None]) -> None:
    chains, steps = chains_of(lives), path_calls_of(rows)
    counts, frontier, total = chains.status == 0, frontier_of(chains.end), np.zeros((4, 8), np.int64)
    for places in reversed(np.array_split(np.arange(len(rows)), chunks)):
        walk(tuple(column[places] for column in steps), tuple(frontier), chains.start, counts, total)
    finish(frontier, chains.start, counts, total)
    assert total.tolist() == path_totals(steps, chains.start, chains.end, counts, 3).tolist()


@settings(max_examples=100, deadline=None)
@given(random_steps, random_chains, st.integers(1, 5))
def test_the_walk_agrees_with_the_reference(rows: Any, lives: Any, chunks: int) -> None:
    check_walk(rows, lives, chunks, walk)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(random_steps, random_chains, st.integers(1, 5))
def test_the_compiled_walk_agrees_with_the_reference(rows: Any, lives: Any, chunks: int) -> None:
    check_walk(rows, lives, chunks, compiled(walk))


@pytest.mark.slow
def test_what_is_compiled_agrees_on_a_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = solve(tmp_path, graph="likelihood", settings=("candidates=3",)).folder
    plain = critical_path(folder)
    monkeypatch.setattr(calls_module, "LONG", 0)
    assert critical_path(folder) == plain
