"""How long iterations of a simulated engine take, in seconds on a device of its own: a roofline, in closed form. Pure.

Figures of a device and a model enter, seconds leave. An iteration takes the longer of its arithmetic and its memory traffic, plus
a constant overhead.
"""

import math

from msgspec import Struct

from pipeline.engines.sim.spec import SimSpec


class Roofline:
    """The times, in seconds, that one model takes on one device."""

    def __init__(self, spec: SimSpec) -> None:
        device = spec.device
        self.token_s = 2 * spec.parameters / device.flops_per_s
        """Arithmetic of one token, without attention."""
        self.weights_s = spec.parameters * spec.bytes_per_parameter / device.bytes_per_s
        """Reading all weights, which every iteration does once."""
        self.kv_s = spec.kv_bytes_per_token / device.bytes_per_s
        """Reading the keys and values of one token; every sequence reads its whole context, shared with others or not."""
        self.overhead_s = device.overhead_s

    def batch(self, tokens: int, reads: int, growth: int) -> "BatchCost":
        """The cost of iterations that compute `tokens` tokens each; the first reads `reads` tokens of context, each next one `growth`
        more than the one before."""
        return BatchCost(tokens * self.token_s, self.weights_s + reads * self.kv_s, growth * self.kv_s, self.overhead_s)


class BatchCost(Struct, frozen=True):
    """How long iterations of one batch take; all fields are seconds."""

    compute: float
    """Arithmetic of one iteration, the same in all of them."""
    memory: float
    """Memory traffic of the first iteration."""
    growth: float
    """By how much the traffic grows with each iteration, as every sequence reads one token more."""
    overhead: float
    """Constant time added to each iteration."""

    def duration(self, iterations: int) -> float:
        """Seconds of the first `iterations` together, without a loop over them.

        The traffic grows, the arithmetic does not, so the iterations are at first bound by arithmetic and then, to the end,
        by memory: one product and one arithmetic series. Example: compute 1.5, memory 1, growth 0.25, overhead 0. The
        iterations take max(1.5, 1), max(1.5, 1.25), max(1.5, 1.5), 1.75 and 2 s; the first two are bound by arithmetic,
        `duration(5)` = 2 * 1.5 + (1.5 + 1.75 + 2) = 8.25.
        """
        bound = iterations if self.compute > self.memory else 0
        if bound and self.growth:
            bound = min(bound, math.ceil((self.compute - self.memory) / self.growth))
        rest = iterations - bound
        traffic = rest * self.memory + self.growth * (rest * (bound + iterations - 1) / 2)
        return bound * self.compute + traffic + iterations * self.overhead
