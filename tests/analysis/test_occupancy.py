"""Busy, idle and why, by hand, cause by cause, and against the definition at each nanosecond; time without pauses."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.analysis.summary import summarize
from pipeline.analysis.time.occupancy import BINS, Occupancy, Spent, occupancy
from pipeline.analysis.time.walk import (
    BARRIER,
    BUSY,
    NOTHING_ADMITTED,
    ORCHESTRATION,
    OTHER_ENGINE,
    RECOVERY,
    TAIL,
    IdleRules,
    occupancy_sums,
)
from pipeline.analysis.time.work import FINISHED, LOST, OPEN, SLACK_NS, Array, Axis, Calls, Lives, read_work
from pipeline.errors import InputError
from pipeline.store.query import Query
from tests.support.run_files import RUN_JSON, write_run_json
from tests.support.runs import solve_short
from tests.support.traces import S, call, card, chain, write


def over_time(folder: Path, bins: int = BINS) -> Occupancy:
    """The occupancy of the run folder `folder`."""
    return occupancy(read_work(Query(folder)), bins)


def idle(spent: Spent) -> dict[str, float]:
    """Seconds by cause, without those that did not occur."""
    return {cause: seconds for cause, seconds in spent.total_idle_s.items() if seconds}


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
    assert idle(draft) == {"tail": 2, "nothing_admitted": 1}
    assert idle(target) == {"other_engine": 2, "tail": 1, "nothing_admitted": 1}
    assert target.idle_s["other_engine"].tolist() == [2, 0, 0]
    assert {name: each.roles for name, each in found.devices.items()} == {"one": ("d",), "two": ("t",)}
    assert found.devices["two"].total_busy_s == target.total_busy_s == 5


BOTH = {role: {"backend": "sim", "device": {"name": "both"}} for role in ("d", "t")}
PAUSED = [session for span in ((0, 2), (99, 103)) for session in card(*span)["sessions"]]
TWO = {"batch_size": 1, "replicas": 2, "input": RUN_JSON["input"] | {"rows": 2}}


@pytest.mark.parametrize(
    ("calls", "lives", "more", "place", "span", "busy", "expected"),
    [
        # engines on one device are busy and idle together
        ([("a", "d", 0, 0, 2), ("a", "t", 2, 3, 4)], [("a", 0, 5)], {"engines": BOTH}, "both", 5, 3, {"orchestration": 2}),
        # a call that is ready and not sent
        ([("a", "d", 0, 0, 1), ("a", "d", 1, 4, 6)], [("a", 0, 6)], {}, "d", 6, 3, {"orchestration": 3}),
        ([("a", "d", 0, 0, 1), ("a", "d", 1, 4, 6)], [("a", 0, 6)], {"schedule": "lockstep"}, "d", 6, 3, {"barrier": 3}),
        ([("a", "d", 0, 0, 1), ("a", "d", 1, 4, 6, 1)], [("a", 0, 6)], {"schedule": "lockstep"}, "d", 6, 3, {"recovery": 3}),
        # time between sessions is no time
        (
            [("a", "d", 0, 0, 2), ("a", "t", 100, 100, 103)], [("a", 0, 103)], {"sessions": PAUSED},
            "t", 6, 3, {"orchestration": 1, "other_engine": 2},
        ),
        # an engine is busy while it is on any replica, and as many chains may live as on all; `b` is on the other one, the run ends at 9
        (
            [("a", "d", 0, 0, 2), ("a", "t", 2, 2, 4), ("b", "d", 0, 0, 8, 0, 1)], [("a", 0, 4), ("b", 0, 8)], TWO,
            "t", 9, 2, {"other_engine": 2, "tail": 4, "nothing_admitted": 1},
        ),
        # a run that was killed has chains without rows: what `a` did after its call is not known
        ([("a", "d", 0, 0, 2), ("b", "d", 3, 3, 5)], [], None, "d", 5, 4, {"other_engine": 1}),
        ([], [], {}, "d", 4, 0, {"nothing_admitted": 4}),
    ],
)  # fmt: skip
def test_idle_time_by_cause(tmp_path: Path, calls: Any, lives: Any, more: Any, place: str, span: int, busy: float, expected: Any) -> None:
    """Calls: chain, engine, ready, sent, ended, and if given attempt and replica. `more` of `run.json`; None: the run was killed."""
    rows = [call(*each[:5], **dict(zip(("attempt", "replica"), (*each[5:], 0, 0), strict=False))) for each in calls]
    chains = [chain(*each, replica=number, input_row=number + 1) for number, each in enumerate(lives)]
    told: Any = {"sessions": []} if more is None else card(0, span, **more)
    found = over_time(write(tmp_path, calls=rows, chains=chains, steps=[], closed=more is not None, card=told), bins=span)
    spent = (found.engines | found.devices)[place]
    assert (found.span_s, spent.total_busy_s, idle(spent)) == (span, busy, expected)
    if more is None:
        assert found.live.tolist() == [1, 1, 1, 2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["pipelined", "lockstep", "sequential"])
def test_a_whole_run_agrees_with_its_timeline_and_its_wall_time(tmp_path: Path, schedule: str) -> None:
    result = solve_short(tmp_path, schedule=schedule, batch_size=4)
    found, before = over_time(result.folder), summarize(result.folder)
    assert found.span_s == result.run.wall_time_s
    for role, engine in found.engines.items():
        assert engine.total_busy_s == pytest.approx(before.engines[role].busy_s, abs=1e-9)
        assert engine.total_busy_s + sum(engine.total_idle_s.values()) == pytest.approx(found.span_s, abs=1e-9)
        assert ("barrier" in idle(engine)) == (schedule == "lockstep")


def test_what_cannot_be_read_a_clock_that_stepped_back_and_no_time_at_all(tmp_path: Path) -> None:
    found = over_time(write(tmp_path / "instant", calls=[call("a", "d", 5, 5, 5), call("a", "d", 5, 5, 3)]))
    assert found.engines["d"].total_busy_s == 0
    assert over_time(write(tmp_path / "nothing")).span_s == 0
    (write_run_json(tmp_path) / "calls").mkdir()
    (tmp_path / "calls" / "part-00000.parquet").write_bytes(b"nothing")
    for folder, said in ((tmp_path, "cannot be read"), (tmp_path / "nowhere", "expected a run folder")):
        with pytest.raises(InputError, match=said):
            over_time(folder)


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
    """The sums of each nanosecond by itself: an engine is busy, or idle for the first cause that holds."""
    groups = [[engine] for engine in range(ENGINES)] + [np.flatnonzero(on).tolist() for on in rules.devices]
    sums = np.zeros((2 + 2 * ENGINES + 7 * len(groups), len(rules.edges) - 1), np.int64)
    for instant in range(SPAN):
        live = int(((lives.start <= instant) & (instant < lives.end)).sum())
        busy, waits = (calls.submit <= instant) & (instant < calls.end), (calls.ready <= instant) & (instant < calls.submit)
        in_flight, waiting, again = (np.bincount(calls.engine[each], minlength=ENGINES) for each in (busy, waits, waits & calls.again))
        comes = set().union(*(holds_up(calls, lives, chain, instant) for chain in range(len(lives.start))))
        spent = np.zeros((len(groups), 7), np.int64)
        for place, group in enumerate(groups):
            causes = (
                (BUSY, in_flight[group].any()),
                (NOTHING_ADMITTED, not live),
                (RECOVERY, again[group].any()),
                (BARRIER if rules.lockstep else ORCHESTRATION, waiting[group].any()),
                (ORCHESTRATION, comes & {*group}),
                (TAIL, instant >= rules.last_admission and live < rules.full),
                (OTHER_ENGINE, True),
            )
            spent[place, next(cause for cause, holds in causes if holds)] = 1
        sums[:, np.searchsorted(rules.edges, instant, "right") - 1] += [live, (in_flight > 0).sum() > 1, *in_flight, *waiting, *spent.flat]
    return sums


@pytest.mark.parametrize("compiled_from", [100, pytest.param(0, marks=pytest.mark.slow)])
@given(rows=random_calls, lives=random_lives, bins=st.integers(1, 7), lockstep=st.booleans())
def test_it_agrees_with_the_definition_at_each_nanosecond(rows: Any, lives: Any, bins: int, lockstep: bool, compiled_from: int) -> None:
    """Of three engines, of which the first two are on one device."""
    chains, calls = lives_of(lives), calls_of(rows)
    edges, devices = np.rint(np.linspace(0, SPAN, bins + 1)).astype(np.int64), np.array([[True, True, False]])
    rules = IdleRules(edges, ENGINES, devices, lockstep, 3, int(chains.start.max()))
    found = occupancy_sums(rules, chains, calls, compiled_from=compiled_from)
    sums = [found.open[0], found.overlap, *found.open[1 : 1 + 2 * ENGINES], *found.spent.reshape(-1, bins)]
    assert np.array(sums).tolist() == by_definition(rules, chains, calls).tolist()
