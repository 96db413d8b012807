"""The controller where facts are odd: clocks that stand still, counters that lag, empty steps. It never fails a chain."""

import math
import random

import pytest

from pipeline.engine import EngineStatistics
from pipeline.graph.spec import Purpose
from pipeline.runtime.speculation.adaptive import Adaptive
from pipeline.runtime.speculation.modes import NOTHING_KNOWN, Knowledge, Mode, RoundPace


class OddFacts:
    """A run of chains whose facts are drawn from `seed`, each possible by itself."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.now = self.draw.choice([0.0, 5.0])
        self.second = 10 ** self.draw.uniform(-4, -1)
        self.sampled = self.counted = self.entered = 0
        self.chains: dict[int, tuple[Mode, float]] = {}
        """The mode and the beginning of the step of each chain that goes on."""
        self.paused: dict[int, tuple[Mode, float]] = {}
        self.counts = self.draw.random() < 0.8
        known = self.draw.choice(
            [NOTHING_KNOWN, Knowledge(direct=(self.second, 0.0, 0.0), paces=(RoundPace(4, 2 * self.second, 100, 64),))]
        )
        self.control = Adaptive(self.statistics, known=known, most=4)

    def statistics(self) -> EngineStatistics:
        running, waiting = self.draw.randrange(100), self.draw.randrange(3)
        return EngineStatistics(running=running, waiting=waiting, written_tokens=self.counted if self.counts else None)

    def pass_time(self) -> None:
        self.now += self.draw.choice([0.0, 0.0, self.draw.expovariate(1 / self.second), self.draw.expovariate(0.05 / self.second)])
        self.sampled += self.draw.choice([0, 1, 5, 60])
        if self.draw.random() < 0.3:
            self.counted = max(self.counted, self.sampled - self.draw.choice([0, 0, 10, 400]))

    def begin(self, order: int) -> None:
        self.chains[order] = self.control.mode(order, self.draw.choice([1, 30, 500, 20000]), self.now), self.now

    def end(self, order: int) -> None:
        """A step ends."""
        mode, began = self.chains.pop(order)
        tokens, accepted = self.draw.choice([0, 1, 1, 7, 50, 300]), mode == "speculative" and self.draw.random() < 0.6
        if mode == "speculative":
            self.call("draft", tokens, self.draw.choice([began, self.now]))
            self.call("judge", 1, began)
        if not accepted:
            self.call("write", tokens, began, direct=mode == "direct")
        self.control.wrote(order, mode, tokens, accepted, self.now)

    def call(self, purpose: Purpose, tokens: int, submit: float, direct: bool = False) -> None:
        self.control.called(purpose=purpose, direct=direct, n=1, output_tokens=tokens, submit=submit, end=self.now)

    def go_on(self, most: int) -> None:
        """One thing happens."""
        self.pass_time()
        if len(self.chains) + len(self.paused) < most:
            self.control.enter(self.entered, self.now)
            self.begin(self.entered)
            self.entered += 1
        for order in self.control.interrupts(self.now):
            self.end(order)
            self.begin(order)
        order = self.draw.choice([*self.chains, None])  # type: ignore[list-item]
        match self.draw.choice(["step", "step", "step", "leave", "pause", "resume", "wake"]), order:
            case "step", int():
                self.end(order)
                self.begin(order)
            case "leave", int():
                self.end(order)
                self.control.leave(order, self.now)
            case "pause", int():
                self.paused[order] = self.chains.pop(order)
                self.control.pause(order, self.now)
            case "resume", _ if self.paused:
                back, step = self.paused.popitem()
                self.chains[back] = step
                self.control.resume(back, self.now)
            case "wake", _ if self.control.wake() < math.inf:
                self.now = max(self.now, self.control.wake())


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 2, 8, 64])
def test_whatever_the_facts_there_is_a_decision(most: int) -> None:
    for seed in range(100):
        facts = OddFacts(seed)
        for _ in range(400):
            facts.go_on(most)
        for change in facts.control.changes:
            assert math.isfinite(change.direct or 0.0)
            assert change.speculative is None or 0 <= change.speculative < math.inf
            assert 0 <= change.speculating <= change.live
        assert all(math.isfinite(pace.seconds) and pace.seconds > 0 for pace in facts.control.knowledge.paces)
