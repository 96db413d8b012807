"""How likely a step is right, by how hard it is, where that is beta-distributed over the steps. Pure."""

import math
from bisect import bisect_left
from functools import lru_cache
from itertools import accumulate

_CHANCES, _CELLS = 1024, 8192
_NEGLIGIBLE = 40.0
"""A density whose logarithm is so far below its greatest is left out."""


@lru_cache(maxsize=64)
def chances(accuracy: float, correlation: float) -> tuple[float, ...]:
    """Equally likely chances of being right, the best first: quantiles of the beta distribution with the mean `accuracy` and with
    parameters at which two draws by the same chance have the correlation `correlation`. Both are between 0 and 1, exclusively.

    In a beta-binomial distribution with the parameters a and b the mean is a / (a + b) and the correlation 1 / (a + b + 1).
    """
    total = 1 / correlation - 1
    a, b = accuracy * total, (1 - accuracy) * total
    mode = math.log(a / b)
    low, high = (_bound(a, b, mode, step) for step in (-1.0, 1.0))
    logits = [low + (high - low) * (cell + 0.5) / _CELLS for cell in range(_CELLS)]
    sums = list(accumulate(math.exp(_log_density(a, b, logit) - _log_density(a, b, mode)) for logit in logits))
    places = (bisect_left(sums, sums[-1] * (number + 0.5) / _CHANCES) for number in reversed(range(_CHANCES)))
    return tuple(math.exp(-_softplus(-logits[place])) for place in places)


def _bound(a: float, b: float, mode: float, step: float) -> float:
    """A logit on the side of `step` from the `mode` on from which the density is negligible."""
    while _log_density(a, b, mode + step) > _log_density(a, b, mode) - _NEGLIGIBLE:
        step *= 1.5
    return mode + step


def _log_density(a: float, b: float, logit: float) -> float:
    """Logarithm of the density of a beta-distributed chance's logit, but for a constant; that of the chance itself may be infinite."""
    return -a * _softplus(-logit) - b * _softplus(logit)


def _softplus(value: float) -> float:
    """log(1 + exp(value)) without overflow."""
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))
