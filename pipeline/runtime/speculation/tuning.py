"""The constants of `Adaptive`, in one place: each a compromise that was measured on bench/frontier.py's map, none a law."""

from typing import Final

from msgspec import Struct


class Tuning(Struct, frozen=True, kw_only=True):
    """Thresholds, lengths of observations, priors."""

    losing: float = 0.97
    """Below this gain rounds lose. A switch costs each chain about half a step, so that a smaller loss is not worth one."""
    returning: float = 1.05
    """The gain from which rounds are tried with a number of chains with which they never were, and once more to the power of each time that
    they lost with it: where neither mode is clearly faster, switching between them costs more than either."""
    sure: float = 1.25
    """The estimated gain from which direct mode need not be looked at early; the margin is for what the estimate leaves out."""
    few_chains: int = 8
    """Only with so few chains is there an estimate, as verifications of more slow what the target writes beside them; and only with so few
    is a draft as fast as it is alone."""
    look_rounds: int = 4
    """Rounds of each chain before direct mode is looked at; where the estimate is `sure`, `late_rounds` of them."""
    late_rounds: int = 32
    window_rounds: int = 3
    """Rounds of each chain that make a window."""
    min_rounds: int = 16
    """The fewest rounds of a window: with one chain three are mostly chance."""
    early_rounds: int = 6
    """The fewest rounds from which rounds can be ended before their window is whole, at least one of each chain."""
    early_deviations: float = 2.5
    """They are ended so if they would lose even with an acceptance that is higher by this many standard deviations; at the end of a
    second losing window one will do."""
    verdicts: int = 300
    """Verdicts over which the acceptance is taken, at least four of each chain: with 300 it is known to 0.025, the gain to 2 %."""
    change: float = 3.0
    """Standard deviations by which a window's acceptance must differ for all verdicts before it to be forgotten."""
    prior_gain: float = 1.2
    """The gain that is assumed before any was seen; less than the mean of the map (1.7), because what loses must be noticed."""
    draft_cost: float = 0.5
    """What a token of a draft costs, in tokens of the target, as long as none was seen with few chains."""
    prior_rounds: float = 6.0
    """Rounds that the prior weighs, and verdicts that its acceptance does."""
    max_rounds: float = 64.0
    """Rounds that what is known weighs at most, so that a window of many chains replaces it."""
    iterations: int = 12
    """Iterations of the target that make an observation of direct mode."""
    observed_s: float = 0.2
    """Seconds of one at least: iterations of real engines differ, and 12 of a small model are over in 30 ms."""
    room_one_in: int = 8
    """For this many requests that the target computes one may wait there, and at least one."""


TUNING: Final = Tuning()
