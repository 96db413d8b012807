"""How fast each mode is: steps of rounds and iterations of the target alone enter as they happen, seconds leave. Pure."""

import math

from pipeline.runtime.speculation import tuning

DECAY, PRIOR, PRIOR_KNOWN, SWEEPS = 0.97, 0.02, 1.0, 60
"""The weight of an observation after the next one came; that of the assumption that neither contexts nor sequences matter, and of the curve
of an earlier run; passes of the coordinate descent, which has converged by then."""


def bucket_of(chains: float) -> int:
    """The logarithm of a number of chains to base 2, rounded."""
    return round(math.log2(max(chains, 1.0)))


class Acceptance:
    """The share of rounds in which a candidate is committed, over the last ones."""

    def __init__(self, share: float) -> None:
        self._verdicts, self._accepted = tuning.PRIOR_ROUNDS, tuning.PRIOR_ROUNDS * share

    @property
    def share(self) -> float:
        return self._accepted / self._verdicts

    def above(self, deviations: float) -> float:
        """The share that is higher by so many standard deviations, at most 1."""
        share = self.share
        return min(share + deviations * math.sqrt(max(share * (1 - share), 0.01) / self._verdicts), 1.0)

    def add(self, accepted: bool, live: int) -> None:
        """A round was judged while that many chains were live."""
        keep = 1 - 1 / max(tuning.VERDICTS, 4 * live)
        self._verdicts, self._accepted = self._verdicts * keep + 1, self._accepted * keep + accepted

    def notice(self, rejected: int, accepted: int) -> None:
        """Forget what was before the last rounds, where these cannot be of the same share."""
        count, share = rejected + accepted, self.share
        if (accepted - count * share) ** 2 > tuning.CHANGE**2 * count * (share * (1 - share) + 0.01):
            self._verdicts, self._accepted = count + 1.0, accepted + share


class Rounds:
    """Sums over rounds. What they differ by most is whether a candidate was accepted, which is chance: so the means of rejected and of
    accepted ones are taken apart, and joined by an acceptance that more rounds than these have shown."""

    def __init__(self) -> None:
        self.counts, self._tokens, self._seconds = [0, 0], [0, 0], [0.0, 0.0]
        """Of rejected and of accepted rounds."""
        self._live = self._other_tokens = 0
        self._other_s = 0.0

    def add(self, tokens: int, seconds: float, accepted: bool, live: int) -> None:
        """A round of `seconds` committed `tokens` while that many chains were live."""
        self.counts[accepted] += 1
        self._tokens[accepted] += tokens
        self._seconds[accepted] += seconds
        self._live += live

    def add_answer(self, tokens: int, seconds: float) -> None:
        """An answer, which direct mode writes in the same request as the thought, took a call of its own."""
        self._other_tokens += tokens
        self._other_s += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def step_tokens(self) -> float:
        """Mean tokens of a round."""
        return sum(self._tokens) / max(self.count, 1)

    @property
    def chains(self) -> float:
        """Chains that shared the engines with these rounds: those in their loop, and by Little's law those whose answer was written
        meanwhile, which direct mode counts as live."""
        return self._live / max(self.count, 1) * (1 + self._other_s / max(sum(self._seconds), tuning.SHORTEST_S))

    def pace(self, acceptance: float) -> float:
        """Seconds a token of a chain, with that share of accepted rounds."""
        tokens, seconds = self._other_tokens / max(self.count, 1), self._other_s / max(self.count, 1)
        for accepted, share in enumerate((1 - acceptance, acceptance)):
            if count := self.counts[accepted]:
                tokens += share * self._tokens[accepted] / count
                seconds += share * self._seconds[accepted] / count
        return max(seconds, tuning.SHORTEST_S) / max(tokens, 1.0)


class DirectFit:
    """Non-negative least squares of the seconds of an iteration on three features: one, its context and its sequences."""

    def __init__(self, weights: tuple[float, ...] = ()) -> None:
        """`weights` are those of an earlier run: seconds, seconds per token of context, seconds per sequence."""
        self.weights = weights
        """Empty until anything is known."""
        self._scale: list[float] = []
        """The features of the first observation, empty before it: they, and its seconds `_unit`, are the units of the normal equations,
        whose sides are `_gram` and `_moment`."""

    def observe(self, chains: float, context: float, seconds: float) -> None:
        """An iteration of `chains` chains with `context` tokens together took `seconds`, to which errors are relative."""
        features, seconds = [1.0, context, chains], max(seconds, tuning.SHORTEST_S)
        if not self._scale:
            self._begin(features, seconds)
        row = [value / scale * self._unit / seconds for value, scale in zip(features, self._scale, strict=True)]
        for i, left in enumerate(row):
            self._moment[i] = self._moment[i] * DECAY + left
            for j, right in enumerate(row):
                self._gram[i][j] = self._gram[i][j] * DECAY + left * right
        self._solve()

    def seconds(self, chains: float, context: float) -> float:
        """Seconds of an iteration of that many chains with `context` tokens together."""
        return max(sum(w * value for w, value in zip(self.weights, [1.0, context, chains], strict=True)), tuning.SHORTEST_S)

    def _begin(self, features: list[float], seconds: float) -> None:
        prior = PRIOR_KNOWN if self.weights else PRIOR
        self.weights = self.weights or (seconds, 0.0, 0.0)
        self._scale, self._unit = [max(value, 1e-12) for value in features], seconds
        self._gram = [[prior * (i == j) for j in range(3)] for i in range(3)]
        self._moment = [prior * weight * scale / seconds for weight, scale in zip(self.weights, self._scale, strict=True)]

    def _solve(self) -> None:
        """Coordinate descent: each weight in turn as good as it can be, none negative."""
        solution = [w * scale / self._unit for w, scale in zip(self.weights, self._scale, strict=True)]
        for _ in range(SWEEPS):
            for i, row in enumerate(self._gram):
                rest = sum(value * solution[j] for j, value in enumerate(row) if j != i)
                solution[i] = max(0.0, (self._moment[i] - rest) / (row[i] + 1e-12))
        self.weights = tuple(value * self._unit / scale for value, scale in zip(solution, self._scale, strict=True))
