"""How far simulated times are from measured ones, to be shown with every simulated speed."""

from collections.abc import Collection, Iterable

from pipeline.analysis.resources import EngineFacts

MEDIAN_ERROR = 0.11
"""Median error of the wall times that fitted engines predict of runs that they were not fitted to, with the recorded text.
bench/calibration.py measures it and writes it here; it is `median_error` of bench/results/calibration.json."""
OWN_TEXT_ERROR: float | None = None
"""The same where the fitted engines write text of their own: `own_text_error`. None: not measured since that text is as it is."""
TOKEN_LEVEL_ERROR = 0.18
"""Mean |ln| of simulated over printed speed-ups by token-level speculation, of sources that the fit has not seen: `token_level_error`
there."""


def sentence(median_error: float, own_text_error: float | None) -> str:
    """How far simulated times are from measured ones, as shares of the measured ones."""
    own = "not measured" if own_text_error is None else f"{own_text_error:.0%}"
    recorded = f"Simulated; on our measured points this simulator is off by a median of {median_error:.0%} with recorded text"
    return f"{recorded}; with its own: {own}."


def stated(fit_errors: Iterable[float | None], token_level: bool = False) -> str:
    """The sentence shown with simulated speeds; `fit_errors` are those of devices with fitted rates, None for the others. `token_level`:
    an engine speculates token by token."""
    worst = max((error for error in fit_errors if error is not None), default=None)
    fitted = "" if worst is None else f" The rates here were fitted, and times of single calls are off by {worst:.1%} on average."
    inside = f" Speed-ups by token-level speculation are off by {TOKEN_LEVEL_ERROR:.0%} of printed ones on average." if token_level else ""
    return sentence(MEDIAN_ERROR, OWN_TEXT_ERROR) + fitted + inside


def of_facts(engines: Collection[EngineFacts]) -> str:
    """The same of simulated engines that stated these facts."""
    return stated((each.fit_error for each in engines), any(each.token_level for each in engines))


def of_engines(engines: Collection[EngineFacts]) -> str:
    """The same of the engines of a run on virtual time; empty where none is on a simulated device, as those of a replay that take as long
    as they were recorded to."""
    return of_facts(engines) if any(each.devices for each in engines) else ""
