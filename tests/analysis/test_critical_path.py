"""Paths of chains by hand; whatever the calls, their parts add up to the chains' times; the two ways agree."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.analysis.time import calls as calls_module
from pipeline.analysis.time.critical_path import END, PathSegment, chain_path, chain_paths, critical_path
from pipeline.analysis.time.path_walk import Steps, finish, frontier_of, plain_totals, walk
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
    assert [(each.stage, each.segment, each.engine, each.start_s, each.end_s) for each in chain_path(run, "a")] == [
        ("by d", "between", "d", 0, 0.5),
        ("by d", "wait", "d", 0.5, 1),
        ("by d", "queue", "d", 1, 1.5),
        ("by d", "prefill", "d", 1.5, 1.75),
        ("by d", "decode", "d", 1.75, 2.75),
        ("by d", "transfer", "d", 2.75, 3),
        ("by t", "between", "t", 3, 4),
        ("by t", "engine", "t", 4, 5),
        ("by t", "retry", "t", 5, 7),
        ("by t", "queue", "t", 7, 7.5),
        ("by t", "prefill", "t", 7.5, 7.75),
        ("by t", "decode", "t", 7.75, 9),  # an engine whose clock ran longer than ours
        (END, "between", "", 9, 10),
    ]
    found = critical_path(run)
    assert (found.chains, found.chain_time_s) == (1, 10)
    assert found.total_s[("by t", "engine")] == found.mean_s[("by t", "engine")] == 1
    assert chain_path(run, "b") == (PathSegment(END, "between", "", 0, 4),)
    assert chain_paths(run, ["nobody", "b"]).keys() == {"b"}


def test_calls_that_touch_follow_each_other_in_spite_of_rounding(tmp_path: Path) -> None:
    times = {"submit_unix_ns": 10, "end_unix_ns": 21, "client_wait_s": 0.0}
    calls = [call("a", "d", 0, 0, 0, **times), call("a", "t", 0, 0, 0, **times | {"submit_unix_ns": 20, "end_unix_ns": 30})]
    run = write(tmp_path, calls=calls, chains=[chain("a", 0, 0, start_unix_ns=10, end_unix_ns=30)], steps=[])
    assert critical_path(run).total_s == {("by d", "engine"): 10 / 1e9, ("by t", "engine"): 10 / 1e9}


@pytest.mark.parametrize("graph", ["speccot", "likelihood", "target"])
def test_paths_of_whole_runs_add_up_to_the_times_of_their_chains(tmp_path: Path, graph: str) -> None:
    result = solve(tmp_path, graph=graph, batch_size=4, schedule="lockstep")
    found = critical_path(result.folder)
    chains = {row["chain_id"]: row["chain_time_s"] for row in rows(result, "chains")}
    assert found.chain_time_s == pytest.approx(sum(chains.values()), abs=1e-6)
    paths = chain_paths(result.folder, list(chains))
    for name, seconds in chains.items():
        assert paths[name][-1].end_s == pytest.approx(seconds, abs=1e-8)
        assert all(one.end_s == other.start_s for one, other in zip(paths[name], paths[name][1:], strict=False))
    by_key: dict[tuple[str, str], float] = {}
    for part in (part for path in paths.values() for part in path):
        by_key[part.stage, part.segment] = by_key.get((part.stage, part.segment), 0.0) + part.end_s - part.start_s
    assert by_key == pytest.approx(found.total_s, abs=1e-6)


known = st.integers(-1, 12)
random_step = st.tuples(st.integers(0, 5), st.integers(0, 2), st.booleans(), *[st.integers(0, 60)] * 3, known, known, known)


def steps_of(rows: Any) -> Steps:
    columns = np.array([(*row[:3], *sorted(row[3:6]), *row[6:]) for row in rows], np.int64).reshape(-1, 9)
    chain, stage, again, *instants = columns[np.argsort(columns[:, 5], kind="stable")].T
    return Steps(chain, stage.astype(np.int32), again.astype(np.bool_), *instants)


random_steps = st.lists(random_step, max_size=25)
random_chains = st.lists(random_chain, min_size=6, max_size=6)


@given(random_steps, random_chains)
def test_whatever_the_calls_the_parts_add_up(rows: Any, lives: Any) -> None:
    chains = chains_of(lives)
    total = plain_totals(steps_of(rows), chains.start, chains.end, chains.status == 0, 3)
    assert total.sum() == (chains.end - chains.start)[chains.status == 0].sum()
    assert (total >= 0).all()


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(random_steps, random_chains, st.integers(1, 5))
def test_the_compiled_walk_agrees_with_the_plain_one(rows: Any, lives: Any, chunks: int) -> None:
    chains, steps = chains_of(lives), steps_of(rows)
    counts, frontier, total = chains.status == 0, frontier_of(chains.end), np.zeros((4, 8), np.int64)
    for places in reversed(np.array_split(np.arange(len(rows)), chunks)):
        walk(tuple(column[places] for column in steps), tuple(frontier), chains.start, counts, total)
    finish(frontier, chains.start, counts, total)
    assert total.tolist() == plain_totals(steps, chains.start, chains.end, counts, 3).tolist()


@pytest.mark.slow
def test_the_two_ways_agree_on_a_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = solve(tmp_path, graph="likelihood", settings=("candidates=3",)).folder
    plain = critical_path(folder)
    monkeypatch.setattr(calls_module, "LONG", 0)
    assert critical_path(folder) == plain
