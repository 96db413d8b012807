"""How a claim of a paper is judged, by an interval and never by a figure alone; and what the claims are about, measured.

Tables of runs by name enter, verdicts with their figures leave, those of each bundled pair by themselves. Nothing is run here.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct, structs

from pipeline.analysis.compare.figures import Compared, Difference
from pipeline.analysis.compare.runs import RunTable
from pipeline.analysis.quality.estimates import NOTHING, Estimate, difference, estimate

Runs = Mapping[str, RunTable]
PairName = Literal["tiny", "wordy"]
"""The bundled pairs of models."""
PREFIX = "wordy-"
"""The prefix of the names of the runs of `wordy`; those of `tiny` and simulated ones have no prefix."""
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
    """The property that the claim rests on and `lacked_by` lack, as a clause: it is not tested, whatever is measured. Empty: none."""
    lacked_by: tuple[PairName, ...] = ("tiny",)
    note: str = ""

    @property
    def simulated(self) -> bool:
        """True if it needs simulated runs only, which are of neither pair."""
        return all(name.startswith("sim-") for name in self.runs)

    def remark(self, pair: PairName) -> str:
        """A note on the verdict with `pair`; may be empty."""
        return self.note if self.tests(pair) else self.lacks

    def tests(self, pair: PairName) -> bool:
        """True if runs of `pair` can test it."""
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
    """The verdict of the `runs` of `pair` on `claim`, with `noise` between runs of the same work; None: not known, no clock is believed."""
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


# What the claims are about.


def over(run: str, base: str, of: str) -> Callable[[Runs], Estimate]:
    """The field `of` of the `Difference` of one run over another."""
    return lambda runs: getattr(Difference(runs[run], runs[base]), of)


def saved_more(runs: Runs) -> Estimate:
    """Share of the time that four cards save over two: the target's less SpecCoT's."""
    columns = [runs[name].latency_s for name in ("sim-target-2", "sim-target-4", "sim-speccot-2", "sim-speccot-4")]
    return estimate(lambda t2, t4, s2, s4: s4 / s2 - t4 / t2, *columns)


def class_gap(runs: Runs) -> Estimate:
    """Right predictions of class 1 less those of class 2, problems as they are drawn."""
    choices = runs["scot"].details.choices
    if choices is None:
        return NOTHING
    first = choices.right_drafts > 0
    count = len(runs["scot"].problem_ids)

    def of_problems(values: np.ndarray, which: np.ndarray) -> np.ndarray:
        return np.bincount(choices.problem[which], values[which], count)

    ones, of_class_2 = np.ones(len(first)), ~first
    one = of_problems(choices.picked_right, first), of_problems(ones, first)
    return difference(*one, of_problems(choices.rejected, of_class_2), of_problems(ones, of_class_2))


def class_2(runs: Runs) -> Estimate:
    """Right predictions of class 2 by the target without SCoT's training."""
    selection = Compared(runs["scot-untuned"], runs["scot-untuned"]).selection
    return NOTHING if selection is None else selection.class_2_right


def by_target(runs: Runs) -> Estimate:
    """The target's share of the thinking tokens of SCoT, those of the draft model being those of its longest draft (SCoT table 1)."""
    scot = runs["scot"]
    if "longest" not in scot.details.texts:
        return NOTHING
    accepted = scot.details.texts["accepted"].tokens if "accepted" in scot.details.texts else np.zeros(len(scot.chains))
    return estimate(
        lambda target, draft: target / (target + draft), scot.thought_tokens * scot.chains - accepted, scot.details.texts["longest"].tokens
    )


def score_agreement(runs: Runs) -> Estimate:
    """The correlation of SpecReason's scores of drafted steps with the rewards of these, its interval over problems."""
    scored = runs["specreason"].details.scored
    if scored is None:
        return NOTHING
    x, y = scored.score, scored.reward
    sums = [np.bincount(scored.problem, each) for each in (np.ones(len(x)), x, y, x * x, y * y, x * y)]
    return estimate(lambda n, x, y, xx, yy, xy: (n * xy - x * y) / np.sqrt((n * xx - x * x) * (n * yy - y * y)), *sums)


def gain_when_tight(runs: Runs) -> Estimate:
    """The gain of SpecReason over the target with a tight token budget, less that with an ample one."""
    tables = [runs[name] for name in ("specreason-tight", "target-tight", "specreason", "target")]
    columns = [column for run in tables for column in (run.right, run.graded)]
    return estimate(lambda a, m, b, n, c, o, d, p: a / m - b / n - (c / o - d / p), *columns)


def selecting(runs: Runs) -> Estimate:
    """The gain in the reward of a step by selecting."""
    quality = Compared(runs["speccot"], runs["speccot"]).quality
    return NOTHING if quality is None else quality.gain


def second_thoughts(runs: Runs) -> Estimate:
    """Reflective words per 1,000 words: of fallback steps less of drafts. Nothing where neither has any."""
    found = Compared(runs["speccot"], runs["speccot"])
    said = any(found.reflective[kind].value for kind in ("drafted", "fallback") if kind in found.reflective)
    return found.reflective_gain if said else NOTHING


def best_draft(runs: Runs) -> Estimate:
    """Problems that one of the drafted thoughts solves, less those that the draft model solves alone."""
    drafts, choices = runs["best-of-n"], runs["best-of-n"].details.choices
    if choices is None:
        return NOTHING
    count = len(drafts.problem_ids)
    solved = np.bincount(choices.problem, choices.right_drafts > 0, count)
    best = structs.replace(drafts, right=solved, graded=np.bincount(choices.problem, minlength=count))
    return Difference(best, runs["draft"]).accuracy_gain


def throughput(runs: Runs) -> Estimate:
    """Wall time at batch size 1 over that at 128: single figures."""
    small, large = runs["speccot-b1"].wall_time_s, runs["speccot-b128"].wall_time_s
    return Estimate(small / large if large else math.nan)
