"""The constants of `Adaptive` and of its estimates, in one place: each a measured compromise, none a law.

A sigma is a standard deviation of the logarithm of a predicted speed. "Per e-fold" means: for each time that the quantity named grows or
shrinks by the factor e since the speed was last observed.
"""

from typing import Final

from msgspec import Struct


class Tuning(Struct, frozen=True, kw_only=True):
    """The controller's budgets, thresholds, lengths of observations and priors."""

    # Budgets, as shares of the time that the run is expected to take.
    trial_budget: float = 0.01
    """Trials with all chains may lose this share; twice as much once rounds are observed or one chain is left."""
    probe_budget: float = 0.015
    """A probe or a check begins only while no more than this share was lost."""

    # When to switch.
    min_gain: float = 1.05
    """The gain from which speculation, or another share of it, is worth a switch."""
    min_gain_of_share: float = 1.15
    """By what factor a smaller share must be better than a larger one, because a mixture is harder to predict."""
    hopeless_gain: float = 0.9
    """The gain below which verdicts end a trial, and at most expected after a trial that showed no more than that it loses."""
    retry_growth: float = 2.0
    """Rounds that lost are tried again when the run has taken this many times as long as until then."""
    stop_sigmas: float = 1.0
    """By how many standard deviations rounds must have lost at the end of a window to be stopped."""
    early_stop_sigmas: float = 2.5
    """By how many they must have lost to be stopped before its end."""

    # Who speculates.
    shares: tuple[float, ...] = (1.0, 0.75, 0.5)
    """Shares of the live chains that may speculate."""
    min_mixed_chains: int = 4
    """The fewest live chains of which some speculate and some do not."""
    probe_one_in: int = 64
    """One in this many chains is in a probe, and at least one."""
    waiting_one_in: int = 8
    """For this many requests that the target computes one may wait there, and at least one."""

    # How long to observe.
    first_count_s: float = 0.02
    """Seconds until the target's tokens are first counted."""
    first_sample_s: float = 2.0
    """Seconds until a direct request is first interrupted, where nobody counts the target's tokens."""
    min_iterations: int = 12
    """Iterations of the target that make an observation."""
    min_observed_s: float = 0.2
    """Seconds that make an observation."""
    min_rounds: int = 12
    """Rounds before which (and before two of every chain) a window is not judged early."""
    window_rounds: int = 24
    """The fewest rounds of a whole window."""
    judged_per_round: int = 16
    """The number of times that rounds are judged while each of the speculating chains has one."""
    first_verdicts: int = 4
    """Verdicts at which the acceptance of a trial is first looked at; then at twice as many."""
    turn_steps: int = 4
    """Steps that direct mode may be ahead while chains have their first round, for which both engines compute their contexts."""

    # How uncertain a prediction is.
    sigma_untried: float = 0.6
    """Before any round was observed."""
    sigma_probed: float = 0.1
    """After a probe."""
    sigma_per_unprobed: float = 0.05
    """Added after a probe, per e-fold from the probed chains to all."""
    sigma_rounds_per_time: float = 0.1
    """Of rounds, per e-fold of the time since the start of the run."""
    sigma_direct_per_time: float = 0.03
    """Of direct mode, per e-fold of the time since the start of the run."""
    sigma_per_chains: float = 0.2
    """Per e-fold of the number of live chains."""
    sigma_per_context: float = 0.1
    """Per e-fold of their mean context."""

    # What is assumed, and how observations replace it.
    draft_cost: float = 0.25
    """The share of a target's iteration that a draft's takes, before any draft was observed."""
    interference: float = 0.5
    """`CostModel.interference` before it was observed."""
    prior_weight: int = 3
    """Observations that what is assumed weighs."""
    max_weight: int = 64
    """Observations that what is known weighs at most."""
    min_losing_weight: float = 0.5
    """The least weight of a window that ended because it lost."""
    max_correction: float = 100.0
    """By what factor a prediction is taken to be off at most."""
    correction_fade: float = 0.25
    """The power of the share of chains that are left with which the logarithm of a correction shrinks."""
    fit_decay: float = 0.97
    """The weight of an observation of the target alone after the next one came."""
    fit_prior: float = 0.02
    """The weight of the assumption that neither contexts nor sequences matter."""
    ridge_sequences: float = 250.0
    """Sequences whose arithmetic takes as long as reading the weights, about that of today's accelerators."""
    length_sigma: float = 0.8
    """Sigma of the logarithm of thoughts' lengths, between that of one problem's samples and that of a mixed data set."""
    max_longer: float = 2.0
    """All live chains are expected to take at most this many times as long as until now."""


TUNING: Final = Tuning()
