"""The live chains: what each does now and what its context is. Synchronous.

A chain that pauses (`pipeline.runtime.admission`) writes nothing, so it counts nowhere until it continues.
"""

from collections.abc import Iterator

from pipeline.runtime.speculation.modes import Mode


class LiveChain:
    """A chain in its loop, as the controller knows it."""

    __slots__ = ("context", "direct_tokens_at_start", "interrupted", "mode", "step_began")

    def __init__(self) -> None:
        self.mode: Mode | None = None
        """The mode of its step under way; None before its first one."""
        self.context = 0
        """Tokens of its context at its last boundary."""
        self.step_began = 0.0
        """When its step began, or went on after a pause."""
        self.direct_tokens_at_start = 0.0
        """`LiveChains.direct_tokens` when its step began."""
        self.interrupted = False


class LiveChains:
    """The live chains by their order.

    What holds whenever no method runs: `counts` and the sums of contexts are those of the chains that run; those that pause keep the mode
    of their step.
    """

    def __init__(self) -> None:
        self._running: dict[int, LiveChain] = {}
        self._paused: dict[int, LiveChain] = {}
        self.counts: dict[Mode, int] = {"speculative": 0, "direct": 0}
        """Running chains, by the mode of their current step."""
        self.direct_tokens = 0.0
        """Tokens that a chain would have that was in direct mode since the beginning."""
        self._contexts = self._direct_tokens_at_starts = 0.0
        """`LiveChain.context` of all that run, and `direct_tokens_at_start` of those in direct mode, added up."""

    def __len__(self) -> int:
        """The number of running chains."""
        return len(self._running)

    def __contains__(self, order: int) -> bool:
        return order in self._running

    def __getitem__(self, order: int) -> LiveChain:
        return self._running[order]

    @property
    def at_least_one(self) -> int:
        """The number of running chains, at least 1."""
        return max(len(self._running), 1)

    @property
    def context(self) -> float:
        """The mean context of those that run, what direct requests have written so far included; at least 1."""
        tokens = self._contexts + self.counts["direct"] * self.direct_tokens - self._direct_tokens_at_starts
        return max(tokens / self.at_least_one, 1.0)

    def to_interrupt(self) -> Iterator[int]:
        """Those whose direct request may be under way and was not interrupted, which is noted as each is taken."""
        for order, chain in self._running.items():
            if chain.mode == "direct" and not chain.interrupted:
                chain.interrupted = True
                yield order

    def enter(self, order: int) -> None:
        """A chain begins."""
        self._running[order] = LiveChain()

    def leave(self, order: int) -> None:
        """A chain has ended."""
        if self._paused.pop(order, None) is None:
            self._remove(order)

    def pause(self, order: int) -> None:
        """A chain pauses, in its step."""
        chain = self._running[order]
        mode = chain.mode
        self._paused[order] = self._remove(order)
        chain.mode = mode

    def resume(self, order: int, now: float) -> None:
        """A chain continues its step."""
        chain = self._running[order] = self._paused.pop(order)
        mode, chain.mode = chain.mode, None
        self._contexts += chain.context
        if mode is not None:
            self._begin_step(chain, mode, now)

    def step(self, order: int, context: int, mode: Mode, now: float) -> None:
        """A chain begins a step in that mode, with that many tokens of context."""
        chain = self._running[order]
        self._end_step(chain)
        self._contexts += context - chain.context
        chain.context, chain.interrupted = context, False
        self._begin_step(chain, mode, now)

    def _remove(self, order: int) -> LiveChain:
        chain = self._running.pop(order)
        self._end_step(chain)
        self._contexts -= chain.context
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
