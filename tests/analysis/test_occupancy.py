"""Busy, idle and why, by hand, cause by cause, and against a plain reference to the nanosecond; time without pauses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.analysis.summary import summarize
from pipeline.analysis.time.occupancy import Occupancy
from pipeline.analysis.time.walk import occupancy_sums
from pipeline.analysis.time.work import Axis, read_work
from pipeline.errors import InputError
from pipeline.store.query import Query
from pipeline.store.store import RunStore
from tests.analysis import reference_analyses as reference
from tests.support.run_files import RUN_JSON, write_run_json
from tests.support.runs import solve_short
from tests.support.traces import (
    ENGINES,
    S,
    call,
    calls_of,
    card,
    chain,
    lives_of,
    over_time,
    random_calls,
    random_lives,
    rules_of,
    same,
    write,
)


def idle(found: Occupancy, role: str) -> dict[str, float]:
    """Seconds by cause, without those that did not occur."""
    return {cause: seconds for cause, seconds in found.engines[role].total_idle_s.items() if seconds}


def test_two_chains_by_hand(tmp_path: Path) -> None:
    #     0 1 2 3 4 5 6 7 8 9
    # a   [d d|t t t]               ends at 5
    # b   [. w|d d d d|t t]         ready at 1, ends at 8
    calls = [call("a", "d", 0, 0, 2), call("a", "t", 2, 2, 5), call("b", "d", 1, 2, 6), call("b", "t", 6, 6, 8)]
    found = over_time(write(tmp_path, calls=calls, chains=[chain("a", 0, 5), chain("b", 0, 8)], steps=[], card=card(0, 9)), bins=3)
    assert (found.span_s, found.edges_s.tolist()) == (9, [0, 3, 6, 9])
    assert found.live.tolist() == pytest.approx([2, 5 / 3, 2 / 3])
    draft, target = found.engines["d"], found.engines["t"]
    assert (draft.busy_s.tolist(), target.busy_s.tolist()) == ([3, 3, 0], [1, 2, 2])
    assert draft.in_flight.tolist() == pytest.approx([1, 1, 0])
    assert draft.waiting.tolist() == pytest.approx([1 / 3, 0, 0])
    assert (found.overlap.tolist(), found.overlap_s, found.overlap_share) == ([1, 2, 0], 3, pytest.approx(1 / 3))
    assert idle(found, "d") == {"tail": 2, "nothing_admitted": 1}
    assert idle(found, "t") == {"other_engine": 2, "tail": 1, "nothing_admitted": 1}
    assert target.idle_s["other_engine"].tolist() == [2, 0, 0]
    assert {name: each.roles for name, each in found.devices.items()} == {"one": ("d",), "two": ("t",)}
    assert found.devices["two"].total_busy_s == target.total_busy_s == 5


def test_engines_on_one_device_are_busy_and_idle_together(tmp_path: Path) -> None:
    calls = [call("a", "d", 0, 0, 2), call("a", "t", 2, 3, 4)]
    engines = {role: {"backend": "sim", "device": {"name": "both"}} for role in ("d", "t")}
    found = over_time(write(tmp_path, calls=calls, chains=[chain("a", 0, 5)], steps=[], card=card(0, 5, engines=engines)))
    both = found.devices["both"]
    assert (both.roles, both.total_busy_s) == (("d", "t"), 3)
    assert {cause: seconds for cause, seconds in both.total_idle_s.items() if seconds} == {"orchestration": 2}


@pytest.mark.parametrize(
    ("more", "again", "cause"),
    [({}, 0, "orchestration"), ({"schedule": "lockstep"}, 0, "barrier"), ({"schedule": "lockstep"}, 1, "recovery")],
)
def test_a_call_that_is_ready_and_not_sent(tmp_path: Path, more: dict[str, Any], again: int, cause: str) -> None:
    calls = [call("a", "d", 0, 0, 1), call("a", "d", 1, 4, 6, attempt=again)]
    found = over_time(write(tmp_path, calls=calls, chains=[chain("a", 0, 6)], steps=[], card=card(0, 6, **more)))
    assert idle(found, "d") == {cause: 3}


def test_a_chain_between_calls_holds_up_the_engine_that_it_comes_to_next(tmp_path: Path) -> None:
    calls = [call("a", "d", 0, 0, 1), call("a", "t", 3, 3, 5), call("b", "t", 0, 0, 0.5), call("b", "d", 9, 9, 10)]
    rows = [chain("a", 0, 6), chain("b", 0, 10), chain("c", 10, 10)]
    found = over_time(write(tmp_path, calls=calls, chains=rows, steps=[], card=card(0, 10)))
    # t: from 1 to 3 chain a comes to it; from 5 to 6 chain a ends and holds its place
    assert idle(found, "t") == {"orchestration": 3, "other_engine": 4.5}
    assert idle(found, "d") == {"orchestration": 8}


def test_time_between_sessions_is_no_time(tmp_path: Path) -> None:
    calls = [call("a", "d", 0, 0, 2), call("a", "t", 100, 100, 103)]
    sessions = [session for since, until in ((0, 2), (99, 103)) for session in card(since, until)["sessions"]]
    run = write(tmp_path, calls=calls, chains=[chain("a", 0, 103)], steps=[], card=card(0, 1, sessions=sessions))
    found = over_time(run)
    assert found.span_s == 6
    assert idle(found, "t") == {"orchestration": 1, "other_engine": 2}


def test_a_run_that_was_killed_has_chains_without_rows(tmp_path: Path) -> None:
    calls = [call("a", "d", 0, 0, 2), call("b", "d", 3, 3, 5)]
    found = over_time(write(tmp_path, calls=calls, closed=False), bins=5)
    assert found.span_s == 5
    assert found.live.tolist() == [1, 1, 1, 2, 2]  # what a did after its call is not known
    assert idle(found, "d") == {"other_engine": 1}


def test_runs_without_calls(tmp_path: Path) -> None:
    found = over_time(write(tmp_path / "none", calls=[], chains=[], steps=[], card=card(0, 4)), bins=2)
    assert idle(found, "d") == {"nothing_admitted": 4}
    assert found.engines["d"].idle_s["nothing_admitted"].tolist() == [2, 2]
    assert over_time(write(tmp_path / "nothing", calls=[], chains=[], steps=[])).span_s == 0
    with pytest.raises(InputError):
        over_time(tmp_path / "nowhere")


@pytest.mark.slow
def test_rows_in_any_order_come_to_the_same(tmp_path: Path) -> None:
    folder = solve_short(tmp_path).folder
    before = over_time(folder, bins=9)
    RunStore(folder).rewrite("calls", lambda rows: rows.take(np.random.default_rng(0).permutation(len(rows))))
    assert same(over_time(folder, bins=9), before)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["pipelined", "lockstep", "sequential"])
def test_a_whole_run_agrees_with_its_timeline_and_its_wall_time(tmp_path: Path, schedule: str) -> None:
    result = solve_short(tmp_path, schedule=schedule, batch_size=4)
    found, before = over_time(result.folder), summarize(result.folder)
    assert found.span_s == result.run.wall_time_s
    for role, engine in found.engines.items():
        assert engine.total_busy_s == pytest.approx(before.engines[role].busy_s, abs=1e-9)
        assert engine.total_busy_s + sum(engine.total_idle_s.values()) == pytest.approx(found.span_s, abs=1e-9)
        assert ("barrier" in idle(found, role)) == (schedule == "lockstep")


def test_the_example_that_explains_the_walk(tmp_path: Path) -> None:
    calls = [call("a", "d", 0, 1, 4), call("a", "t", 5, 5, 8), call("a", "t", 8, 9, 10)]
    found = over_time(write(tmp_path, calls=calls, chains=[chain("a", 0, 10)], steps=[], card=card(0, 10, batch_size=1)))
    assert (found.engines["d"].total_busy_s, idle(found, "d")) == (3, {"orchestration": 1, "other_engine": 6})
    assert (found.engines["t"].total_busy_s, idle(found, "t")) == (4, {"orchestration": 2, "other_engine": 4})


def test_an_engine_is_busy_while_it_is_on_any_of_its_replicas(tmp_path: Path) -> None:
    #     0 1 2 3 4 5 6 7 8 9
    # a 0 [d d t t]             replica 0; as many live as the batch size on both until 4
    # b 1 [d d d d d d d d]     replica 1, ends at 8; the run ends at 9
    calls = [call("a", "d", 0, 0, 2, replica=0), call("a", "t", 2, 2, 4, replica=0), call("b", "d", 0, 0, 8, replica=1)]
    rows = [chain("a", 0, 4, replica=0), chain("b", 0, 8, replica=1, input_row=2)]
    two = card(0, 9, batch_size=1, replicas=2, input=RUN_JSON["input"] | {"rows": 2})
    found = over_time(write(tmp_path, calls=calls, chains=rows, steps=[], card=two), bins=9)
    assert (found.engines["d"].total_busy_s, found.overlap_s) == (8, 2)
    assert idle(found, "t") == {"other_engine": 2, "tail": 4, "nothing_admitted": 1}


def test_what_cannot_be_read_and_a_clock_that_stepped_back(tmp_path: Path) -> None:
    found = over_time(write(tmp_path / "instant", calls=[call("a", "d", 5, 5, 5), call("a", "d", 5, 5, 3)]))
    assert found.engines["d"].total_busy_s == 0
    (write_run_json(tmp_path) / "calls").mkdir()
    (tmp_path / "calls" / "part-00000.parquet").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot be read"):
        over_time(tmp_path)


def test_pauses_are_left_out_of_time_and_a_call_before_the_start_moves_it(tmp_path: Path) -> None:
    axis = Axis(10, ((20, 30), (50, 51)))
    assert [axis.of(instant) for instant in (10, 20, 25, 30, 50, 51, 60)] == [0, 10, 10, 10, 30, 30, 39]
    work = read_work(Query(write(tmp_path, calls=[call("a", "d", -1, -1, 3)], chains=[chain("a", 0, 9)], card=card(0, 9))))
    assert (work.span, work.lives.start.tolist()) == (10 * S, [S])


@pytest.mark.parametrize("compiled_from", [100, pytest.param(0, marks=pytest.mark.slow)])
@given(rows=random_calls, lives=random_lives, bins=st.integers(1, 7), lockstep=st.booleans())
def test_it_agrees_with_the_reference(rows: Any, lives: Any, bins: int, lockstep: bool, compiled_from: int) -> None:
    chains, calls = lives_of(lives), calls_of(rows)
    rules = rules_of(bins, chains, lockstep=lockstep)
    found = occupancy_sums(rules, chains, calls, compiled_from=compiled_from)
    rows = [found.open[0], found.overlap, *found.open[1 : 1 + 2 * ENGINES], *found.spent.reshape(-1, bins)]
    assert np.array(rows).tolist() == reference.occupancy_sums(rules, chains, calls).tolist()


@given(random_calls, random_lives, st.integers(1, 7))
def test_every_nanosecond_counts_once(rows: Any, lives: Any, bins: int) -> None:
    chains, calls = lives_of(lives), calls_of(rows)
    rules = rules_of(bins, chains)
    spent = occupancy_sums(rules, chains, calls).spent
    for group, engines in enumerate(([0], [1], [2], [0, 1])):
        assert spent[group].sum(axis=0).tolist() == np.diff(rules.edges).tolist()
        mine = [set(range(s, e)) for engine, s, e in zip(calls.engine, calls.submit, calls.end, strict=True) if engine in engines]
        assert spent[group, 0].sum() == len(set().union(*mine))
