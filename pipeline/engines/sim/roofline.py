"""What iterations of a simulated engine cost, in seconds on a device of its own: a roofline, in closed form. Pure.

Figures of a device and a model enter, seconds leave. An iteration takes the larger of its arithmetic and its memory
traffic, plus a constant overhead.
"""

import math

from msgspec import Struct

from pipeline.engines.sim.spec import SimSpec


class Roofline:
    """The costs of one model on one device."""

    def __init__(self, spec: SimSpec) -> None:
        device = spec.device
        self.token_s = 2 * spec.parameters / device.flops_per_s
        """Arithmetic of one token; that of attention is left out."""
        self.weights_s = spec.parameters * spec.bytes_per_parameter / device.bytes_per_s
        """Reading all weights, once an iteration."""
        self.kv_s = spec.kv_bytes_per_token / device.bytes_per_s
        """Reading keys and values of one token; every sequence reads its own context, shared or not."""
        self.overhead_s = device.overhead_s

    def batch(self, tokens: int, reads: int, growth: int) -> "BatchCost":
        """Iterations of `tokens` each; the first reads `reads` tokens of context, each next one `growth` more."""
        return BatchCost(tokens * self.token_s, self.weights_s + reads * self.kv_s, growth * self.kv_s, self.overhead_s)


class BatchCost(Struct, frozen=True):
    """What iterations of one batch cost, in seconds."""

    compute: float
    """Arithmetic of one iteration: the batch is the same in all of them."""
    memory: float
    """Traffic of the first one."""
    growth: float
    """More of it in each next one, as every sequence reads one token more."""
    overhead: float

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
