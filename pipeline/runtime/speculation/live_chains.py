"""The chains that a control decides about: their modes, contexts and thoughts so far, and which of them are to speculate. Synchronous.

A chain that pauses (`pipeline.runtime.admission`) writes nothing, so it counts nowhere until it continues.
"""

from collections.abc import Iterator

from pipeline.runtime.speculation.expected_rest import ExpectedRest, horizon
from pipeline.runtime.speculation.modes import Mode


class LiveChain:
    """What is known of a chain in its loop."""

    __slots__ = ("began", "context", "interrupted", "mode", "speculates", "start", "written")

    def __init__(self, speculates: bool) -> None:
        self.speculates = speculates
        """Whether it is to continue in rounds from its next boundary on."""
        self.mode: Mode | None = None
        """The mode of its step under way; None before its first one."""
        self.context = self.written = 0
        """Tokens of its context and of its thought at its last boundary."""
        self.began = 0.0
        """When its step began, or went on after a pause."""
        self.start = 0.0
        """`LiveChains.direct_tokens` then."""
        self.interrupted = False


class LiveChains:
    """The live chains by their order.

    What holds whenever no method runs: `counts`, `speculating` and the sums of contexts are those of the chains that run; those that pause
    keep the mode of their step and all that they wrote.
    """

    def __init__(self) -> None:
        self._going: dict[int, LiveChain] = {}
        self._paused: dict[int, LiveChain] = {}
        self.counts: dict[Mode, int] = {"speculative": 0, "direct": 0}
        """Running chains, by the mode of their current step."""
        self.speculating = 0
        """How many of the running chains are to speculate."""
        self.direct_tokens = 0.0
        """Tokens that a chain would have that was in direct mode since the beginning."""
        self.exhausted = False
        """Whether no more chains will enter."""
        self._contexts = self._starts = 0.0
        """`LiveChain.context` of all that run, and `LiveChain.start` of those in direct mode, added up."""
        self._ended = 0
        self._lengths = ExpectedRest()

    def __len__(self) -> int:
        """How many go on."""
        return len(self._going)

    def __contains__(self, order: int) -> bool:
        return order in self._going

    def __getitem__(self, order: int) -> LiveChain:
        return self._going[order]

    # Facts.

    @property
    def at_least_one(self) -> int:
        """How many run, at least 1."""
        return max(len(self._going), 1)

    @property
    def context_sum(self) -> float:
        """Tokens in the contexts of all that run, what direct requests have written so far included; at least 1."""
        return max(self._contexts + self.counts["direct"] * self.direct_tokens - self._starts, 1.0)

    @property
    def context(self) -> float:
        """The mean of the contexts."""
        return self.context_sum / self.at_least_one

    @property
    def some_pause(self) -> bool:
        """Whether any pauses."""
        return bool(self._paused)

    @property
    def last(self) -> bool:
        """Whether those that run are the last ones."""
        return self.exhausted and not self._paused

    @property
    def single(self) -> bool:
        """Whether one chain is left of the run."""
        return self.last and len(self._going) == 1

    @property
    def horizon(self) -> float:
        return horizon(len(self._going) + len(self._paused), self._ended, self.exhausted)

    def rests(self) -> list[float]:
        """Tokens that the running chains are expected to write yet, longest first."""
        return sorted(self._lengths.rests([self._thought(chain) for chain in self._going.values()]), reverse=True)

    def direct(self) -> Iterator[tuple[int, LiveChain]]:
        """Those whose direct request may be under way and was not interrupted."""
        return ((order, chain) for order, chain in self._going.items() if chain.mode == "direct" and not chain.interrupted)

    # Events.

    def enter(self, order: int, share: float) -> None:
        """A chain begins; `share` of all are to speculate."""
        self._go_on(order, LiveChain(speculates=False), share)

    def leave(self, order: int) -> None:
        """A chain has ended."""
        chain = self._stop(order) if order in self._going else self._paused.pop(order)
        self._ended += 1
        self._lengths.ended(chain.written)

    def pause(self, order: int) -> None:
        """A chain pauses, in its step."""
        chain = self._going[order]
        mode = chain.mode
        self._paused[order] = self._stop(order)
        chain.mode = mode

    def resume(self, order: int, share: float, now: float) -> list[int]:
        """A chain continues its step; `share` of all are to speculate. Returns it where its direct request is not to be sent."""
        chain = self._paused.pop(order)
        mode, chain.mode = chain.mode, None
        self._go_on(order, chain, share)
        if mode is not None:
            self._begin(chain, mode, now)
        return self._to_interrupt([order])

    def step(self, order: int, context: int, now: float) -> Mode:
        """A chain begins a step, with that many tokens of context; returns its mode."""
        chain = self._going[order]
        self._end_step(chain)
        self._contexts += context - chain.context
        chain.context, chain.interrupted = context, False
        self._begin(chain, "speculative" if chain.speculates else "direct", now)
        assert chain.mode is not None
        return chain.mode

    def assign(self, count: int) -> list[int]:
        """Let `count` chains speculate: of those that change, the ones with the longest expected rest begin and the others end. Returns
        those whose direct request is to be interrupted."""
        change = count - self.speculating
        if not change:
            return []
        candidates = [(order, chain) for order, chain in self._going.items() if chain.speculates == (change < 0)]
        if abs(change) < len(candidates):
            rests = self._lengths.rests([self._thought(chain) for _, chain in candidates])
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
            chain = self._going[order]
            if chain.speculates and chain.mode == "direct" and not chain.interrupted:
                chain.interrupted = True
                found.append(order)
        return found

    def _go_on(self, order: int, chain: LiveChain, share: float) -> None:
        chain.speculates = self.speculating < share * (len(self._going) + 1)
        self.speculating += chain.speculates
        self._contexts += chain.context
        self._going[order] = chain

    def _stop(self, order: int) -> LiveChain:
        chain = self._going.pop(order)
        self._end_step(chain)
        self._contexts -= chain.context
        self.speculating -= chain.speculates
        return chain

    def _begin(self, chain: LiveChain, mode: Mode, now: float) -> None:
        chain.mode, chain.began = mode, now
        self.counts[mode] += 1
        if mode == "direct":
            chain.start = self.direct_tokens
            self._starts += chain.start

    def _end_step(self, chain: LiveChain) -> None:
        if chain.mode is not None:
            self.counts[chain.mode] -= 1
            if chain.mode == "direct":
                self._starts -= chain.start
            chain.mode = None

    def _thought(self, chain: LiveChain) -> float:
        return chain.written + (self.direct_tokens - chain.start if chain.mode == "direct" else 0.0)
