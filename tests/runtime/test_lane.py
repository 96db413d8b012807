"""Who goes next, line by line: the lane decides without a clock."""

from pipeline.engine import Request
from pipeline.runtime.lane import Call, Lane
from pipeline.system.ageing_queue import FEW, OLDEST_EVERY, AgeingQueue


def call(stage: str, order: int, max_tokens: int = 100, options: tuple[int, ...] = ()) -> Call:
    return Call(stage, order, Request(request_id=f"{stage}/{order}", prompt_ids=[1], max_tokens=max_tokens, option_ids=options))


def put(lane: Lane, *calls: Call) -> None:
    for each in calls:
        lane.put(each)


def drain(lane: Lane) -> list[Call]:
    return list(iter(lane.take, None))


def test_no_more_than_max_in_flight_start_and_the_shortest_goes_first() -> None:
    lane = Lane("target", 2)
    put(lane, call("draft", 0), call("verify", 1, 1, (1, 2)), call("draft", 2), gone := call("draft", 1))
    lane.leave(gone)
    first, second = drain(lane)
    assert (first.stage, second.order) == ("verify", 0)
    assert (lane.in_flight, lane.waiting) == (2, 1)
    lane.leave(first, 7)
    assert [each.order for each in drain(lane)] == [2]


def test_a_choice_overtakes_a_fallback_and_the_oldest_chain_goes_first_also_in_the_engine() -> None:
    lane = Lane("target", 8)
    calls = [call("fallback", 0), call("verify", 5, 1, (1, 2)), call("verify", 3, 1, (1, 2)), call("fallback", 1)]
    put(lane, *calls)
    assert drain(lane) == [calls[place] for place in (2, 1, 0, 3)] == sorted(calls, key=lane.priority)


def test_the_expected_service_is_learnt_from_what_a_stage_wrote() -> None:
    lane = Lane("target", 1)
    put(lane, call("answer", 0, max_tokens=1000))
    answered = lane.take()
    assert answered is not None
    lane.leave(answered, 5)
    put(lane, call("fallback", 1, max_tokens=50), call("answer", 2, max_tokens=1000))
    assert [c.stage for c in drain(lane)] == ["answer"]


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


def test_items_that_have_left_are_forgotten_whatever_their_keys() -> None:
    """Late ones leave by age, beneath early ones of which there always are some that wait."""
    queue = AgeingQueue[int]()
    for item in range(9000):
        queue.put(item % 8 == 0, item)
        if item >= 64:
            queue.take()
    assert len(queue._heap) <= FEW + 2 * len(queue)
