"""Chooses the replica for each call, from what is known of each of them. Decides synchronously; never waits, sends nothing.

A chain stays with the replica that has its prefix, as long as that takes calls; a new chain goes where the fewest calls are in
flight. A replica that answers several times as slowly as another one counts its calls as often.
"""

import math
from collections import OrderedDict
from collections.abc import Collection, Iterable

from pipeline.engines.openai.breaker import Breaker

MAX_CHAINS = 65536
"""How many chains' replicas are remembered; the chain whose last call is longest ago is forgotten first."""
SLOW = 3.0
"""A replica is slow if its answers take this many times as long as those of the fastest; below that, who has more long calls decides."""
_SLACK_S = 0.1
"""Added to both times before they are compared: differences of milliseconds mean nothing."""
_FEW_ANSWERS = 3
"""A mean over fewer answers is not compared."""
SILENT_S = 2.0
"""A replica that has calls is silent at the earliest when it has answered none of them for this long."""
SILENT_TIMES = 3.0
"""And not before this many times the longest time that any answer took."""


class Replica:
    """What is known of one replica; times are in seconds of one clock."""

    def __init__(self) -> None:
        self.breaker = Breaker()
        self.in_flight = 0
        """Calls that were sent there and have not ended."""
        self.chains = 0
        """Chains that stay with it."""
        self.busy_until = -math.inf
        """Until when it has asked for no more calls."""
        self.mean_s = 0.0
        """Running mean of the time that its answers take."""
        self.longest_s = 0.0
        """Longest time that an answer took."""
        self.answers = 0
        """How many calls it has answered."""
        self.heard_s = -math.inf
        """When it last answered a call."""
        self.busy_s = -math.inf
        """When it last got a call while it had none."""


class Router:
    """The replicas of one engine, and which of them each chain stays with."""

    def __init__(self, replicas: int, max_chains: int = MAX_CHAINS) -> None:
        self.replicas = [Replica() for _ in range(replicas)]
        self._homes: OrderedDict[str, int] = OrderedDict()
        """The replica of each chain; the chain with the latest call comes last."""
        self._max_chains = max_chains

    @property
    def in_flight(self) -> int:
        """Calls in flight at all replicas."""
        return sum(replica.in_flight for replica in self.replicas)

    @property
    def usable(self) -> bool:
        """Whether any replica may be sent a call."""
        return any(replica.breaker.usable for replica in self.replicas)

    @property
    def any_closed(self) -> bool:
        """Whether any replica takes calls as usual."""
        return any(replica.breaker.closed for replica in self.replicas)

    def take(self, affinity: str, now: float, tried: Collection[int] = ()) -> int | None:
        """The replica for one more call of the chain `affinity`, by its index; None while none may be sent a call.

        A replica in `tried`, at which the call has failed, is taken only where there is no other.
        """
        index = self._choose(self._homes.get(affinity), now, tried)
        if index is None:
            return None
        if affinity:
            self._assign(affinity, index)
        replica = self.replicas[index]
        if not replica.in_flight:
            replica.busy_s = now
        replica.in_flight += 1
        return index

    def leave(self, index: int) -> None:
        """Count the end of a call to the replica."""
        self.replicas[index].in_flight -= 1

    def answered(self, index: int, sent: float, now: float) -> None:
        """The replica has answered a call that was sent at `sent`."""
        replica, took_s = self.replicas[index], now - sent
        replica.breaker.succeed(sent)
        replica.heard_s = now
        replica.answers += 1
        replica.mean_s += (took_s - replica.mean_s) * max(0.1, 1 / replica.answers)
        replica.longest_s = max(replica.longest_s, took_s)

    def has_other(self, tried: Collection[int]) -> bool:
        """Whether a replica that is not in `tried` takes calls."""
        return any(replica.breaker.closed for index, replica in enumerate(self.replicas) if index not in tried)

    def silent(self, now: float) -> list[int]:
        """Replicas that have calls and answer none of them, though others have answered since."""
        heard_s = max((replica.heard_s for replica in self.replicas if replica.breaker.closed), default=-math.inf)
        found = []
        for index, replica in enumerate(self.replicas):
            since_s = max(replica.heard_s, replica.busy_s)
            if replica.breaker.closed and replica.in_flight and now - since_s >= self.silence_s and heard_s > since_s:
                found.append(index)
        return found

    def overdue(self) -> list[tuple[int, float]]:
        """Slow replicas, each with the seconds after which a call there would sooner be answered by another one."""
        fastest_s = self._fastest_s
        return [
            (index, _patience_s(other for other in self.replicas if other is not replica and other.breaker.closed))
            for index, replica in enumerate(self.replicas)
            if replica.in_flight and self._slowness(index, fastest_s) > 1 and self.has_other((index,))
        ]

    @property
    def silence_s(self) -> float:
        """How long a replica that has calls may answer none of them."""
        return _patience_s(self.replicas)

    @property
    def probe_s(self) -> float:
        """How long a probe may take while others answer: as long as any call has."""
        return max(SILENT_S, *(replica.longest_s for replica in self.replicas))

    def skip(self, seconds: float) -> None:
        """For `seconds` no replica could be heard from: that time counts against none of them."""
        for replica in self.replicas:
            replica.heard_s += seconds
            replica.busy_s += seconds

    def _choose(self, home: int | None, now: float, tried: Collection[int]) -> int | None:
        ranks = [(not each.breaker.closed, index in tried, each.busy_until > now) for index, each in enumerate(self.replicas)]
        candidates = [index for index, replica in enumerate(self.replicas) if replica.breaker.usable]
        if not candidates:
            return None
        foremost = min(ranks[index] for index in candidates)
        candidates = [index for index in candidates if ranks[index] == foremost]
        if len(candidates) == 1:
            return candidates[0]
        fastest_s = self._fastest_s
        loads = {index: self._load(index, fastest_s) for index in candidates}
        best = min(candidates, key=lambda index: (loads[index], self.replicas[index].chains))
        stays = home in loads and (loads[home] <= loads[best] or self._slowness(home, fastest_s) == 1.0)
        return home if stays else best

    @property
    def _fastest_s(self) -> float:
        return min((replica.mean_s for replica in self.replicas if replica.answers >= _FEW_ANSWERS), default=0.0)

    def _load(self, index: int, fastest_s: float) -> float:
        return (self.replicas[index].in_flight + 1) * self._slowness(index, fastest_s)

    def _slowness(self, index: int, fastest_s: float) -> float:
        """How many times as long as those of the fastest replica its answers take; 1 where it is not slow."""
        replica = self.replicas[index]
        times = (replica.mean_s + _SLACK_S) / (fastest_s + _SLACK_S) if replica.answers >= _FEW_ANSWERS else 1.0
        return times if times >= SLOW else 1.0

    def _assign(self, affinity: str, index: int) -> None:
        before = self._homes.pop(affinity, None)
        if before is not None:
            self.replicas[before].chains -= 1
        self._homes[affinity] = index
        self.replicas[index].chains += 1
        if len(self._homes) > self._max_chains:
            _, forgotten = self._homes.popitem(last=False)
            self.replicas[forgotten].chains -= 1


def _patience_s(replicas: Iterable[Replica]) -> float:
    """How long to wait for an answer at most, from how long these have taken for theirs."""
    return max(SILENT_S, SILENT_TIMES * max((replica.longest_s for replica in replicas), default=0.0))
