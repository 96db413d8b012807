"""Finds out whether replicas that failed answer again, and whether all of them are gone for good.

Suspicions enter; probes leave, one at a time for each replica; calls wait here for a replica that may be sent one. What a failure
means is decided in `pipeline.engines.openai.breaker`, which replica gets a call in `pipeline.engines.openai.routing`.
"""

from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

import anyio

from pipeline.engines.openai.breaker import Cause
from pipeline.engines.openai.routing import Router

LOOK_EVERY_S = 0.5
"""How often it is looked whether a replica is silent."""
REFUSED_S = 5.0
"""When all replicas have refused everything for this long, or answered nonsense, the engine is dead: a key that has expired does not become
valid again, and what speaks another language is another server."""
_SLICES = 8
_SLICE_S = 1.0
"""A wait with a limit is cut into at least `_SLICES`, none longer than `_SLICE_S` seconds: what one of them takes longer, because this
process did not run, does not count."""


class Probe(NamedTuple):
    """What a probe of a replica has found."""

    cause: Cause | None
    """Why it failed; None where the replica has answered."""
    words: str = ""
    """How it failed, as the end of a sentence."""


class Owner(NamedTuple):
    """What an engine does for the recovery of its replicas; a replica is given by its index."""

    start: Callable[[Callable[[], Awaitable[None]]], None]
    """Starts a task that lives no longer than the engine."""
    probe: Callable[[int], Awaitable[Probe]]
    """Sends the replica a small request."""
    abandon: Callable[[int, float], None]
    """Takes away the calls that a replica has had for that many seconds."""
    die: Callable[[str], None]
    """Makes every call fail from now on, for this reason."""


class Recovery:
    """The probes of one engine's replicas, and the calls that wait for them."""

    def __init__(self, router: Router, reconnect_s: float, owner: Owner) -> None:
        """When no replica may be sent a call for `reconnect_s`, the engine is dead."""
        self._router, self._reconnect_s, self._owner = router, reconnect_s, owner
        self._changed = anyio.Event()
        """Set, and replaced, whenever a probe has ended or is due at once."""
        self._recovering: set[int] = set()
        self._outage = False
        """Whether it is being waited for any replica at all."""

    def begin(self, index: int) -> None:
        """The breaker of a replica may have opened: if so, probe the replica until it answers."""
        if not self._router.replicas[index].breaker.closed and index not in self._recovering:
            self._recovering.add(index)
            self._owner.start(lambda: self._recover(index))
        if not self._router.usable and not self._outage:
            self._outage = True
            self._owner.start(self._await_any)

    def answered(self, index: int, sent: float) -> None:
        """A replica has answered a call that was sent at `sent`."""
        breaker = self._router.replicas[index].breaker
        before = breaker.state
        self._router.answered(index, sent, anyio.current_time())
        if breaker.state != before:
            self._change()

    async def place(self, affinity: str, tried: Collection[int]) -> int:
        """The replica for one more call, as soon as there is one; see `Router.take`."""
        while (index := self._router.take(affinity, anyio.current_time(), tried)) is None:
            await self._changed.wait()
        return index

    async def examine(self, index: int, words: str) -> Cause | None:
        """What is wrong with the replica, which has refused a request as `words` say; None: it answers a probe, so the request was."""
        breaker = self._router.replicas[index].breaker
        breaker.suspect(anyio.current_time(), "refusal", words)
        self.begin(index)
        probes = breaker.probes
        while not breaker.closed and breaker.probes == probes:
            await self._changed.wait()
        return breaker.cause

    async def wait_answering(self) -> bool:
        """Ask all replicas now. False: one of them answers, as before. True: none did, and one answers again."""
        now, away = anyio.current_time(), not self._router.any_closed
        breakers = [replica.breaker for replica in self._router.replicas]
        probes = [breaker.probes for breaker in breakers]
        for index, breaker in enumerate(breakers):
            breaker.suspect(now, "errors", breaker.words)
            breaker.hasten(now)
            self.begin(index)
        self._change()
        while not self._router.any_closed and any(each.probes == before for each, before in zip(breakers, probes, strict=True)):
            await self._changed.wait()
        away = away or not self._router.any_closed
        await self._until(lambda: self._router.any_closed)
        return away

    async def watch(self) -> None:
        """Suspect replicas that have calls and answer none of them, and free calls that wait for a slow one; runs until it is cancelled."""
        while True:
            asleep = anyio.current_time()
            await anyio.sleep(LOOK_EVERY_S)
            now = anyio.current_time()
            if now - asleep > 2 * LOOK_EVERY_S:
                self._router.skip(now - asleep)
            for index in self._router.silent(now):
                words = f"has answered nothing for {self._router.silence_s:.3g} s with calls in flight"
                self._router.replicas[index].breaker.suspect(now, "silence", words)
                self.begin(index)
            for index, overdue_s in self._router.overdue():
                self._owner.abandon(index, overdue_s)

    async def _recover(self, index: int) -> None:
        """Probe a replica, after pauses that grow, until it answers."""
        breaker = self._router.replicas[index].breaker
        while not breaker.closed:
            now = anyio.current_time()
            if not breaker.begin_probe(now):
                with anyio.move_on_after(max(0.0, breaker.probe_at - now)):
                    await self._changed.wait()
                continue
            found = await self._owner.probe(index)
            breaker.end_probe(anyio.current_time(), found.cause, found.words)
            if found.cause == "silence" and not breaker.closed:
                self._owner.abandon(index, 0.0)
            self._change()
            self.begin(index)
        self._recovering.discard(index)

    async def _await_any(self) -> None:
        """Give the engine up where no replica may be sent a call for too long."""
        await self._until(lambda: self._router.usable)
        self._outage = False

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for `condition`; when that takes too long, the engine is dead."""
        waited_s = 0.0
        while not condition():
            refused = self._refused
            limit_s = 0.0 if refused == "closure" else min(REFUSED_S, self._reconnect_s) if refused else self._reconnect_s
            if waited_s >= limit_s:
                self._owner.die(self._reason(refused, limit_s))
                await anyio.sleep_forever()  # the caller is cancelled, as everybody is that waits for an answer
            slice_s, since = min(_SLICE_S, limit_s / _SLICES), anyio.current_time()
            with anyio.move_on_after(slice_s):
                await self._changed.wait()
            waited_s += min(slice_s, anyio.current_time() - since)

    @property
    def _refused(self) -> Cause | None:
        """Whether every replica refuses everything or answers nonsense, and says that it will stay so (`closure`), or may not."""
        breakers = [replica.breaker for replica in self._router.replicas]
        if not all(breaker.cause in ("refusal", "closure", "nonsense") and breaker.confirmed for breaker in breakers):
            return None
        causes = {breaker.cause for breaker in breakers}
        return causes.pop() if len(causes) == 1 else "refusal"

    def _reason(self, refused: Cause | None, limit_s: float) -> str:
        words = next((replica.breaker.words for replica in self._router.replicas if replica.breaker.words), "it does not answer")
        if refused == "closure":
            return words
        if refused == "nonsense":
            return f"{words}; none of its servers has sent a valid answer for {limit_s:g} s"
        if refused:
            return f"{words}; all of its servers have rejected every request for {limit_s:g} s"
        return f"{words}; none of its servers has answered for reconnect_s={limit_s:g}"

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
