"""The replicas of one engine: which of them gets a call, which is out, and how it comes back.

A call goes to the replica with the fewest calls in flight. Three failures in a row put a replica out: it gets no calls until it answers a
small request, which is sent after pauses that grow. One that refuses a request is asked at once, because it may refuse everything.
While all are out, calls wait here; when that takes too long, the engine dies.
"""

import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial

import anyio

from pipeline.engines.openai.client import NoAnswer, Server, Verdict, quoted
from pipeline.system.tasks import gather

FAILURES_IN_ROW = 3
"""This many failures without a success between them put a replica out."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 10.0
"""First and longest wait before a replica that is out is asked; each is twice as long as the one before, until a call is answered."""
BUSY_S = 1.0
"""A replica that has too many requests (429) gets no new ones for this long, or as long as it asks, where others take them."""
REFUSED_S = 5.0
"""When all replicas have refused everything for this long, or answered nonsense, the engine is dead: what speaks another language is
another server."""
_REFUSALS: frozenset[Verdict] = frozenset({"refused", "overflow", "gone", "closed", "unreadable", "malformed"})


class ServerReplica:
    """The state of one replica."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.in_flight = 0
        """Calls that were sent there and have not ended."""
        self.calls = 0
        """All calls that were sent there."""
        self.failures = 0
        """Failures since its last success."""
        self.failure: NoAnswer | None = None
        """Why it is out; None: it gets calls."""
        self.busy_until = -math.inf
        """Until when it has asked for no more calls."""
        self.pause_s = FIRST_PAUSE_S
        self.asked_at = -math.inf
        """When the last small request was sent there."""
        self.asking = anyio.Lock()
        self.recovering = False


class Replicas:
    """The replicas of one engine. All times are those of the event loop, in seconds."""

    def __init__(
        self,
        servers: Sequence[Server],
        reconnect_s: float,
        probe: Callable[[Server], Awaitable[NoAnswer | None]],
        start: Callable[[Callable[[], Awaitable[None]]], None],
        die: Callable[[str], None],
    ) -> None:
        """`probe` sends a server a small request, and returns how that failed. `start` runs a task that lives no longer than the engine.
        `die` makes every call fail from now on: no replica was in for `reconnect_s`."""
        self.all = [ServerReplica(server) for server in servers]
        self._reconnect_s, self._probe, self._start, self._die = reconnect_s, probe, start, die
        self._changed = anyio.Event()
        """Set, and replaced, whenever a replica was asked."""
        self._outage = False

    @property
    def in_flight(self) -> int:
        """Calls in flight at all replicas."""
        return sum(replica.in_flight for replica in self.all)

    def has_other(self, tried: Collection[ServerReplica]) -> bool:
        """True if a replica that is not among `tried` gets calls."""
        return any(replica.failure is None and replica not in tried for replica in self.all)

    async def take(self, tried: Collection[ServerReplica] = ()) -> ServerReplica:
        """The replica for one more call, as soon as one gets calls; one in `tried`, at which the call has failed, only where there is no
        other. The caller counts the call's end in `in_flight`."""
        while True:
            now = anyio.current_time()
            if able := [replica for replica in self.all if replica.failure is None]:
                found = min(able, key=lambda each: (each in tried, each.busy_until > now, each.in_flight, each.calls))
                found.in_flight += 1
                found.calls += 1
                return found
            await self._changed.wait()

    def succeeded(self, replica: ServerReplica) -> None:
        """A call was answered, which also brings back a replica that was out for not answering."""
        replica.failures, replica.pause_s = 0, FIRST_PAUSE_S
        if replica.failure is not None and replica.failure.verdict == "failing":
            replica.failure = None
            self._change()

    def failed(self, replica: ServerReplica, failure: NoAnswer) -> None:
        """A call got no answer."""
        if failure.verdict == "busy":
            replica.busy_until = anyio.current_time() + (BUSY_S if failure.retry_after_s is None else failure.retry_after_s)
            return
        replica.failures += 1
        if replica.failures >= FAILURES_IN_ROW and replica.failure is None:
            self._put_out(replica, failure)

    async def answers(self, replica: ServerReplica) -> bool:
        """True if the replica answers a small request, sent after this was called; puts it out or back otherwise. Callers at the same time
        share one request."""
        called = anyio.current_time()
        async with replica.asking:
            if replica.asked_at < called:
                asked_at = anyio.current_time()
                failure = await self._probe(replica.server)
                replica.asked_at = asked_at
                if failure is not None:
                    self._put_out(replica, failure)
                else:
                    replica.failure, replica.failures = None, 0
                self._change()
        return replica.failure is None

    async def wait_answering(self) -> bool:
        """Ask all replicas now. False: one of them answers as before. True: none did, and one answers again."""
        away = not self.has_other(())
        if any(await gather([partial(self.answers, each) for each in self.all])):
            return away
        while not self.has_other(()):
            await self._changed.wait()
        return True

    def _put_out(self, replica: ServerReplica, failure: NoAnswer) -> None:
        replica.failure = failure
        if not replica.recovering:
            replica.recovering = True
            self._start(lambda: self._recover(replica))
        if not self._outage and not self.has_other(()):
            self._outage = True
            self._start(self._await_any)

    async def _recover(self, replica: ServerReplica) -> None:
        """Ask a replica that is out, after pauses that grow, until it answers."""
        while replica.failure is not None:
            await anyio.sleep(replica.pause_s)
            replica.pause_s = min(2 * replica.pause_s, LONGEST_PAUSE_S)
            await self.answers(replica)
        replica.recovering = False

    async def _await_any(self) -> None:
        """End the engine where all replicas are out for too long."""
        since = anyio.current_time()
        while not self.has_other(()):
            limit_s, suffix = self._limit()
            left_s = since + limit_s - anyio.current_time()
            if left_s <= 0:
                words = next(f"at {each.server.url} {quoted(str(each.failure))}" for each in self.all if each.failure is not None)
                self._die(words + suffix)
                return
            with anyio.move_on_after(left_s):
                await self._changed.wait()
        self._outage = False

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _limit(self) -> tuple[float, str]:
        """The time for which all replicas may be out, and the words about it."""
        verdicts = {replica.failure.verdict for replica in self.all if replica.failure is not None}
        limit_s = min(REFUSED_S, self._reconnect_s)
        if verdicts == {"closed"}:
            return 0.0, ""
        if verdicts <= {"unreadable", "malformed"}:
            return limit_s, f"; none of its servers has sent a valid answer for {limit_s:g} s"
        if verdicts <= _REFUSALS:
            return limit_s, f"; all of its servers have rejected every request for {limit_s:g} s"
        return self._reconnect_s, f"; none of its servers has answered for reconnect_s={self._reconnect_s:g}"
