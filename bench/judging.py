"""How a claim of a paper is judged: an interval decides, never a figure alone.

Tables of runs by name enter, verdicts with their figures leave, those of each bundled pair by themselves. Nothing is run here.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from pipeline.analysis.compare.runs import RunTable
from pipeline.analysis.quality.estimates import NOTHING, Estimate

Runs = Mapping[str, RunTable]
PairName = Literal["tiny", "wordy"]
"""The bundled pairs of models."""
PREFIX = "wordy-"
"""What the names of the runs of `wordy` begin with; those of `tiny` and simulated ones have no prefix."""
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447)
"""Student's t, 97.5 %, with 1 to 6 degrees of freedom."""
Verdict = Literal["holds", "does not hold", "cannot be said", "not testable here", "not run"]


class Claim(Struct, frozen=True, kw_only=True):
    """One sentence of a paper, and what would show it here."""

    where: str
    says: str
    """In our words."""
    theirs: str
    """Their number."""
    runs: tuple[str, ...]
    """Names of the runs that it takes, as those of `tiny` are called."""
    measure: Callable[[Runs], Estimate]
    is_: Literal["above", "below"]
    bound: float
    form: Callable[[Estimate], str]
    timed: bool = False
    """A ratio of times by a real clock: its interval over problems does not hold what other work on the machine did to a run."""
    lacks: str = ""
    """What the claim rests on and `lacked_by` do not have, as a clause: whatever is measured, it is not tested. Empty: nothing."""
    lacked_by: tuple[PairName, ...] = ("tiny",)
    note: str = ""

    @property
    def simulated(self) -> bool:
        """Whether it needs simulated runs only, which are of neither pair."""
        return all(name.startswith("sim-") for name in self.runs)

    def remark(self, pair: PairName) -> str:
        """What a reader has to know of the verdict with `pair`; may be empty."""
        return self.note if self.tests(pair) else self.lacks

    def tests(self, pair: PairName) -> bool:
        """Whether runs of `pair` can test it."""
        return not self.lacks or pair not in self.lacked_by


class Found(Struct, frozen=True):
    """A claim, our number, and what follows."""

    claim: Claim
    ours: Estimate
    verdict: Verdict
    remark: str

    @property
    def said(self) -> str:
        """Our number with its interval, or why there is none."""
        if self.ours.value is None:
            return "nothing to measure" if self.verdict != "not run" else "-"
        return self.claim.form(self.ours)


def judge(claim: Claim, runs: Runs, noise: float | None = None, pair: PairName = "tiny") -> Found:
    """What the `runs` of `pair` say about `claim`, with `noise` between runs of the same work; None: not known, no clock is believed."""
    runs = runs_of(pair, runs)
    if missing(claim, runs):
        return Found(claim, NOTHING, "not run", "")
    ours = claim.measure(runs)
    if claim.timed:
        ours = widened(ours, noise)
    verdict: Verdict = verdict_of(ours, claim.is_, claim.bound) if claim.tests(pair) else "not testable here"
    return Found(claim, ours, verdict, claim.remark(pair))


def runs_of(pair: PairName, runs: Runs) -> dict[str, RunTable]:
    """Those of `runs` that are of `pair`, by their names without its prefix; simulated ones count to `tiny`."""
    own = {name: run for name, run in runs.items() if name.startswith(PREFIX) == (pair == "wordy")}
    return {name.removeprefix(PREFIX): run for name, run in own.items()}


def noise_of(repeats: Iterable[Sequence[RunTable]]) -> float | None:
    """The factor within which 95 % of the ratios between two runs of the same work lie; None without two such runs.

    Mean latencies are taken as log-normal with one variance for all systems, pooled over `repeats`, the runs of each.
    """
    logs = [np.log([run.latency_s.mean() for run in same]) for same in repeats if len(same) > 1]
    freedom = sum(len(each) - 1 for each in logs)
    if not freedom:
        return None
    variance = sum(float(((each - each.mean()) ** 2).sum()) for each in logs) / freedom
    return math.exp(T_975[min(freedom, len(T_975)) - 1] * math.sqrt(2 * variance))


def widened(ours: Estimate, noise: float | None) -> Estimate:
    """A ratio of times with the interval that `noise` between runs leaves of it."""
    if noise is None or ours.value is None:
        return Estimate(ours.value)
    low, high = (ours.value if end is None else end for end in (ours.low, ours.high))
    return Estimate(ours.value, low / noise, high * noise)


def missing(claim: Claim, runs: Runs) -> list[str]:
    """Runs that the claim needs and that are missing."""
    return [name for name in claim.runs if name not in runs]


def verdict_of(ours: Estimate, is_: Literal["above", "below"], bound: float) -> Verdict:
    """Holds when the whole interval is on the claim's side of `bound`, does not when none of it is, not even beyond the bound itself."""
    if ours.low is None or ours.high is None:
        return "cannot be said"
    if is_ == "above":
        return "holds" if ours.low > bound else "does not hold" if ours.high <= bound else "cannot be said"
    return "holds" if ours.high < bound else "does not hold" if ours.low >= bound else "cannot be said"
