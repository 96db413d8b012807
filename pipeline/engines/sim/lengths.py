"""How long simulated thoughts and steps are: what an engines file may say of it, the presets, and the distributions made of both. Pure.

A distribution gives a length for a standard normal draw: the greater the draw, the greater the length.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import NormalDist
from typing import Literal

from msgspec import Struct

Preset = Literal["gsm8k", "math", "aime"]
"""The names of `PRESETS`."""
Values = tuple[float, ...] | Mapping[str, float]
"""Samples, each as likely as the others, or quantiles by name: `{p10: 3, p50: 4, p90: 11, p100: 1102}`."""
MAX_LENGTHS = {"steps": 10_000, "step_tokens": 100_000}
"""The maximum number of steps of a thought, and of tokens of a step, where the lengths are measured ones."""
_NORMAL = NormalDist()


class SimLengthsSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long thoughts and steps are, as measured: the content of a file of lengths. Raises `ValueError` for what cannot be lengths.

    Between two quantiles, and beyond the outermost, the logarithm of a length is linear in the normal score of its share, so that two
    of them make a log-normal distribution. `p0` and `p100` bound it.
    """

    steps: Values | None = None
    """Steps of a thought, 1 to 10,000."""
    step_tokens: Values | None = None
    """Tokens of a step, 1 to 100,000, with the blank line or `</think>` that ends it."""

    def __post_init__(self) -> None:
        """Check the values."""
        if self.steps is None and self.step_tokens is None:
            raise ValueError("holds no lengths; give `steps`, `step_tokens` or both")
        for part, most in MAX_LENGTHS.items():
            if (values := getattr(self, part)) is not None:
                _check(part, values, most)


class LogNormal(Struct, frozen=True):
    """A log-normal distribution by mean and standard deviation of the logarithm."""

    log_mean: float
    log_sigma: float

    def at(self, normal: float) -> float:
        """The length for a standard normal draw."""
        return math.exp(self.log_mean + self.log_sigma * normal)


class Quantiles(Struct, frozen=True):
    """Log-normal pieces between quantiles: at the draw `normals[i]` the logarithm of the length is `logs[i]`."""

    normals: tuple[float, ...]
    logs: tuple[float, ...]
    low: float
    high: float
    """Logarithms of the least and the greatest length."""

    def at(self, normal: float) -> float:
        place = min(max(bisect_left(self.normals, normal), 1), len(self.normals) - 1)
        start, stop = self.normals[place - 1], self.normals[place]
        share = (normal - start) / (stop - start)
        log = self.logs[place - 1] + share * (self.logs[place] - self.logs[place - 1])
        return math.exp(min(max(log, self.low), self.high))


class Samples(Struct, frozen=True):
    """Each of `ordered` as likely as the others."""

    ordered: tuple[float, ...]

    def at(self, normal: float) -> float:
        return self.ordered[min(int(_NORMAL.cdf(normal) * len(self.ordered)), len(self.ordered) - 1)]


Distribution = LogNormal | Quantiles | Samples


def log_normal(mean: float, sigma: float) -> LogNormal:
    """The log-normal distribution whose mean is `mean`; `sigma` is the standard deviation of the logarithm."""
    return LogNormal(math.log(mean) - sigma * sigma / 2, sigma)


def distribution(values: Values, most: float) -> Distribution:
    """The distribution with the samples or quantiles `values`, no length above `most`."""
    if not isinstance(values, Mapping):
        return Samples(tuple(sorted(values)))
    by_share = {share_of(name) or 0.0: math.log(value) for name, value in values.items()}
    low, high = by_share.pop(0.0, 0.0), by_share.pop(1.0, math.log(most))
    inner = sorted(by_share.items())
    return Quantiles(tuple(_NORMAL.inv_cdf(share) for share, _ in inner), tuple(log for _, log in inner), low, high)


def share_of(quantile: str) -> float | None:
    """The share, 0 to 1, that the name of a quantile states: 0.5 for `p50`; None for another text."""
    found = re.fullmatch(r"p(\d{1,3}(?:\.\d{1,6})?)", quantile)
    return float(found[1]) / 100 if found and float(found[1]) <= 100 else None


def _check(part: str, values: Values, most: float) -> None:
    """Raise `ValueError` where `values` are no lengths of `part`; `most` is the greatest that it may have."""
    quantiles = isinstance(values, Mapping)
    named = list(values.items()) if isinstance(values, Mapping) else [(f"place {place}", value) for place, value in enumerate(values, 1)]
    if not named:
        raise ValueError(f"`{part}` is empty; give samples, such as [3, 4, 11], or quantiles, such as {{p10: 3, p50: 4, p90: 11}}")
    for name, value in named:
        if quantiles and share_of(name) is None:
            raise ValueError(f"`{part}` has the key `{name}`; quantiles are named p0 to p100, such as p50 or p99.9")
        if not 1 <= value <= most:
            raise ValueError(f"`{part}` is {value:g} at {name}; expected a number from 1 to {most:,}")
    if quantiles:
        _check_order(part, sorted((share_of(name) or 0.0, value, name) for name, value in named))


def _check_order(part: str, quantiles: Sequence[tuple[float, float, str]]) -> None:
    """Raise `ValueError` where quantiles, each as share, value and name, are doubled, fall or are too few."""
    for (low, below, name), (high, above, other) in pairwise(quantiles):
        if low == high:
            raise ValueError(f"`{part}` has `{name}` and `{other}`, which are the same quantile; drop one")
        if above < below:
            raise ValueError(f"`{part}` is {below:g} at {name} and {above:g} at {other}; quantiles must not decrease")
    if sum(0 < share < 1 for share, _, _ in quantiles) < 2:
        raise ValueError(f"`{part}` has fewer than two quantiles between p0 and p100, which only bound it; give two, such as p10 and p90")


PRESETS: dict[Preset, SimLengthsSpec] = {
    # The 1,500 thoughts of R1-Distill-Qwen-32B about GSM8K's training problems that were published with SCoT, cut at blank lines: 8.7 steps
    # on average with a ln sigma of 0.72, and 137 characters a step with 0.90. The longest thoughts are loops.
    "gsm8k": SimLengthsSpec(
        steps={
            **{"p0": 1, "p1": 2, "p5": 3, "p25": 3, "p50": 4, "p75": 5, "p90": 11, "p95": 26, "p98": 43, "p99": 64},
            **{"p99.5": 166, "p99.9": 584, "p100": 1102},
        },
        step_tokens={
            **{"p1": 4, "p5": 5, "p10": 9, "p25": 21, "p50": 41, "p75": 68, "p90": 97, "p95": 117, "p99": 159},
            **{"p99.9": 224, "p100": 483},
        },
    ),
    # 332 thoughts of R1-Distill-Qwen-14B about MATH-500, cut near 8,600 characters: 4,760 characters and 42.8 steps on average, a step of
    # 109 characters on average and 71 in the median, ln sigma 1.00. The steps are log-normal with GSM8K's ln sigma of 0.7, assumed, and
    # have this mean once they are cut there; uncut it is 51.
    "math": SimLengthsSpec(steps={"p10": 16.1, "p90": 96.9}, step_tokens={"p10": 6.5, "p50": 25.4, "p90": 84.4}),
    # Thoughts about competition problems have 40 to 200 steps, taken as p10 and p90. Steps as in 20 thoughts of R1-Distill-Llama-8B
    # about AIME: 134 characters on average, 104 in the median, ln sigma 0.98. These thoughts were cut near 6,600 characters, too early and
    # too few to tell how long they become.
    "aime": SimLengthsSpec(steps={"p10": 40, "p90": 200}, step_tokens={"p10": 8.2, "p50": 37.1, "p90": 99.8}),
}
"""Measured lengths by name. A token is taken for 2.8 characters: an evaluation of R1-Distill-Qwen-32B over several sets of mathematical
problems printed 7,886 characters and 2,849 tokens a thought. Of tokens per step, p10 and p90 of `math` and `aime` are those at which
mean and ln sigma come out as measured."""
