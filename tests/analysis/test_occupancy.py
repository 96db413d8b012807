"""Busy, idle and why, by hand, cause by cause, and against the definition at each nanosecond; time without pauses."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.analysis.summary import summarize
from pipeline.analysis.time.idle import IdleRules, occupancy_sums
from pipeline.analysis.time.occupancy import BINS, Occupancy, occupancy
from pipeline.analysis.time.work import FINISHED, LOST, OPEN, SLACK_NS, Array, Axis, Calls, Lives, read_work
from pipeline.errors import InputError
from pipeline.store.query import Query
from tests.support.run_files import RUN_JSON, write_run_json
from tests.support.runs import solve_short
from tests.support.traces import S, call, card, chain, write


def over_time(folder: Path, bins: int = BINS) -> Occupancy:
    """The occupancy of the run folder `folder`."""
    return occupancy(read_work(Query(folder)), bins)


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
@pytest.mark.parametrize("schedule", ["pipelined", "lockstep", "sequential"])
def test_a_whole_run_agrees_with_its_timeline_and_its_wall_time(tmp_path: Path, schedule: str) -> None:
    result = solve_short(tmp_path, schedule=schedule, batch_size=4)
    found, before = over_time(result.folder), summarize(result.folder)
    assert found.span_s == result.run.wall_time_s
    for role, engine in found.engines.items():
        assert engine.total_busy_s == pytest.approx(before.engines[role].busy_s, abs=1e-9)
        assert engine.total_busy_s + sum(engine.total_idle_s.values()) == pytest.approx(found.span_s, abs=1e-9)
        assert ("barrier" in idle(found, role)) == (schedule == "lockstep")


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


ENGINES, SPAN = 3, 60
times = st.integers(0, SPAN)
random_calls = st.lists(st.tuples(st.integers(0, 5), st.booleans(), times, times, times, st.integers(0, ENGINES - 1)), max_size=25)
random_lives = st.lists(st.tuples(times, times, st.sampled_from([FINISHED, LOST, OPEN])), min_size=6, max_size=6)


def lives_of(rows: Sequence[tuple[int, int, int]]) -> Lives:
    """Chains; start and end in either order."""
    one, other, status = np.array(rows, np.int64).reshape(-1, 3).T
    return Lives(np.minimum(one, other), np.maximum(one, other), status)


def calls_of(rows: Sequence[Any]) -> Calls:
    """Calls in any order, as are the three times of each."""
    chain, again, *more = np.array([(*row[:2], *sorted(row[2:5]), *row[5:]) for row in rows], np.int64).reshape(-1, 6).T
    return Calls(chain, again.astype(bool), *more)


def holds_up(calls: Calls, lives: Lives, chain: int, instant: int) -> set[int]:
    """The engines for which a chain is between its calls: those of the next one and of what gets ready with it; at its end, all."""
    of_chain = calls.chain == chain
    rows = sorted(zip(*(column[of_chain].tolist() for column in (calls.ready, calls.end, calls.engine)), strict=True))
    if not lives.start[chain] <= instant < lives.end[chain] or any(ready <= instant < end for ready, end, _ in rows):
        return set()
    later = [row for row in rows if row[0] > instant]
    if not later:
        return set() if lives.status[chain] == OPEN else set(range(ENGINES))
    reach, engines = later[0][0], set()
    for ready, end, engine in later:
        if ready > min(reach, later[0][0] + SLACK_NS):
            break
        engines.add(engine)
        reach = max(reach, end)
    return engines


def by_definition(rules: IdleRules, lives: Lives, calls: Calls) -> Array:
    """The sums of each nanosecond by itself: an engine is busy, or idle for the first cause that holds, in the order of `CAUSES`."""
    groups = [[engine] for engine in range(ENGINES)] + [np.flatnonzero(on).tolist() for on in rules.devices]
    sums = np.zeros((2 + 2 * ENGINES + 7 * len(groups), len(rules.edges) - 1), np.int64)
    for instant in range(SPAN):
        live = int(((lives.start <= instant) & (instant < lives.end)).sum())
        busy, waits = (calls.submit <= instant) & (instant < calls.end), (calls.ready <= instant) & (instant < calls.submit)
        in_flight, waiting, again = (np.bincount(calls.engine[each], minlength=ENGINES) for each in (busy, waits, waits & calls.again))
        comes = set().union(*(holds_up(calls, lives, chain, instant) for chain in range(len(lives.start))))
        spent = np.zeros((len(groups), 7), np.int64)
        for place, group in enumerate(groups):
            ready = waiting[group].any()
            holds = [
                in_flight[group].any(),
                not live,
                again[group].any(),
                ready and rules.lockstep,
                ready or not comes.isdisjoint(group),
                instant >= rules.last_admission and live < rules.full,
                True,
            ]
            spent[place, holds.index(True)] = 1
        sums[:, np.searchsorted(rules.edges, instant, "right") - 1] += [live, (in_flight > 0).sum() > 1, *in_flight, *waiting, *spent.flat]
    return sums


@given(rows=random_calls, lives=random_lives, bins=st.integers(1, 7), lockstep=st.booleans())
def test_it_agrees_with_the_definition_at_each_nanosecond(rows: Any, lives: Any, bins: int, lockstep: bool) -> None:
    """Of three engines, of which the first two are on one device."""
    chains, calls = lives_of(lives), calls_of(rows)
    edges, devices = np.rint(np.linspace(0, SPAN, bins + 1)).astype(np.int64), np.array([[True, True, False]])
    rules = IdleRules(edges, ENGINES, devices, lockstep, 3, int(chains.start.max()))
    found = occupancy_sums(rules, chains, calls)
    sums = [found.open[0], found.overlap, *found.open[1 : 1 + 2 * ENGINES], *found.spent.reshape(-1, bins)]
    assert np.array(sums).tolist() == by_definition(rules, chains, calls).tolist()


def test_sums_are_exact_late_in_a_long_run() -> None:
    late = 2**61  # nanoseconds, of which a sum of four is beyond 64 bits
    chains = Lives(np.full(4, late), np.full(4, late + 5), np.full(4, FINISHED))
    rules = IdleRules(np.array([0, late + 5]), 1, np.array([[True]]), False, 4, late)
    assert occupancy_sums(rules, chains, calls_of([])).open.tolist() == [[20], [0], [0]]
