"""How long iterations of a simulated engine take, in seconds on a separate device: a roofline, in closed form. Pure.

Figures of a device and a model enter, seconds leave. An iteration takes the longer of its arithmetic and its memory traffic, plus an
overhead, constant and for each sequence; with a draft inside the engine it is several such passes.
"""

import math
from typing import TypeAlias

from msgspec import Struct

from pipeline.engines.sim.spec import SimDeviceSpec, SimSpec, SimSpeculativeSpec


class Rates(Struct, frozen=True):
    """The times, in seconds, that one model takes on one device."""

    token_s: float
    """Arithmetic of one token, without attention."""
    weights_s: float
    """Reading all weights, which every iteration does once."""
    kv_s: float
    """Reading the keys and values of one token; every sequence reads its whole context, shared with others or not."""
    overhead_s: float
    """Constant time of an iteration."""
    sequence_s: float
    """Time of an iteration for each sequence that it continues."""
    layers: int
    """Layers of the model, 0 where it computes nothing."""

    @classmethod
    def of(cls, device: SimDeviceSpec, model: SimSpec | SimSpeculativeSpec, overhead_s: float) -> "Rates":
        """The times of `model` on `device`."""
        return cls(
            token_s=2 * model.parameters / device.flops_per_s,
            weights_s=model.parameters * model.bytes_per_parameter / device.bytes_per_s,
            kv_s=model.kv_bytes_per_token / device.bytes_per_s,
            overhead_s=overhead_s,
            sequence_s=device.sequence_s,
            layers=model.layers if model.parameters else 0,
        )

    def batch(self, size: int, tokens: float, prompts: int, reads: float, growth: float, extra_s: float = 0.0) -> "BatchCost":
        """The cost of iterations that compute `tokens` tokens of `size` sequences and `prompts` tokens of prompts each; the first reads
        `reads` tokens of context, each next one `growth` more than the one before. `extra_s` seconds of arithmetic are not hidden behind
        the memory traffic."""
        compute = tokens * self.token_s + prompts * self.token_s
        memory = self.weights_s + reads * self.kv_s + extra_s
        return BatchCost(compute, memory, growth * self.kv_s, self.overhead_s + size * self.sequence_s, self.layers)


class Roofline:
    """The costs of the iterations of one engine, those of the draft inside it included."""

    def __init__(self, spec: SimSpec) -> None:
        inner = spec.speculative
        self.rates = Rates.of(spec.device, spec, spec.device.overhead_s)
        self._verifying = Rates.of(spec.device, spec, spec.device.overhead_s + inner.verification_s) if inner else self.rates
        self.proposals = inner.num_speculative_tokens if inner else 0
        """Tokens proposed for each sequence in an iteration, at most."""
        self._verified = self.proposals * (inner.proposed_share if inner else 1.0)
        """The same, on average."""
        self._unhidden_s = self._verified * (1 - inner.overlap) * self.rates.token_s if inner else 0.0
        """Arithmetic for one sequence that the memory traffic of an iteration does not hide."""
        self.draft = Rates.of(spec.device, inner, inner.overhead_s) if inner and (inner.parameters or inner.overhead_s) else None
        """Of what proposes them; None where that costs nothing."""

    def iteration(self, size: int, context: float, growth: float = 0, tokens: int = 0, reads: float = 0) -> "Cost":
        """The cost of iterations in which `size` sequences decode. In the first they read `context` tokens of context, in each next one
        `growth` more than in the one before. Beside them `tokens` tokens of prompts are computed, which read `reads` tokens of context."""
        proposed = size * self._verified
        rates = self._verifying if size else self.rates
        verified = rates.batch(size, size + proposed, tokens, context + proposed + reads, growth, size * self._unhidden_s)
        if self.draft is None:
            return verified
        passes = [(1, verified)]
        if tokens:  # the draft computes them beside the first tokens that it proposes
            passes.append((1, self.draft.batch(size, size, tokens, context + reads, growth)))
        if size and (left := self.proposals - bool(tokens)):
            passes.append((left, self.draft.batch(size, size, 0, context, growth)))
        return Passes(tuple(passes))


class BatchCost(Struct, frozen=True):
    """Iterations of one batch; times are seconds."""

    compute: float
    """Arithmetic of one iteration, the same in all of them."""
    memory: float
    """Memory traffic of the first iteration."""
    growth: float
    """By how much the traffic grows with each iteration, as every sequence reads one token more."""
    overhead: float
    """Constant time added to each iteration."""
    layers: int = 1
    """Into how many kernels, or groups of them, an iteration divides: layers of the model. No seconds."""

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


class Passes(Struct, frozen=True):
    """How long iterations take that consist of several passes, one after the other: the draft's and the model's own."""

    passes: tuple[tuple[int, BatchCost], ...]
    """How often each of them is made in an iteration, and its cost."""

    @property
    def layers(self) -> int:
        return sum(times * cost.layers for times, cost in self.passes)

    def duration(self, iterations: int) -> float:
        return sum(times * cost.duration(iterations) for times, cost in self.passes)


Cost: TypeAlias = BatchCost | Passes
"""The costs of iterations of a batch."""
