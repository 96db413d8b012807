"""How long the target's iterations take while it writes alone: observations enter during a run, a fitted cost leaves."""

from pipeline.runtime.speculation.cost_model import SHORTEST_S, IterationCost

KEPT = 0.97
"""Weight of an observation after the next one came."""
RIDGE = 250.0
"""Sequences whose arithmetic takes as long as reading the weights, where nothing is known; about that of today's accelerators."""
FEATURES = 3
"""One, the context, and the number of sequences."""
PRIOR = 0.02
"""Weight of what is assumed before the first observation: that neither contexts nor sequences matter."""


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
        """Whether it can predict anything."""
        return bool(self.observations)

    def observe(self, chains: float, context: float, seconds: float) -> None:
        """An iteration of `chains` chains with `context` tokens together took `seconds`, to which errors are relative."""
        features, seconds = self._features(chains, context), max(seconds, SHORTEST_S)
        if not self.observations:
            self._scale = [max(value, 1e-12) for value in features]
            self._weights = [seconds, 0.0, 0.0]
            for i in range(FEATURES):
                self._gram[i][i] = PRIOR
            self._moment[0] = PRIOR
            self._unit = seconds
        self.observations += 1
        row = [value / scale * self._unit / seconds for value, scale in zip(features, self._scale, strict=True)]
        for i, left in enumerate(row):
            self._moment[i] = self._moment[i] * KEPT + left
            for j, right in enumerate(row):
                self._gram[i][j] = self._gram[i][j] * KEPT + left * right
        self._solve()

    def seconds(self, chains: float, context: float) -> float:
        """Seconds of an iteration of that many chains with `context` tokens together."""
        return max(sum(w * value for w, value in zip(self._weights, self._features(chains, context), strict=True)), SHORTEST_S)

    def cost(self, chains: float) -> IterationCost:
        """The same as a cost, near that many chains."""
        fixed = self._weights[0] + self._weights[2] * chains
        return IterationCost(fixed=fixed, per_context=self._weights[1], per_token=fixed / RIDGE)

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
