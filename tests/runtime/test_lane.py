"""Who goes next, line by line: the lane decides without a clock."""

import gc

from pipeline.engine import Request
from pipeline.runtime.lane import Call, Lane
from pipeline.system.ageing_queue import OLDEST_EVERY


def call(stage: str, order: int, max_tokens: int = 100, options: tuple[int, ...] = ()) -> Call:
    return Call(stage, order, Request(request_id=f"{stage}/{order}", prompt_ids=[1], max_tokens=max_tokens, option_ids=options))


def put(lane: Lane, *calls: Call) -> None:
    for each in calls:
        lane.put(each)


def drain(lane: Lane) -> list[Call]:
    return list(iter(lane.take, None))


def test_no_more_than_max_in_flight_start() -> None:
    lane = Lane("target", 2)
    put(lane, *(call("draft", i) for i in range(3)))
    first = drain(lane)
    assert [c.order for c in first] == [0, 1]
    assert (lane.in_flight, lane.waiting) == (2, 1)
    lane.leave(first[0], 7)
    assert [c.order for c in drain(lane)] == [2]


def test_a_choice_overtakes_a_fallback_and_the_oldest_chain_goes_first() -> None:
    lane = Lane("target", 8)
    put(lane, call("fallback", 0), call("verify", 5, 1, (1, 2)), call("verify", 3, 1, (1, 2)), call("fallback", 1))
    assert [(c.stage, c.order) for c in drain(lane)] == [("verify", 3), ("verify", 5), ("fallback", 0), ("fallback", 1)]


def test_the_expected_service_is_learnt_from_what_a_stage_wrote() -> None:
    lane = Lane("target", 1)
    put(lane, call("answer", 0, max_tokens=1000))
    answered = lane.take()
    assert answered is not None
    lane.leave(answered, 5)
    put(lane, call("fallback", 1, max_tokens=50), call("answer", 2, max_tokens=1000))
    assert [c.stage for c in drain(lane)] == ["answer"]


def test_priority_is_the_same_order_as_the_queue() -> None:
    lane = Lane("target", 8)
    calls = [call("fallback", 0), call("verify", 5, 1, (1, 2)), call("verify", 3, 1, (1, 2))]
    by_priority = sorted(calls, key=lane.priority)
    put(lane, *calls)
    assert drain(lane) == by_priority


def test_no_call_is_overtaken_without_bound() -> None:
    lane = Lane("target", 1)
    put(lane, call("verify", 0, 1, (1, 2)), call("fallback", 0))
    overtakes = 0
    while (taken := lane.take()) is not None and taken.stage == "verify":
        overtakes += 1
        put(lane, call("verify", overtakes, 1, (1, 2)))
        lane.leave(taken, 1)
    assert taken is not None
    assert taken.stage == "fallback"
    assert overtakes == OLDEST_EVERY - 1


def test_a_call_dropped_while_it_waits_is_passed_over() -> None:
    lane = Lane("target", 1)
    dropped, other = call("draft", 0), call("draft", 1)
    put(lane, dropped, other)
    lane.leave(dropped)
    assert drain(lane) == [other]
    assert (lane.in_flight, lane.waiting) == (1, 0)


def test_a_started_call_knows_what_was_around_it() -> None:
    lane = Lane("target", 2)
    put(lane, call("draft", 0), call("verify", 1, 1, (1, 2)), call("draft", 2))
    first, second = drain(lane)
    assert (first.stage, first.in_flight_engine, first.waiting_engine) == ("verify", 1, 2)
    assert (second.stage, second.in_flight_engine, second.waiting_engine) == ("draft", 2, 1)


def test_calls_that_have_ended_are_forgotten_whatever_they_were_expected_to_write() -> None:
    """Long ones start by age, beneath short ones of which there always are some that wait."""
    lane, before = Lane("target", 4), _calls()
    flying: list[Call] = []
    for order in range(1600):
        each = call("fallback", order, 1000) if order % 16 == 0 else call("verify", order, 1, (1, 2))
        put(lane, each)
        if order >= 64:
            lane.leave(flying.pop(0))
        flying += drain(lane)
    assert lane.waiting == 60
    del each
    assert _calls() - before < 400


def _calls() -> int:
    return sum(type(each) is Call for each in gc.get_objects())
