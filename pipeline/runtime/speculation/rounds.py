"""Rounds of a window and the acceptance of many windows: steps enter as they are committed, seconds a token leave. Pure."""

import math

from pipeline.runtime.speculation.direct_fit import SHORTEST_S
from pipeline.runtime.speculation.tuning import TUNING


def bucket_of(chains: float) -> int:
    """The logarithm of a number of chains to base 2, rounded."""
    return round(math.log2(max(chains, 1.0)))


class Acceptance:
    """The share of rounds in which a candidate is committed, over the last ones."""

    def __init__(self, share: float) -> None:
        self._verdicts, self._accepted = TUNING.prior_rounds, TUNING.prior_rounds * share

    @property
    def share(self) -> float:
        return self._accepted / self._verdicts

    def above(self, deviations: float) -> float:
        """The share that is higher by so many standard deviations, at most 1."""
        share = self.share
        return min(share + deviations * math.sqrt(max(share * (1 - share), 0.01) / self._verdicts), 1.0)

    def add(self, accepted: bool, live: int) -> None:
        """A round was judged while that many chains were live."""
        keep = 1 - 1 / max(TUNING.verdicts, 4 * live)
        self._verdicts, self._accepted = self._verdicts * keep + 1, self._accepted * keep + accepted

    def notice(self, rejected: int, accepted: int) -> None:
        """Forget what was before the last rounds, where these cannot be of the same share."""
        count, share = rejected + accepted, self.share
        if (accepted - count * share) ** 2 > TUNING.change**2 * count * (share * (1 - share) + 0.01):
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
        return self._live / max(self.count, 1) * (1 + self._other_s / max(sum(self._seconds), SHORTEST_S))

    @property
    def bucket(self) -> int:
        """`bucket_of` their number of chains."""
        return bucket_of(self.chains)

    def pace(self, acceptance: float) -> float:
        """Seconds a token of a chain, with that share of accepted rounds."""
        tokens, seconds = self._other_tokens / max(self.count, 1), self._other_s / max(self.count, 1)
        for accepted, share in enumerate((1 - acceptance, acceptance)):
            if count := self.counts[accepted]:
                tokens += share * self._tokens[accepted] / count
                seconds += share * self._seconds[accepted] / count
        return max(seconds, SHORTEST_S) / max(tokens, 1.0)
