"""Chains over a draft and a target engine as a fluid: whole calls with closed-form ends, so that a run costs milliseconds.

It drives an `Adaptive`, or a `Fixed`, with the facts that a run would give it. Between two events every engine computes iterations of
one length, which its cost surface gives for the calls in it; a call ends after a number of iterations.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pipeline.engine import EngineStatistics
from pipeline.graph.spec import Purpose
from pipeline.runtime.speculation.adaptive import Adaptive
from pipeline.runtime.speculation.modes import Mode

GROWTH = 0.03
"""Iterations are taken as equally long until contexts have grown by this share."""


@dataclass(frozen=True, kw_only=True)
class Surface:
    """Seconds of one iteration of an engine: memory traffic and arithmetic, joined by a norm, plus overhead; not a roofline unless
    `norm` is infinite."""

    fixed: float
    per_context: float = 0.0
    per_token: float = 0.0
    overhead: float = 0.0
    norm: float = math.inf
    room: float = math.inf
    """Tokens of context that are kept between the calls of live chains; of contexts beyond it a share is computed again."""

    def seconds(self, context: float, tokens: float) -> float:
        memory, arithmetic = self.fixed + self.per_context * context, self.per_token * tokens
        if self.norm == math.inf:
            return max(memory, arithmetic) + self.overhead
        return (memory**self.norm + arithmetic**self.norm) ** (1 / self.norm) + self.overhead


@dataclass(frozen=True, kw_only=True)
class World:
    """Hardware and texts of a run."""

    target: Surface
    draft: Surface
    interference: float
    """By what share of its time an engine takes longer while the other one computes: 0 none, 1 time slices."""
    lengths: tuple[int, ...]
    """Tokens of each chain's thought."""
    batch: int
    step: float = 50.0
    """Mean tokens of a step."""
    acceptance: Callable[[float], float] = lambda progress: 0.8
    """Share of accepted steps, by the share of all tokens of the run that are written."""
    question: int = 60
    """Tokens of a verification beside the candidate."""
    prompt: int = 150
    seed: int = 0


@dataclass
class Call:
    chain: "Thought"
    kind: str
    tokens: int
    iterations: float
    prefill: float
    sequences: int
    context: float
    submit: float
    in_flight: int
    start: float
    drafted: int = 0
    """Of a verification: tokens of the candidate."""
    open: bool = True


@dataclass
class Thought:
    order: int
    length: int
    steps: Random
    written: int = 0
    step_end: int = 0
    call: Call | None = None
    drafted: bool = False
    """Whether the draft has this chain's context up to its last step."""

    def next_end(self, mean: float) -> int:
        """Where the step ends in which the next token lies."""
        while self.step_end <= self.written:
            self.step_end += max(4, round(self.steps.lognormvariate(math.log(mean) - 0.18, 0.6)))
        return min(self.step_end, self.length)


@dataclass
class Server:
    """One engine: calls that end at a count of iterations."""

    surface: Surface
    done: float = 0.0
    """Iterations so far."""
    sequences: int = 0
    context: float = 0.0
    prefill: float = 0.0
    calls: int = 0
    sampled: float = 0.0
    ends: list[tuple[float, int, Call]] = field(default_factory=list)
    pushed: int = 0

    def seconds(self) -> float:
        return self.surface.seconds(self.context, self.sequences + self.prefill)

    def add(self, call: Call) -> None:
        self.pushed += 1
        self.calls += 1
        self.sequences += call.sequences
        self.context += call.context
        self.prefill += call.prefill
        call.start = self.done
        heapq.heappush(self.ends, (self.done + call.iterations, self.pushed, call))

    def remove(self, call: Call) -> None:
        call.open = False
        self.calls -= 1
        self.sequences -= call.sequences
        self.context -= call.context + (self.done - call.start) * call.sequences
        self.prefill -= call.prefill
        if not self.calls:
            self.context = self.prefill = 0.0

    def next_end(self) -> float:
        while self.ends and not self.ends[0][2].open:
            heapq.heappop(self.ends)
        return self.ends[0][0] if self.ends else math.inf

    def advance(self, iterations: float) -> None:
        self.done += iterations
        self.context += iterations * self.sequences
        self.sampled += iterations * self.sequences


class Fluid:
    """One run of `world` under `control`; `makespan` is the time at which the last chain ends."""

    def __init__(self, world: World, control: "Adaptive | Fixed") -> None:
        self.world, self.control = world, control
        self.target, self.draft = Server(world.target), Server(world.draft)
        self.now = 0.0
        self.coming = deque(Thought(i, n, Random(f"{world.seed} {i}")) for i, n in enumerate(world.lengths))
        self.live: dict[int, Thought] = {}
        self.total, self.finished_tokens = sum(world.lengths), 0

    def statistics(self) -> EngineStatistics:
        """What an engine that knows them would say of the target's tokens."""
        return EngineStatistics(written_tokens=int(self.target.sampled))

    def run(self) -> float:
        self._fill()
        while self.live:
            self._advance()
        return self.now

    @property
    def progress(self) -> float:
        return self.finished_tokens / self.total

    def _fill(self) -> None:
        while self.coming and len(self.live) < self.world.batch:
            chain = self.coming.popleft()
            self.live[chain.order] = chain
            self.control.enter(chain.order, self.now)
            self._next(chain)
        self._interrupt()

    def _interrupt(self) -> None:
        for order in self.control.interrupts(self.now):
            chain = self.live[order]
            call = chain.call
            if call is None or call.kind != "direct":
                continue
            self.target.remove(call)
            tokens = int(self.target.done - call.start)
            chain.written = min(chain.written + tokens, chain.length - 1)
            self._report(call, tokens)
            self.control.wrote(order, "direct", tokens, False, self.now)
            end = chain.next_end(self.world.step)
            self._start(chain, "boundary", self.target, end - chain.written, 0, 1)

    def _slowed(self) -> tuple[float, float]:
        """Seconds of an iteration of target and draft now."""
        both = 1 + self.world.interference * bool(self.target.calls and self.draft.calls)
        return self.target.seconds() * both, self.draft.seconds() * both

    def _advance(self) -> None:
        target_s, draft_s = self._slowed()
        target_at = self.now + max(self.target.next_end() - self.target.done, 0.0) * target_s
        draft_at = self.now + max(self.draft.next_end() - self.draft.done, 0.0) * draft_s
        grown = self.now + (max(self.target.context, 2000.0) * GROWTH / max(self.target.sequences, 1)) * target_s
        wake = max(self.control.wake(), self.now + 1e-9)
        at = min(target_at, draft_at, grown, wake)
        span, self.now = at - self.now, at
        if self.target.calls:
            self.target.advance(span / target_s)
        if self.draft.calls:
            self.draft.advance(span / draft_s)
        if at == target_at:
            self._end(self.target)
        elif at == draft_at:
            self._end(self.draft)
        self._interrupt()

    def _end(self, server: Server) -> None:
        _, _, call = heapq.heappop(server.ends)
        server.remove(call)
        chain = call.chain
        self._report(call, call.tokens)
        if call.kind == "draft":
            self._verify(chain, call)
        elif call.kind == "judge" and not self._accepts(chain):
            self._start(chain, "fallback", self.target, call.drafted, 0, 1)
        else:
            self._commit(chain, call)

    def _accepts(self, chain: Thought) -> bool:
        return Random(f"{self.world.seed} {chain.order} {chain.written}").random() < self.world.acceptance(self.progress)

    def _verify(self, chain: Thought, draft: Call) -> None:
        surface = self.world.target
        over = len(self.live) * (chain.written + self.world.prompt) / surface.room
        again = (chain.written + self.world.prompt) * max(0.0, min(1.0, over - 1.0))
        wait = 1.5 if self.target.calls else 1.0
        prefill = (draft.tokens + self.world.question + again) / wait
        call = self._start(chain, "judge", self.target, 1, prefill, 0, iterations=wait)
        call.drafted = draft.tokens

    def _commit(self, chain: Thought, call: Call) -> None:
        mode: Mode = "direct" if call.kind in ("direct", "boundary") else "speculative"
        tokens = call.tokens if call.kind != "judge" else call.drafted
        chain.written += tokens
        self.finished_tokens += tokens
        self.control.wrote(chain.order, mode, tokens, call.kind == "judge", self.now)
        if chain.written >= chain.length:
            del self.live[chain.order]
            self.control.leave(chain.order, self.now)
            self._fill()
        else:
            self._next(chain)

    def _next(self, chain: Thought) -> None:
        mode = self.control.mode(chain.order, chain.written + self.world.prompt, self.now)
        if mode == "direct":
            chain.drafted = False
            self._start(chain, "direct", self.target, chain.length - chain.written, 0, 1)
        else:
            prefill = 0 if chain.drafted else chain.written + self.world.prompt
            chain.drafted = True
            tokens = chain.next_end(self.world.step) - chain.written
            self._start(chain, "draft", self.draft, tokens, prefill / tokens, 1)

    def _start(
        self, chain: Thought, kind: str, server: Server, tokens: int, prefill: float, sequences: int, iterations: float | None = None
    ) -> Call:
        call = Call(
            chain,
            kind,
            tokens,
            tokens if iterations is None else iterations,
            prefill,
            sequences,
            chain.written + self.world.prompt,
            self.now,
            server.calls + 1,
            server.done,
        )
        chain.call = call
        server.add(call)
        return call

    def _report(self, call: Call, tokens: int) -> None:
        purposes: dict[str, Purpose] = {"draft": "draft", "judge": "judge"}
        if call.kind == "judge":
            self.target.sampled += 1
        self.control.called(
            purpose=purposes.get(call.kind, "write"),
            direct=call.kind in ("direct", "boundary"),
            n=1,
            output_tokens=tokens,
            submit=call.submit,
            end=self.now,
        )


class Fixed:
    """In place of an `Adaptive`: never changes its mind."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode

    def enter(self, order: int, now: float) -> None: ...
    def leave(self, order: int, now: float) -> None: ...
    def mode(self, order: int, context_tokens: int, now: float) -> Mode:
        return self._mode

    def wrote(self, order: int, mode: Mode, tokens: int, accepted: bool, now: float) -> None: ...
    def called(self, **call: Any) -> None: ...
    def interrupts(self, now: float) -> tuple[int, ...]:
        return ()

    def wake(self) -> float:
        return math.inf


def lengths(count: int, mean: float, sigma: float, seed: int) -> tuple[int, ...]:
    """Lengths of thoughts, log-normal."""
    draws = Random(f"lengths {seed}")
    return tuple(max(30, round(draws.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma))) for _ in range(count))


def adverse_world(seed: int) -> World:
    """A world drawn at random: costs of no particular form, acceptance that may drift or be 0, any interference.

    The target alone takes at least the time of some 100 steps: in a shorter run there is nothing to learn from.
    """
    draws = Random(f"world {seed}")
    fixed = 10 ** draws.uniform(-2.2, -0.8)
    target = _surface(draws, fixed, room=draws.choice([math.inf, math.inf, 10 ** draws.uniform(4, 5.5)]))
    draft = _surface(draws, fixed * 10 ** draws.uniform(-1.3, -0.2), room=math.inf)
    batch = draws.choice([1, 2, 3, 5, 8, 12, 16, 24])
    chains = max(3, round(batch * draws.choice([1, 1.5, 2, 4])))
    step = draws.choice([25, 50, 90])
    mean = min(draws.uniform(100, 300) * step * batch / chains, TOTAL / chains)
    start, end = (draws.choice([0.0, draws.random(), draws.random()]) for _ in range(2))
    shape = draws.choice(["constant", "drift", "step"])

    def acceptance(progress: float) -> float:
        if shape == "constant":
            return start
        return start + (end - start) * (progress if shape == "drift" else progress > 0.5)

    return World(
        target=target,
        draft=draft,
        interference=draws.choice([0.0, 1.0, draws.random()]),
        batch=batch,
        seed=seed,
        lengths=lengths(chains, mean, draws.choice([0.1, 0.5, 0.9]), seed),
        step=step,
        acceptance=acceptance,
        question=draws.choice([20, 60, 200]),
    )


TOTAL = 110_000
"""Most tokens of an adverse world, so that a run takes a tenth of a second."""


def _surface(draws: Random, fixed: float, room: float) -> Surface:
    return Surface(
        fixed=fixed,
        per_context=fixed * 10 ** draws.uniform(-7, -4.5),
        per_token=fixed * 10 ** draws.uniform(-3.2, -1.7),
        overhead=fixed * draws.choice([0.0, 0.1, 0.5]),
        norm=draws.choice([math.inf, 1.0, 2.0, 4.0]),
        room=room,
    )
