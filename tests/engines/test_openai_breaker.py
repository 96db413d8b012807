"""The circuit breaker of one replica, on given times."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.engines.openai.breaker import FAILURES_IN_ROW, FIRST_PAUSE_S, LONGEST_PAUSE_S, WINDOW, Breaker, Cause


def broken(now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES_IN_ROW):
        breaker.fail(now, "fails")
    return breaker


def probe(breaker: Breaker, cause: Cause | None) -> float:
    """The next probe at its time, with this result; that time."""
    at = breaker.probe_at
    assert breaker.begin_probe(at)
    breaker.end_probe(at, cause, "still fails")
    return at


def test_failures_in_a_row_open_it_and_a_success_between_them_does_not() -> None:
    breaker = Breaker()
    for _ in range(10):
        for _ in range(FAILURES_IN_ROW - 1):
            breaker.fail(1.0, "fails")
            assert breaker.closed
        for _ in range(FAILURES_IN_ROW):
            breaker.succeed(1.0)
    assert not broken().closed
    assert broken().cause == "errors"


def test_half_of_the_window_failing_opens_it() -> None:
    breaker = Breaker()
    for failures in range(1, WINDOW // 2 + 1):
        assert breaker.closed
        breaker.succeed(0.0)
        breaker.fail(0.0, "fails")
        assert breaker.closed == (failures < WINDOW // 2)


def test_pauses_double_up_to_a_bound_and_are_short_again_after_a_window_of_successes() -> None:
    breaker = broken()
    times = [0.0] + [probe(breaker, "errors") for _ in range(12)]
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses == [min(FIRST_PAUSE_S * 2**i, LONGEST_PAUSE_S) for i in range(12)]
    probe(breaker, None)
    for _ in range(FAILURES_IN_ROW):
        breaker.fail(1000.0, "fails again")
    assert breaker.probe_at == 1000.0 + LONGEST_PAUSE_S
    probe(breaker, None)
    for _ in range(WINDOW):
        breaker.succeed(2000.0)
    for _ in range(FAILURES_IN_ROW):
        breaker.fail(2000.0, "and again")
    assert breaker.probe_at == 2000.0 + FIRST_PAUSE_S


def test_a_probe_is_sent_when_it_is_due_and_only_one() -> None:
    breaker = broken()
    assert not breaker.begin_probe(breaker.probe_at - 0.01)
    assert breaker.begin_probe(breaker.probe_at)
    assert breaker.state == "half-open"
    assert not breaker.begin_probe(math.inf)
    breaker.hasten(0.0)
    assert not breaker.begin_probe(math.inf)
    breaker.end_probe(9.0, None)
    assert breaker.closed


def test_a_suspicion_is_probed_at_once_and_an_answer_forgets_it_but_not_the_failures_before_it() -> None:
    breaker = Breaker()
    for _ in range(FAILURES_IN_ROW - 1):
        breaker.fail(0.0, "fails")
        breaker.suspect(0.0, "silence", "is silent")
        assert (breaker.cause, breaker.probe_at, breaker.usable) == ("silence", 0.0, False)
        probe(breaker, None)
        assert breaker.closed
    breaker.fail(0.0, "fails")
    assert not breaker.closed


@pytest.mark.parametrize(("cause", "before", "after"), [("errors", True, True), ("refusal", True, False), ("silence", False, False)])
def test_whether_a_call_may_be_sent_there_in_need(cause: Cause, before: bool, after: bool) -> None:
    breaker = Breaker()
    breaker.suspect(0.0, cause, "is odd")
    assert breaker.usable == before
    probe(breaker, cause)
    assert (breaker.usable, breaker.confirmed) == (after, True)


def test_what_was_sent_before_the_errors_began_does_not_close_it() -> None:
    breaker = broken(now=5.0)
    breaker.succeed(sent=4.0)
    assert not breaker.closed
    breaker.succeed(sent=6.0)
    assert breaker.closed


def test_any_answer_of_a_silent_replica_closes_it() -> None:
    breaker = Breaker()
    breaker.suspect(5.0, "silence", "is silent")
    breaker.succeed(sent=4.0)
    assert breaker.closed


def test_a_refusal_outweighs_errors_and_a_confirmed_silence_stays() -> None:
    breaker = broken()
    breaker.suspect(1.0, "refusal", "wants a key")
    assert (breaker.cause, breaker.confirmed, breaker.words) == ("refusal", False, "wants a key")
    probe(breaker, "silence")
    breaker.suspect(2.0, "refusal", "wants a key")
    assert breaker.cause == "silence"


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), max_size=200))
def test_a_replica_that_always_answers_is_never_left_out(times: list[float]) -> None:
    breaker = Breaker()
    for now in sorted(times):
        breaker.succeed(now)
        assert breaker.closed
        assert not breaker.begin_probe(now)


EVENTS = st.sampled_from(["succeed", "fail", "suspect", "hasten", "begin", "end", "end well"])


@settings(deadline=None)
@given(st.lists(st.tuples(EVENTS, st.floats(0, 30), st.sampled_from(["errors", "silence", "refusal"])), max_size=200))
def test_whatever_happens_there_is_one_probe_at_most_and_a_way_back(events: list[tuple[str, float, Cause]]) -> None:
    breaker, now, on_the_way = Breaker(), 0.0, False
    for event, later, cause in events:
        now += later
        if event == "begin":
            begun = breaker.begin_probe(now)
            assert not (begun and on_the_way and breaker.state != "half-open")
            on_the_way = on_the_way or begun
        elif event.startswith("end") and breaker.state == "half-open":
            breaker.end_probe(now, None if event == "end well" else cause, "fails")
            on_the_way = False
        elif event == "succeed":
            breaker.succeed(now)
        elif event == "fail":
            breaker.fail(now, "fails")
        elif event == "suspect":
            breaker.suspect(now, cause, "is odd")
        elif event == "hasten":
            breaker.hasten(now)
        assert (breaker.cause is None) == breaker.closed
        assert breaker.closed == (breaker.probe_at == math.inf)
        assert breaker.closed or breaker.probe_at <= now + LONGEST_PAUSE_S
    if breaker.state == "open":
        assert breaker.begin_probe(max(now, breaker.probe_at))
    if breaker.state == "half-open":
        assert not breaker.begin_probe(math.inf)
        breaker.end_probe(now, None)
    assert breaker.closed
