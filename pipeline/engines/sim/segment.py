"""What the scheduler of a simulated engine works with: jobs, and stretches of iterations with their roofline cost.

Plain values: lengths and figures of a device enter, seconds leave.
"""

import math
from bisect import bisect_left
from collections.abc import Callable

from msgspec import Struct

from pipeline.engines.sim.cache import Node
from pipeline.engines.sim.spec import SimSpec


class Job:
    """One request in a scheduler: its lengths are known beforehand, because its text is."""

    __slots__ = (
        "arrived", "cached", "cancelled", "computed", "finished", "first_token", "keeps", "key", "lengths", "node", "notify", "prompt",
        "queued", "remaining", "reserved", "reusable", "scheduled", "seats",
    )  # fmt: skip

    def __init__(
        self,
        key: tuple[int, float, str, int],
        prompt: tuple[int, ...],
        reusable: int,
        lengths: tuple[int, ...],
        keeps: tuple[tuple[int, ...], ...],
        notify: Callable[[], object],
    ) -> None:
        self.key, self.prompt, self.notify = key, prompt, notify
        self.reusable = reusable
        """Prompt tokens that may come from the prefix cache."""
        self.lengths = lengths
        """Tokens to sample for each candidate; the prompt's last iteration samples the first ones."""
        self.keeps = keeps
        """Outputs that stay in the prefix cache afterwards."""
        self.seats = self.remaining = len(lengths)
        self.arrived = key[1]
        self.scheduled = self.first_token = self.finished = math.nan
        self.node: Node | None = None
        self.cached = self.computed = self.reserved = 0
        self.queued = True
        """Neither let in nor cancelled."""
        self.cancelled = False

    @property
    def need(self) -> int:
        """Tokens whose keys and values it takes at most."""
        return len(self.prompt) + sum(self.lengths)


class Cost:
    """What an iteration costs: the larger of arithmetic and memory traffic, plus the overhead (a roofline), in seconds."""

    def __init__(self, spec: SimSpec) -> None:
        device = spec.device
        self.token_s = 2 * spec.parameters / device.flops_per_s
        """Arithmetic of one token; attention's own is left out."""
        self.weights_s = spec.parameters * spec.bytes_per_parameter / device.bytes_per_s
        self.kv_s = spec.kv_bytes_per_token / device.bytes_per_s
        """Reading keys and values of one token; every sequence reads its own context, shared or not."""
        self.overhead_s = device.overhead_s

    def load(self, tokens: int, reads: int, growth: int) -> "Load":
        """Iterations of `tokens` each; the first reads `reads` tokens of context, each next one `growth` more."""
        return Load(tokens * self.token_s, self.weights_s + reads * self.kv_s, growth * self.kv_s, self.overhead_s)


class Load(Struct, frozen=True):
    """What iterations of one batch cost."""

    compute: float
    memory: float
    """Traffic of the first one."""
    growth: float
    """More of it in each next one."""
    overhead: float

    def duration(self, iterations: int) -> float:
        """Work of the first `iterations`: at first bound by arithmetic, later, as the contexts grow, by memory."""
        bound = iterations if self.compute > self.memory else 0
        if bound and self.growth:
            bound = min(bound, math.ceil((self.compute - self.memory) / self.growth))
        rest = iterations - bound
        traffic = rest * self.memory + self.growth * (rest * (bound + iterations - 1) / 2)
        return bound * self.compute + traffic + iterations * self.overhead

    def stretch(self, start: float, iterations: int, chunks: tuple[tuple[Job, int], ...] = ()) -> "Stretch":
        """So many iterations, from `start` on."""
        return Stretch(start, start + self.duration(iterations), iterations, self, chunks)


class Stretch(Struct, frozen=True):
    """Iterations of one batch."""

    start: float
    end: float
    iterations: int
    load: Load
    chunks: tuple[tuple[Job, int], ...]
    """Prompt tokens computed for jobs; only in a stretch of one iteration."""

    def cut(self, work: float) -> "Stretch":
        """Its iterations up to the one that is under way, or just ends, at `work`."""
        if self.iterations == 1:
            return self
        passed = work - self.start
        count = 1 + bisect_left(range(1, self.iterations), passed, key=self.load.duration)
        return self if count == self.iterations else self.load.stretch(self.start, count)
