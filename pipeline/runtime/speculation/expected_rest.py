"""How much of its thought a chain still has to write: lengths of thoughts that ended enter, expected rests leave. Pure."""

import math
from collections.abc import Sequence

SIGMA = 0.8
"""Assumed sigma of the logarithm of thoughts' lengths, between that of one problem's samples and that of a mixed data set."""
LONGEST = 2.0
"""How many times as long as until now all live chains are expected to take at most."""


class ExpectedRest:
    """Lengths as log-normal; the mean of their logarithm is estimated from thoughts that ended and those that have not."""

    def __init__(self) -> None:
        self._count = 0
        self._sum = 0.0

    def ended(self, tokens: int) -> None:
        """A thought of that many tokens ended."""
        self._count += 1
        self._sum += math.log(max(tokens, 1))

    def rests(self, written: Sequence[float]) -> list[float]:
        """Expected number of tokens still missing from thoughts of which that many are `written`."""
        known = [math.log(max(tokens, 1.0)) for tokens in written]
        mean = (self._sum + sum(known)) / (self._count + len(known)) if self._count else max(known, default=0.0)
        for _ in range(3):  # those that have not ended count with the length that is expected of them
            longer = sum(_mean_above((at - mean) / SIGMA) * SIGMA + mean for at in known)
            mean = (self._sum + longer) / max(self._count + len(known), 1)
        return [_rest(tokens, (at - mean) / SIGMA) for tokens, at in zip(written, known, strict=True)]


def _above(z: float) -> float:
    """The chance that a standard normal number is above `z`."""
    return max(0.5 * math.erfc(z / math.sqrt(2)), 1e-12)


def _mean_above(z: float) -> float:
    """The mean of standard normal numbers above `z`."""
    return max(math.exp(-z * z / 2) / math.sqrt(2 * math.pi) / _above(z), z)


def _rest(tokens: float, z: float) -> float:
    """Mean of a log-normal length given that it exceeds `tokens`, which lie at `z`, less `tokens`."""
    z = min(z, 6.0)
    mean = max(tokens, 1.0) * math.exp(-SIGMA * z + SIGMA * SIGMA / 2) * _above(z - SIGMA) / _above(z)
    return max(mean - tokens, 1.0)


def horizon(live: int, ended: int, exhausted: bool) -> float:
    """How many times as long as until now a run is expected to take at least, of whose chains some are `live` and some have `ended`.

    Where none of n chains has ended yet, the mean thought is longer than what was written by about the ratio of the mean to the
    least of n draws; this is it for log-normal lengths with a sigma of 0.7. While more chains come, as many are expected again as came.
    """
    longer = math.pow(1 + live / (1 + ended), 0.45)
    return (1 if exhausted else 2) * min(longer, LONGEST)
