"""A cost model of a draft and a target engine with chains in both modes: figures of the engines and of a round enter, speeds leave. Pure.

An iteration of an engine takes the longer of its memory traffic and its arithmetic, plus overhead. How many calls of each kind are in
flight follows from how long they take, and the other way round: `speeds` finds where both agree.
"""

import math

from msgspec import Struct

from pipeline.runtime.speculation.tuning import TUNING

STEPS = 40
"""Iterations of the fixed point, each of which halves the distance to it."""
SHORTEST_S = 1e-9
"""Minimum seconds that anything counts as: a clock may not advance between two events."""
FEATURES = 3
"""Of the seconds of an iteration: one, the context, and the number of sequences."""


class IterationCost(Struct, frozen=True, kw_only=True):
    """The time of one iteration of an engine that has its device to itself; all fields are seconds."""

    fixed: float
    """Memory traffic whatever is computed: reading the weights."""
    per_context: float = 0.0
    """Memory traffic of one token of context that is read."""
    per_token: float = 0.0
    """Arithmetic of one token, sampled or of a prompt."""
    overhead: float = 0.0
    """Added to every iteration."""

    def seconds(self, context: float, tokens: float) -> float:
        """Seconds of an iteration that reads `context` tokens of context and computes `tokens` tokens."""
        return max(self.fixed + self.per_context * context, self.per_token * tokens, SHORTEST_S) + self.overhead

    def scaled(self, factor: float) -> "IterationCost":
        """The cost of an engine that takes `factor` times as long for everything."""
        return IterationCost(
            fixed=self.fixed * factor,
            per_context=self.per_context * factor,
            per_token=self.per_token * factor,
            overhead=self.overhead * factor,
        )


class Round(Struct, frozen=True, kw_only=True):
    """A round of a chain on average: what is drafted, verified and, after a rejection, written by the target."""

    tokens: float = 50.0
    """Tokens of the committed step."""
    drafted: float = 50.0
    """Tokens of one candidate."""
    candidates: float = 1.0
    verified: float = 100.0
    """Tokens of the verification that are not in the target's cache: candidates and question."""
    acceptance: float = 0.75
    """Share of the rounds in which a candidate is committed."""


class Speeds(Struct, frozen=True):
    """Tokens of its thought that a chain gets in a second, by its mode."""

    speculative: float
    direct: float
    target_load: float = 1.0
    """Share of the time of a draft's call in which the target computes for other chains."""


class CostModel(Struct, frozen=True, kw_only=True):
    """A draft and a target engine that may slow each other."""

    target: IterationCost
    draft: IterationCost
    interference: float = 1.0
    """By what share of its time each engine takes longer while the other one computes: 0 on separate hardware, 1 in time slices."""

    def direct(self, chains: float, context: float) -> float:
        """Tokens a second of each of `chains` chains that are all direct and have `context` tokens each."""
        return 1 / self.target.seconds(chains * context, chains)

    def speeds(self, speculative: float, direct: float, context: float, step: Round) -> Speeds:
        """Speeds of the chains if that many are `speculative` and `direct`, with `context` tokens each."""
        phi, others = self.interference, max(speculative - 1, 0.0)
        round_s = step.tokens * self.target.seconds((speculative + direct) * context, speculative + direct)
        draft_s = target_s = round_s / 2
        verify_s = write_s = 0.0
        writes = (1 - step.acceptance) * step.tokens
        for _ in range(STEPS):
            drafts, targets = draft_s / round_s, (verify_s + write_s) / round_s
            waiting = 1.0 if direct >= 1 else _busy(others, targets)
            each = max(speculative * min(drafts, 1.0), 1.0) * step.candidates
            draft_s = step.drafted * self.draft.seconds(each * context, each) * (1 + phi * waiting)
            writing = speculative * write_s / round_s
            verifying = min(speculative, max(speculative * target_s / round_s, 1.0 if not direct else 0.0))
            read, tokens = direct + writing + verifying, direct + writing + verifying * step.verified
            beside = _busy(others if not direct else speculative, drafts)
            target_s = self.target.seconds(read * context, tokens) * (1 + phi * beside)
            verify_s, write_s = target_s * (1 + 0.5 * waiting), writes * target_s
            round_s = (round_s + draft_s + verify_s + write_s) / 2
        return Speeds(step.tokens / round_s, 1 / target_s, waiting)


def _busy(chains: float, share: float) -> float:
    """The share of the time in which at least one of `chains` is in a phase that takes `share` of its round."""
    return 1 - math.pow(1 - min(share, 1.0), max(chains, 0.0))


class DirectFit:
    """Non-negative least squares of the seconds of an iteration on context and sequences."""

    def __init__(self) -> None:
        self._gram = [[0.0] * FEATURES for _ in range(FEATURES)]
        self._moment = [0.0] * FEATURES
        self._scale = [1.0] * FEATURES
        self._weights = [0.0] * FEATURES
        self.observations = 0

    @property
    def known(self) -> bool:
        """True if it can predict anything."""
        return bool(self.observations)

    def observe(self, chains: float, context: float, seconds: float) -> None:
        """An iteration of `chains` chains with `context` tokens together took `seconds`, to which errors are relative."""
        features, seconds = self._features(chains, context), max(seconds, SHORTEST_S)
        if not self.observations:
            self._scale = [max(value, 1e-12) for value in features]
            self._weights = [seconds, 0.0, 0.0]
            for i in range(FEATURES):
                self._gram[i][i] = TUNING.fit_prior
            self._moment[0] = TUNING.fit_prior
            self._unit = seconds
        self.observations += 1
        row = [value / scale * self._unit / seconds for value, scale in zip(features, self._scale, strict=True)]
        for i, left in enumerate(row):
            self._moment[i] = self._moment[i] * TUNING.fit_decay + left
            for j, right in enumerate(row):
                self._gram[i][j] = self._gram[i][j] * TUNING.fit_decay + left * right
        self._solve()

    def seconds(self, chains: float, context: float) -> float:
        """Seconds of an iteration of that many chains with `context` tokens together."""
        return max(sum(w * value for w, value in zip(self._weights, self._features(chains, context), strict=True)), SHORTEST_S)

    def cost(self, chains: float) -> IterationCost:
        """The same as a cost, near that many chains."""
        fixed = self._weights[0] + self._weights[2] * chains
        return IterationCost(fixed=fixed, per_context=self._weights[1], per_token=fixed / TUNING.ridge_sequences)

    def _features(self, chains: float, context: float) -> list[float]:
        return [1.0, context, chains]

    def _solve(self) -> None:
        """Coordinate descent: each weight in turn as good as it can be, none negative."""
        solution = [w * scale / self._unit for w, scale in zip(self._weights, self._scale, strict=True)]
        for _ in range(60):
            for i, row in enumerate(self._gram):
                rest = sum(value * solution[j] for j, value in enumerate(row) if j != i)
                solution[i] = max(0.0, (self._moment[i] - rest) / (row[i] + 1e-12))
        self._weights = [value * self._unit / scale for value, scale in zip(solution, self._scale, strict=True)]
