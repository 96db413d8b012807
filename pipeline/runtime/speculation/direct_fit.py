"""How long an iteration of the target takes that only writes directly: observations enter, seconds for any number of chains leave. Pure."""

from typing import Final

FEATURES: Final = 3
"""Of the seconds of an iteration: one, the context, and the number of sequences."""
SHORTEST_S: Final = 1e-9
"""Minimum seconds that anything counts as: a clock may not advance between two events."""
DECAY, PRIOR, PRIOR_KNOWN, SWEEPS = 0.97, 0.02, 1.0, 60
"""The weight of an observation after the next one came; that of the assumption that neither contexts nor sequences matter, and of the curve
of an earlier run; passes of the coordinate descent, which has converged by then."""


class DirectFit:
    """Non-negative least squares of the seconds of an iteration on context and sequences."""

    def __init__(self, weights: tuple[float, ...] = ()) -> None:
        """`weights` are those of an earlier run: seconds, seconds per token of context, seconds per sequence."""
        self._gram = [[0.0] * FEATURES for _ in range(FEATURES)]
        self._moment = [0.0] * FEATURES
        self._scale = [1.0] * FEATURES
        self._unit = SHORTEST_S
        self._begun = False
        self.weights = weights
        """Empty until anything is known."""

    def observe(self, chains: float, context: float, seconds: float) -> None:
        """An iteration of `chains` chains with `context` tokens together took `seconds`, to which errors are relative."""
        features, seconds = [1.0, context, chains], max(seconds, SHORTEST_S)
        if not self._begun:
            self._begin(features, seconds)
        row = [value / scale * self._unit / seconds for value, scale in zip(features, self._scale, strict=True)]
        for i, left in enumerate(row):
            self._moment[i] = self._moment[i] * DECAY + left
            for j, right in enumerate(row):
                self._gram[i][j] = self._gram[i][j] * DECAY + left * right
        self._solve()

    def seconds(self, chains: float, context: float) -> float:
        """Seconds of an iteration of that many chains with `context` tokens together."""
        return max(sum(w * value for w, value in zip(self.weights, [1.0, context, chains], strict=True)), SHORTEST_S)

    def _begin(self, features: list[float], seconds: float) -> None:
        prior = PRIOR_KNOWN if self.weights else PRIOR
        self.weights = self.weights or (seconds, 0.0, 0.0)
        self._scale, self._unit, self._begun = [max(value, 1e-12) for value in features], seconds, True
        for i, (weight, scale) in enumerate(zip(self.weights, self._scale, strict=True)):
            self._gram[i][i], self._moment[i] = prior, prior * weight * scale / seconds

    def _solve(self) -> None:
        """Coordinate descent: each weight in turn as good as it can be, none negative."""
        solution = [w * scale / self._unit for w, scale in zip(self.weights, self._scale, strict=True)]
        for _ in range(SWEEPS):
            for i, row in enumerate(self._gram):
                rest = sum(value * solution[j] for j, value in enumerate(row) if j != i)
                solution[i] = max(0.0, (self._moment[i] - rest) / (row[i] + 1e-12))
        self.weights = tuple(value * self._unit / scale for value, scale in zip(solution, self._scale, strict=True))
