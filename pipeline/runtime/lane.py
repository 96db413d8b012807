"""The client queue of one engine: which call is sent next, and how many may be in flight. Decides synchronously; never waits.

What holds whenever no method runs: `in_flight` is at most `max_in_flight`, and every call that waits is in both `_ready`, by expected
length, and `_arrivals`, by age; a call that has started or was dropped may still be in one of them and is skipped there.
"""

import heapq
from collections import deque
from typing import Any

from msgspec import Struct

from pipeline.engine import Request
from pipeline.runtime.admission.call_room import CallRoom
from pipeline.system.heaps import forget

MAX_OVERTAKES = 8
"""A waiting call is overtaken by at most this many times `max_in_flight` others."""


class Call:
    """One request in a client queue: which stage and chain it comes from, and whether it was started.

    `order` is the number of its chain in the input; `interrupted`: its chain no longer wants it. When the call starts, the queue fills in
    how many calls are then in flight at the engine and of the stage, and how many wait.
    """

    __slots__ = (
        "arrival",
        "cancelled",
        "gate",
        "in_flight_engine",
        "in_flight_stage",
        "interrupted",
        "order",
        "request",
        "stage",
        "started",
        "waiting_engine",
    )

    def __init__(self, stage: str, order: int, request: Request) -> None:
        self.stage, self.order, self.request = stage, order, request
        self.started = self.cancelled = self.interrupted = False
        self.gate: Any = None
        """The event that is set when the call starts; put here by the caller that waits for that."""
        self.arrival = self.in_flight_engine = self.in_flight_stage = self.waiting_engine = 0

    @property
    def waits(self) -> bool:
        """True if it was neither started nor dropped."""
        return not (self.started or self.cancelled)


class LaneStatistics(Struct, frozen=True):
    """The numbers of calls in flight and waiting at one moment."""

    in_flight: int
    waiting: int
    max_in_flight: int


class Lane:
    """Orders the calls for one engine: the one with the fewest expected output tokens first, then the one of the oldest chain.

    So judge calls overtake fallbacks, and old chains finish and free their KV cache. The expectation for a stage is the running
    mean of its output tokens. No call is overtaken without bound (`MAX_OVERTAKES`). With a `room` none starts while
    those in flight fill it.
    """

    def __init__(self, role: str, max_in_flight: int, room: CallRoom | None = None) -> None:
        self.role, self.max_in_flight, self._room = role, max_in_flight, room
        self.in_flight = self.waiting = 0
        self._stages: dict[str, int] = {}
        """Calls in flight, by stage."""
        self._expected: dict[str, float] = {}
        """Running mean of output tokens, by stage."""
        self._ready: list[tuple[int, int, int, Call]] = []
        self._arrivals: deque[tuple[int, Call]] = deque()
        """Every call that waits, oldest first, and with it how many calls had started before it came."""
        self._arrived = self._departed = 0

    def start(self, call: Call) -> bool:
        """Start `call` at once, where none waits and there is room; whether it was started."""
        if self.waiting or self._is_full:
            return False
        self._begin(call)
        return True

    def put(self, call: Call) -> None:
        """Add `call` to those that wait."""
        self._arrived += 1
        call.arrival = self._arrived
        heapq.heappush(self._ready, (self.expected_tokens(call), call.order, call.arrival, call))
        self._arrivals.append((self._departed, call))
        self.waiting += 1

    def take(self) -> Call | None:
        """The next call to send, or None while nothing may start."""
        if not self.waiting or self._is_full:
            return None
        call = self._overdue() or self._shortest()
        self.waiting -= 1
        self._begin(call)
        forget(self._ready, self.waiting, lambda entry: entry[-1].waits)
        return call

    def leave(self, call: Call, output_tokens: int | None = None) -> None:
        """`call` has ended, or was dropped before it started; `output_tokens` is the mean of its candidates, None without an answer."""
        if not call.started:
            call.cancelled = True
            self.waiting -= 1
            return
        self.in_flight -= 1
        self._stages[call.stage] -= 1
        if self._room is not None:
            self._room.end(call.stage, call.request, output_tokens)
        if output_tokens is not None:
            mean = self._expected.get(call.stage, float(output_tokens))
            self._expected[call.stage] = mean + 0.05 * (output_tokens - mean)

    def expected_tokens(self, call: Call) -> int:
        """Output tokens to expect of `call`: 1 for a choice, else the mean of its stage so far, at first its `max_tokens`."""
        if call.request.option_ids:
            return 1
        return round(self._expected.get(call.stage, call.request.max_tokens))

    def priority(self, call: Call) -> int:
        """The same order as one number, lower first, for engines that order their own queue."""
        return self.expected_tokens(call) * 1_000_000_000 + call.order

    def statistics(self) -> LaneStatistics:
        """The numbers of calls in flight and waiting now."""
        return LaneStatistics(self.in_flight, self.waiting, self.max_in_flight)

    @property
    def _is_full(self) -> bool:
        return self.in_flight >= self.max_in_flight or (self._room is not None and self._room.is_full)

    def _begin(self, call: Call) -> None:
        call.started = True
        if self._room is not None:
            self._room.begin(call.stage, call.request)
        self._departed += 1
        call.in_flight_engine = self.in_flight = self.in_flight + 1
        call.in_flight_stage = self._stages[call.stage] = self._stages.get(call.stage, 0) + 1
        call.waiting_engine = self.waiting

    def _overdue(self) -> Call | None:
        """The call that has waited longest, if it was overtaken too often; else None."""
        while not self._arrivals[0][1].waits:
            self._arrivals.popleft()
        departed, call = self._arrivals[0]
        return call if self._departed - departed >= MAX_OVERTAKES * self.max_in_flight else None

    def _shortest(self) -> Call:
        """The waiting call with the fewest expected output tokens, of the oldest chain among equals."""
        while True:
            call = heapq.heappop(self._ready)[-1]
            if call.waits:
                return call
