"""How hard steps are: the chances with which a simulated model gets its steps right, where each step has its own. Pure."""

import math
from functools import lru_cache
from typing import Any

import numpy as np

_CHANCES, _CELLS = 1024, 8192
_NEGLIGIBLE = 40.0
"""A density whose logarithm is so far below its greatest is left out."""


@lru_cache(maxsize=64)
def chances(accuracy: float, correlation: float) -> tuple[float, ...]:
    """Equally likely chances of being right, the best first: quantiles of the beta distribution with the mean `accuracy` and with
    parameters at which two draws by the same chance have the correlation `correlation`. Both are between 0 and 1, exclusively.

    In a beta-binomial distribution with the parameters a and b the mean is a / (a + b) and the correlation 1 / (a + b + 1). Quantiles are
    those of the logit, as the density of a chance itself may be infinite.
    """
    total = 1 / correlation - 1
    a, b = accuracy * total, (1 - accuracy) * total
    mode = math.log(a / b)

    def log_density(logit: Any) -> Any:
        """But for a constant."""
        return -a * np.logaddexp(0, -logit) - b * np.logaddexp(0, logit)

    ends = []
    for step in (-1.0, 1.0):
        while log_density(mode + step) > log_density(mode) - _NEGLIGIBLE:
            step *= 1.5
        ends.append(mode + step)
    logits = ends[0] + (ends[1] - ends[0]) * (np.arange(_CELLS) + 0.5) / _CELLS
    sums = np.cumsum(np.exp(log_density(logits) - log_density(mode)))
    places = np.searchsorted(sums, sums[-1] * (np.arange(_CHANCES)[::-1] + 0.5) / _CHANCES)
    return tuple(np.exp(-np.logaddexp(0, -logits[places])).tolist())
