"""The chains that a control decides about: their modes, contexts and thoughts so far, and which of them are to speculate. Synchronous.

A chain that pauses (`pipeline.runtime.admission`) writes nothing, so it counts nowhere until it continues.
"""

import math
from collections.abc import Iterator, Sequence

from pipeline.runtime.speculation.modes import Mode
from pipeline.runtime.speculation.tuning import TUNING


class LiveChain:
    """A chain in its loop, as the controller knows it."""

    __slots__ = ("context", "direct_tokens_at_start", "interrupted", "mode", "speculates", "step_began", "written")

    def __init__(self, speculates: bool) -> None:
        self.speculates = speculates
        """True if it continues in rounds from its next boundary on."""
        self.mode: Mode | None = None
        """The mode of its step under way; None before its first one."""
        self.context = self.written = 0
        """Tokens of its context and of its thought at its last boundary."""
        self.step_began = 0.0
        """When its step step_began, or went on after a pause."""
        self.direct_tokens_at_start = 0.0
        """`LiveChains.direct_tokens` when its step began."""
        self.interrupted = False


class LiveChains:
    """The live chains by their order.

    What holds whenever no method runs: `counts`, `speculating` and the sums of contexts are those of the chains that run; those that pause
    keep the mode of their step and all that they wrote.
    """

    def __init__(self) -> None:
        self._running: dict[int, LiveChain] = {}
        self._paused: dict[int, LiveChain] = {}
        self.counts: dict[Mode, int] = {"speculative": 0, "direct": 0}
        """Running chains, by the mode of their current step."""
        self.speculating = 0
        """The number of running chains that are to speculate."""
        self.direct_tokens = 0.0
        """Tokens that a chain would have that was in direct mode since the beginning."""
        self.exhausted = False
        """True once no more chains will enter."""
        self._contexts = self._direct_tokens_at_starts = 0.0
        """`LiveChain.context` of all that run, and `LiveChain.start` of those in direct mode, added up."""
        self._ended = 0
        self._lengths = ExpectedRest()

    def __len__(self) -> int:
        """The number of running chains."""
        return len(self._running)

    def __contains__(self, order: int) -> bool:
        return order in self._running

    def __getitem__(self, order: int) -> LiveChain:
        return self._running[order]

    # Facts.

    @property
    def at_least_one(self) -> int:
        """The number of running chains, at least 1."""
        return max(len(self._running), 1)

    @property
    def context_sum(self) -> float:
        """Tokens in the contexts of all that run, what direct requests have written so far included; at least 1."""
        return max(self._contexts + self.counts["direct"] * self.direct_tokens - self._direct_tokens_at_starts, 1.0)

    @property
    def context(self) -> float:
        """The mean of the contexts."""
        return self.context_sum / self.at_least_one

    @property
    def some_pause(self) -> bool:
        """True if any chain pauses."""
        return bool(self._paused)

    @property
    def last(self) -> bool:
        """True if the running chains are the last ones of the run."""
        return self.exhausted and not self._paused

    @property
    def single(self) -> bool:
        """True if one chain is left of the run."""
        return self.last and len(self._running) == 1

    @property
    def horizon(self) -> float:
        return horizon(len(self._running) + len(self._paused), self._ended, self.exhausted)

    def rests(self) -> list[float]:
        """Tokens that the running chains are expected to write yet, longest first."""
        return sorted(self._lengths.rests([self._thought_tokens(chain) for chain in self._running.values()]), reverse=True)

    def direct(self) -> Iterator[tuple[int, LiveChain]]:
        """Those whose direct request may be under way and was not interrupted."""
        return ((order, chain) for order, chain in self._running.items() if chain.mode == "direct" and not chain.interrupted)

    # Events.

    def enter(self, order: int, share: float) -> None:
        """A chain begins; `share` of all are to speculate."""
        self._add(order, LiveChain(speculates=False), share)

    def leave(self, order: int) -> None:
        """A chain has ended."""
        chain = self._remove(order) if order in self._running else self._paused.pop(order)
        self._ended += 1
        self._lengths.ended(chain.written)

    def pause(self, order: int) -> None:
        """A chain pauses, in its step."""
        chain = self._running[order]
        mode = chain.mode
        self._paused[order] = self._remove(order)
        chain.mode = mode

    def resume(self, order: int, share: float, now: float) -> list[int]:
        """A chain continues its step; `share` of all are to speculate. Returns it where its direct request is not to be sent."""
        chain = self._paused.pop(order)
        mode, chain.mode = chain.mode, None
        self._add(order, chain, share)
        if mode is not None:
            self._begin_step(chain, mode, now)
        return self._to_interrupt([order])

    def step(self, order: int, context: int, now: float) -> Mode:
        """A chain begins a step, with that many tokens of context; returns its mode."""
        chain = self._running[order]
        self._end_step(chain)
        self._contexts += context - chain.context
        chain.context, chain.interrupted = context, False
        self._begin_step(chain, "speculative" if chain.speculates else "direct", now)
        assert chain.mode is not None
        return chain.mode

    def assign(self, count: int) -> list[int]:
        """Let `count` chains speculate: of those that change, the ones with the longest expected rest begin and the others end. Returns
        those whose direct request is to be interrupted."""
        change = count - self.speculating
        if not change:
            return []
        candidates = [(order, chain) for order, chain in self._running.items() if chain.speculates == (change < 0)]
        if abs(change) < len(candidates):
            rests = self._lengths.rests([self._thought_tokens(chain) for _, chain in candidates])
            ranked = sorted(zip(rests, candidates, strict=True), key=lambda item: item[0], reverse=change > 0)
            candidates = [candidate for _, candidate in ranked[: abs(change)]]
        self.speculating = count
        for _, chain in candidates:
            chain.speculates = change > 0
        return self._to_interrupt([order for order, _ in candidates])

    def _to_interrupt(self, orders: list[int]) -> list[int]:
        """Those of `orders` that are to speculate and are in direct mode, which is noted."""
        found = []
        for order in orders:
            chain = self._running[order]
            if chain.speculates and chain.mode == "direct" and not chain.interrupted:
                chain.interrupted = True
                found.append(order)
        return found

    def _add(self, order: int, chain: LiveChain, share: float) -> None:
        chain.speculates = self.speculating < share * (len(self._running) + 1)
        self.speculating += chain.speculates
        self._contexts += chain.context
        self._running[order] = chain

    def _remove(self, order: int) -> LiveChain:
        chain = self._running.pop(order)
        self._end_step(chain)
        self._contexts -= chain.context
        self.speculating -= chain.speculates
        return chain

    def _begin_step(self, chain: LiveChain, mode: Mode, now: float) -> None:
        chain.mode, chain.step_began = mode, now
        self.counts[mode] += 1
        if mode == "direct":
            chain.direct_tokens_at_start = self.direct_tokens
            self._direct_tokens_at_starts += chain.direct_tokens_at_start

    def _end_step(self, chain: LiveChain) -> None:
        if chain.mode is not None:
            self.counts[chain.mode] -= 1
            if chain.mode == "direct":
                self._direct_tokens_at_starts -= chain.direct_tokens_at_start
            chain.mode = None

    def _thought_tokens(self, chain: LiveChain) -> float:
        return chain.written + (self.direct_tokens - chain.direct_tokens_at_start if chain.mode == "direct" else 0.0)


class ExpectedRest:
    """Lengths as log-normal; the mean of their logarithm is estimated from thoughts that ended and those that have not."""

    def __init__(self) -> None:
        self._count = 0
        self._sum = 0.0

    def ended(self, tokens: int) -> None:
        """A thought of that many tokens ended."""
        self._count += 1
        self._sum += math.log(max(tokens, 1))

    def rests(self, written: Sequence[float]) -> list[float]:
        """Expected number of tokens still missing from thoughts of which that many are `written`."""
        known = [math.log(max(tokens, 1.0)) for tokens in written]
        mean = (self._sum + sum(known)) / (self._count + len(known)) if self._count else max(known, default=0.0)
        for _ in range(3):  # those that have not ended count with the length that is expected of them
            longer = sum(_mean_above((at - mean) / TUNING.length_sigma) * TUNING.length_sigma + mean for at in known)
            mean = (self._sum + longer) / max(self._count + len(known), 1)
        return [_rest(tokens, (at - mean) / TUNING.length_sigma) for tokens, at in zip(written, known, strict=True)]


def _above(z: float) -> float:
    """The chance that a standard normal number is above `z`."""
    return max(0.5 * math.erfc(z / math.sqrt(2)), 1e-12)


def _mean_above(z: float) -> float:
    """The mean of standard normal numbers above `z`."""
    return max(math.exp(-z * z / 2) / math.sqrt(2 * math.pi) / _above(z), z)


def _rest(tokens: float, z: float) -> float:
    """Mean of a log-normal length given that it exceeds `tokens`, which lie at `z`, less `tokens`."""
    z = min(z, 6.0)
    sigma = TUNING.length_sigma
    mean = max(tokens, 1.0) * math.exp(-sigma * z + sigma * sigma / 2) * _above(z - sigma) / _above(z)
    return max(mean - tokens, 1.0)


def horizon(live: int, ended: int, exhausted: bool) -> float:
    """The least factor by which a run is expected to take longer than until now, of whose chains some are `live` and some have `ended`.

    Where none of n chains has ended yet, the mean thought is longer than what was written by about the ratio of the mean to the
    least of n draws; this is it for log-normal lengths with a sigma of 0.7. While more chains come, as many are expected again as came.
    """
    longer = math.pow(1 + live / (1 + ended), 0.45)
    return (1 if exhausted else 2) * min(longer, TUNING.max_longer)
