"""How many calls fit into a cache together, as their texts are expected to come out: decided line by line."""

import heapq
import random
from statistics import fmean

from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine import Request
from pipeline.runtime.lane import Call, CallRoom, Lane


def request(name: int, prompt: int = 10, max_tokens: int = 90, n: int = 1) -> Request:
    return Request(request_id=str(name), prompt_ids=[1] * prompt, max_tokens=max_tokens, n=n)


def begun(room: CallRoom, *requests: Request, stage: str = "response") -> int:
    """How many of `requests`, in their order, began before the room was full."""
    for count, each in enumerate(requests):
        if room.is_full:
            return count
        room.begin(stage, each)
    return len(requests)


def test_texts_are_taken_to_be_half_as_long_as_they_may_be_until_some_have_ended() -> None:
    calls = [request(i) for i in range(12)]
    room = CallRoom(150)
    assert begun(room, *calls) == 3  # of 45 tokens, behind 10
    room.end("response", calls[2], 20)  # both older ones have 20 as well: 45 and 60 tokens of two texts
    assert begun(room, *calls[3:]) == 1  # of 52
    for each in (calls[0], calls[1], calls[3]):
        room.end("response", each, 20)
    assert begun(room, *calls[4:]) == 5  # of 25


def test_a_call_that_failed_teaches_nothing_and_frees_its_place() -> None:
    room = CallRoom(50)
    assert begun(room, request(0), request(1)) == 1
    room.end("response", request(0), None)
    assert begun(room, request(1), request(2)) == 1


def test_every_text_of_a_call_counts() -> None:
    assert begun(CallRoom(250), *[request(i, prompt=50, max_tokens=20, n=5) for i in range(9)]) == 3


def test_stages_are_expected_to_write_as_they_did() -> None:
    room, first = CallRoom(500), [request(i, prompt=1, max_tokens=400) for i in range(2)]
    assert begun(room, *first, stage="draft") == 2
    room.end("draft", first[1], 9)  # the one before it has 9 as well, and may be long yet: 218 tokens of two texts
    assert begun(room, *[request(i, prompt=1, max_tokens=400) for i in range(3, 9)], stage="answer") == 2


@given(st.integers(0, 1000), st.integers(1, 40))
def test_in_the_long_run_calls_in_flight_come_to_about_the_cache(seed: int, spread: int) -> None:
    """Texts of 90 tokens on average, whatever their spread, behind prompts of 10: a cache of 4,000 tokens holds 40 of them."""
    chance, lane = random.Random(seed), Lane("target", 500, CallRoom(4000))
    running: list[tuple[int, int, Call]] = []
    waiting = [Call("response", number, request(number, max_tokens=2000)) for number in range(300)]

    def begin(call: Call, now: int) -> None:
        tokens = 1 + int(chance.gammavariate(spread, 90 / spread))
        heapq.heappush(running, (now + tokens, call.order, call))
        lengths[call] = tokens

    lengths: dict[Call, int] = {}
    for call in waiting:
        begin(call, 0) if lane.start(call) else lane.put(call)
    in_flight = []
    while running:
        now, _, done = heapq.heappop(running)
        lane.leave(done, lengths[done])
        while (taken := lane.take()) is not None:
            begin(taken, now)
        in_flight.append(lane.in_flight)
    assert len(lengths) == 300
    assert 25 <= fmean(in_flight[100:200]) <= 60
