"""The client queue of one engine: which call is sent next, and how many may be in flight. Decides synchronously; never waits.

What holds whenever no method runs: `in_flight` is at most `max_in_flight`, and a call that was put waits, or has started, or has left.
"""

from itertools import takewhile

from pipeline.engine import Request
from pipeline.system.ageing_queue import AgeingQueue


class Call:
    """One request in a client queue: which stage and chain it comes from, and whether it was started. `order` is the number of its chain in
    the input."""

    __slots__ = ("order", "request", "stage", "started")

    def __init__(self, stage: str, order: int, request: Request) -> None:
        self.stage, self.order, self.request = stage, order, request
        self.started = False


class _Stage:
    """The calls of one stage that are in flight, and how long its texts are."""

    __slots__ = ("ended", "most", "prompts", "running", "sequences", "written")

    def __init__(self) -> None:
        self.prompts = self.sequences = self.ended = self.written = self.most = 0
        """Tokens of the prompts in flight, texts in flight, calls that have ended, the tokens of their mean texts, and how many a text may
        have."""
        self.running: dict[str, int] = {}
        """By the id of the request, oldest first, the tokens that a text of each call in flight has at least."""

    @property
    def length(self) -> float:
        """Tokens that a text is expected to come to.

        All tokens that were written, over the texts that have ended, as for lifetimes of which some still run: the short texts end first,
        and would represent all if those in flight did not count. One text of half of what it may have is taken to have ended before, so
        that a single short one is not believed.
        """
        return min(self.most, (self.most / 2 + self.written + sum(self.running.values())) / (1 + self.ended))

    def begin(self, request: Request) -> None:
        """A call is sent."""
        self.most = max(self.most, request.max_tokens)
        self.prompts += len(request.prompt_ids)
        self.sequences += request.n
        self.running[request.request_id] = 0

    def end(self, request: Request, tokens: int | None) -> None:
        """A call has ended with a mean text of that many tokens, or None without an answer: those that began before it have written as
        much by now."""
        if tokens is not None:
            for other in takewhile(lambda other: other != request.request_id, self.running):
                self.running[other] = max(self.running[other], tokens)
            self.ended, self.written = self.ended + 1, self.written + tokens
        del self.running[request.request_id]
        self.prompts -= len(request.prompt_ids)
        self.sequences -= request.n


class CallRoom:
    """The cache of one engine, as far as calls in flight fill it: what they are expected to come to, from those that have ended."""

    def __init__(self, tokens: float) -> None:
        """`tokens`: whose keys and values are to fit into it."""
        self._tokens = tokens
        self._stages: dict[str, _Stage] = {}

    @property
    def is_full(self) -> bool:
        """True if the calls in flight are expected to fill it. The last of them may go beyond it: a part that is smaller than a call
        would stay empty."""
        return sum(each.prompts + each.sequences * each.length for each in self._stages.values()) >= self._tokens

    def begin(self, stage: str, request: Request) -> None:
        """A call of the stage is sent."""
        self._stages.setdefault(stage, _Stage()).begin(request)

    def end(self, stage: str, request: Request, tokens: int | None) -> None:
        """A call that had begun has ended; `tokens` is the mean of its texts, None where it has none."""
        self._stages[stage].end(request, tokens)


class Lane:
    """Orders the calls for one engine: the one with the fewest expected output tokens first, then the one of the oldest chain.

    So judge calls overtake fallbacks, and old chains finish and free their KV cache. The expectation for a stage is the running
    mean of its output tokens. No call waits forever (`AgeingQueue`). With a `room` none starts while those in flight fill it.
    """

    def __init__(self, role: str, max_in_flight: int, room: CallRoom | None = None) -> None:
        self.role, self.max_in_flight, self._room = role, max_in_flight, room
        self.in_flight = 0
        self._expected: dict[str, float] = {}
        """Running mean of output tokens, by stage."""
        self._queue: AgeingQueue[Call] = AgeingQueue()

    @property
    def waiting(self) -> int:
        """The calls that wait."""
        return len(self._queue)

    def start(self, call: Call) -> bool:
        """Start `call` at once, where none waits and there is room; whether it was started."""
        if self.waiting or self._is_full:
            return False
        self._begin(call)
        return True

    def put(self, call: Call) -> None:
        """Add `call` to those that wait."""
        self._queue.put((self.expected_tokens(call), call.order), call)

    def take(self) -> Call | None:
        """The next call to send, or None while nothing may start."""
        if not self.waiting or self._is_full:
            return None
        call = self._queue.take()
        self._begin(call)
        return call

    def leave(self, call: Call, output_tokens: int | None = None) -> None:
        """`call` has ended, or was dropped before it started; `output_tokens` is the mean of its candidates, None without an answer."""
        if not call.started:
            self._queue.drop(call)
            return
        self.in_flight -= 1
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

    @property
    def _is_full(self) -> bool:
        return self.in_flight >= self.max_in_flight or (self._room is not None and self._room.is_full)

    def _begin(self, call: Call) -> None:
        if self._room is not None:
            self._room.begin(call.stage, call.request)
        self.in_flight += 1
        call.started = True
