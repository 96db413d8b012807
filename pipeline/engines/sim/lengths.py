"""How long simulated thoughts and steps are: distributions, and presets of measured ones. Pure.

A distribution gives a length for a standard normal draw: the greater the draw, the greater the length.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Literal

Preset = Literal["gsm8k", "math", "aime"]
"""The names of `PRESETS`."""
MAX_LENGTHS = {"steps": 10_000, "step_tokens": 100_000}
"""The maximum number of steps of a thought, and of tokens of a step, where the lengths are measured ones."""
Distribution = Callable[[float], float]


def log_normal(mean: float, sigma: float) -> Distribution:
    """The log-normal distribution whose mean is `mean`; `sigma` is the standard deviation of the logarithm."""
    log_mean = math.log(mean) - sigma * sigma / 2
    return lambda normal: math.exp(log_mean + sigma * normal)


def quantiles(values: Mapping[float, float], most: float) -> Distribution:
    """The distribution with these `values` by their percentiles, in order: between two of them, and beyond the outermost, the logarithm of
    a length is linear in the normal score of its share. 0 and 100 bound it; no length is above `most`."""
    bounds = math.log(values.get(0, 1.0)), math.log(values.get(100, most))
    inner = {NormalDist().inv_cdf(percent / 100): math.log(value) for percent, value in values.items() if 0 < percent < 100}
    normals, logs = tuple(inner), tuple(inner.values())

    def at(normal: float) -> float:
        place = min(max(bisect_left(normals, normal), 1), len(normals) - 1)
        share = (normal - normals[place - 1]) / (normals[place] - normals[place - 1])
        return math.exp(min(max(logs[place - 1] + share * (logs[place] - logs[place - 1]), bounds[0]), bounds[1]))

    return at


def _quantiles(**parts: Mapping[float, float]) -> dict[str, Distribution]:
    return {part: quantiles(values, MAX_LENGTHS[part]) for part, values in parts.items()}


PRESETS: dict[Preset, dict[str, Distribution]] = {
    # The 1,500 thoughts of R1-Distill-Qwen-32B about GSM8K's training problems that were published with SCoT, cut at blank lines: 8.7 steps
    # on average with a ln sigma of 0.72, and 137 characters a step with 0.90. The longest thoughts are loops.
    "gsm8k": _quantiles(
        steps={0: 1, 1: 2, 5: 3, 25: 3, 50: 4, 75: 5, 90: 11, 95: 26, 98: 43, 99: 64, 99.5: 166, 99.9: 584, 100: 1102},
        step_tokens={1: 4, 5: 5, 10: 9, 25: 21, 50: 41, 75: 68, 90: 97, 95: 117, 99: 159, 99.9: 224, 100: 483},
    ),
    # 332 thoughts of R1-Distill-Qwen-14B about MATH-500, cut near 8,600 characters: 4,760 characters and 42.8 steps on average, a step of
    # 109 characters on average and 71 in the median, ln sigma 1.00. The steps are log-normal with GSM8K's ln sigma of 0.7, assumed, and
    # have this mean once they are cut there; uncut it is 51.
    "math": _quantiles(steps={10: 16.1, 90: 96.9}, step_tokens={10: 6.5, 50: 25.4, 90: 84.4}),
    # Thoughts about competition problems have 40 to 200 steps, taken as p10 and p90. Steps as in 20 thoughts of R1-Distill-Llama-8B
    # about AIME: 134 characters on average, 104 in the median, ln sigma 0.98. These thoughts were cut near 6,600 characters, too early and
    # too few to tell how long they become.
    "aime": _quantiles(steps={10: 40, 90: 200}, step_tokens={10: 8.2, 50: 37.1, 90: 99.8}),
}
"""Measured lengths by name. A token is taken for 2.8 characters: an evaluation of R1-Distill-Qwen-32B over several sets of mathematical
problems printed 7,886 characters and 2,849 tokens a thought. Of tokens per step, p10 and p90 of `math` and `aime` are those at which
mean and ln sigma come out as measured."""
