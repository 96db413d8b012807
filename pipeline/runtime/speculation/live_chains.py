"""The live chains: what each does now and what its context is. Synchronous.

A chain that pauses (`pipeline.runtime.admission`) writes nothing, so it counts nowhere until it continues.
"""

from collections.abc import Iterator

from msgspec import Struct

from pipeline.runtime.speculation.modes import Mode


class LiveChain(Struct):
    """A chain in its loop, as the controller knows it."""

    mode: Mode | None = None
    """The mode of its step under way; None before its first one."""
    context: int = 0
    """Tokens of its context at its last boundary."""
    step_began: float = 0.0
    """When its step began, or went on after a pause."""
    direct_tokens_at_start: float = 0.0
    """`LiveChains.direct_tokens` at that moment."""
    interrupted: bool = False


class LiveChains:
    """The live chains by their order.

    What holds whenever no method runs: `counts` and the sums of contexts are those of the chains in `running`; those that pause keep the
    mode of their step.
    """

    def __init__(self) -> None:
        self.running: dict[int, LiveChain] = {}
        self._paused: dict[int, LiveChain] = {}
        self.counts: dict[Mode, int] = {"speculative": 0, "direct": 0}
        """Running chains, by the mode of their current step."""
        self.direct_tokens = 0.0
        """Tokens that a chain would have that was in direct mode since the beginning."""
        self._contexts = self._direct_tokens_at_starts = 0.0
        """`LiveChain.context` of all that run, and `direct_tokens_at_start` of those in direct mode, added up."""

    @property
    def at_least_one(self) -> int:
        """The number of running chains, at least 1."""
        return max(len(self.running), 1)

    @property
    def context(self) -> float:
        """The mean context of those that run, what direct requests have written so far included; at least 1."""
        tokens = self._contexts + self.counts["direct"] * self.direct_tokens - self._direct_tokens_at_starts
        return max(tokens / self.at_least_one, 1.0)

    def to_interrupt(self) -> Iterator[int]:
        """Those whose direct request may be under way and was not interrupted, which is noted as each is taken."""
        for order, chain in self.running.items() if self.counts["direct"] else ():
            if chain.mode == "direct" and not chain.interrupted:
                chain.interrupted = True
                yield order

    def enter(self, order: int) -> None:
        """A chain begins."""
        self.running[order] = LiveChain()

    def leave(self, order: int) -> None:
        """A chain has ended."""
        if self._paused.pop(order, None) is None:
            self._count(self.running.pop(order), -1)

    def pause(self, order: int) -> None:
        """A chain pauses, in its step."""
        chain = self._paused[order] = self.running.pop(order)
        self._count(chain, -1)

    def resume(self, order: int, now: float) -> None:
        """A chain continues its step."""
        chain = self.running[order] = self._paused.pop(order)
        self._go_on(chain, now)

    def step(self, order: int, context: int, mode: Mode, now: float) -> None:
        """A chain begins a step in that mode, with that many tokens of context."""
        chain = self.running[order]
        self._count(chain, -1)
        chain.mode, chain.context, chain.interrupted = mode, context, False
        self._go_on(chain, now)

    def _go_on(self, chain: LiveChain, now: float) -> None:
        chain.step_began, chain.direct_tokens_at_start = now, self.direct_tokens
        self._count(chain, 1)

    def _count(self, chain: LiveChain, sign: int) -> None:
        """Count a chain that runs from now on, or with -1 one that does no longer."""
        self._contexts += sign * chain.context
        if chain.mode is not None:
            self.counts[chain.mode] += sign
        if chain.mode == "direct":
            self._direct_tokens_at_starts += sign * chain.direct_tokens_at_start
