"""What the papers claim, as data: where, their number, what is measured here, and from where on it holds.

Tables of runs by name enter, verdicts with their figures leave, those of each bundled pair by themselves; an interval decides, never a
figure alone. Nothing is run here.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct, structs

from pipeline.analysis.compare.cells import number, percent, reward
from pipeline.analysis.compare.figures import Difference, differ, figures
from pipeline.analysis.compare.runs import RunTable
from pipeline.analysis.quality.estimates import NOTHING, Estimate, difference, estimate

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
    """What the claim rests on and `lacked_by` do not have, as a sentence: whatever is measured, it is not tested. Empty: nothing."""
    lacked_by: tuple[PairName, ...] = ("tiny",)
    note: str = ""

    @property
    def simulated(self) -> bool:
        """Whether it takes simulated runs alone, which are of neither pair."""
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
    """Runs that the claim takes and that are not there."""
    return [name for name in claim.runs if name not in runs]


def verdict_of(ours: Estimate, is_: Literal["above", "below"], bound: float) -> Verdict:
    """Holds when the whole interval is on the claim's side of `bound`, does not when none of it is, not even beyond the bound itself."""
    if ours.low is None or ours.high is None:
        return "cannot be said"
    if is_ == "above":
        return "holds" if ours.low > bound else "does not hold" if ours.high <= bound else "cannot be said"
    return "holds" if ours.high < bound else "does not hold" if ours.low >= bound else "cannot be said"


def over(run: str, base: str, take: Callable[[Difference], Estimate]) -> Callable[[Runs], Estimate]:
    """A difference of one run over another."""
    return lambda runs: take(differ(runs[run], runs[base]))


def points(e: Estimate) -> str:
    """A difference of shares."""
    return percent(e, sign=True)


def saved_more(runs: Runs) -> Estimate:
    """Share of the time that four cards save over two: the target's less SpecCoT's."""
    columns = [runs[name].latency_s for name in ("sim-target-2", "sim-target-4", "sim-speccot-2", "sim-speccot-4")]
    return estimate(lambda t2, t4, s2, s4: s4 / s2 - t4 / t2, *columns)


def class_gap(runs: Runs) -> Estimate:
    """Right predictions of class 1 less those of class 2, problems as they are drawn."""
    choices = runs["scot"].choices
    if choices is None:
        return NOTHING
    first = choices.right_drafts > 0
    count = len(runs["scot"].problem_ids)

    def of_problems(values: np.ndarray, which: np.ndarray) -> np.ndarray:
        return np.bincount(choices.problem[which], values[which], count)

    ones = np.ones(len(first))
    columns = (
        of_problems(choices.picked_right, first),
        of_problems(ones, first),
        of_problems(choices.rejected, ~first),
        of_problems(ones, ~first),
    )
    return difference(*columns)


def class_2(runs: Runs) -> Estimate:
    """Right predictions of class 2 by the target without SCoT's training."""
    selection = figures(runs["scot-untuned"], runs["scot-untuned"]).selection
    return NOTHING if selection is None else selection.class_2_right


def by_target(runs: Runs) -> Estimate:
    """The target's share of the thinking tokens of SCoT, those of the draft model being those of its longest draft (SCoT table 1)."""
    scot = runs["scot"]
    if "longest" not in scot.texts:
        return NOTHING
    accepted = scot.texts["accepted"].tokens if "accepted" in scot.texts else np.zeros(len(scot.chains))
    return estimate(
        lambda target, draft: target / (target + draft), scot.thought_tokens * scot.chains - accepted, scot.texts["longest"].tokens
    )


def score_agreement(runs: Runs) -> Estimate:
    """The correlation of SpecReason's scores of drafted steps with the rewards of these, its interval over problems."""
    scored = runs["specreason"].scored
    if scored is None:
        return NOTHING
    x, y = scored.score, scored.reward
    sums = [np.bincount(scored.problem, each) for each in (np.ones(len(x)), x, y, x * x, y * y, x * y)]
    return estimate(lambda n, x, y, xx, yy, xy: (n * xy - x * y) / np.sqrt((n * xx - x * x) * (n * yy - y * y)), *sums)


def gain_when_tight(runs: Runs) -> Estimate:
    """What SpecReason gains over the target with a tight token budget, less what it gains with an ample one."""
    tables = [runs[name] for name in ("specreason-tight", "target-tight", "specreason", "target")]
    columns = [column for run in tables for column in (run.right, run.graded)]
    return estimate(lambda a, m, b, n, c, o, d, p: a / m - b / n - (c / o - d / p), *columns)


def selecting(runs: Runs) -> Estimate:
    """What selecting adds to the reward of a step."""
    quality = figures(runs["speccot"], runs["speccot"]).quality
    return NOTHING if quality is None else quality.gain


def second_thoughts(runs: Runs) -> Estimate:
    """Reflective words per 1,000 words: of fallback steps less of drafts. Nothing where neither has any."""
    found = figures(runs["speccot"], runs["speccot"])
    return (
        found.reflective_gain
        if any(found.reflective[kind].value for kind in ("drafted", "fallback") if kind in found.reflective)
        else NOTHING
    )


def best_draft(runs: Runs) -> Estimate:
    """Problems that one of the drafted thoughts solves, less those that the draft model solves alone."""
    drafts, choices = runs["best-of-n"], runs["best-of-n"].choices
    if choices is None:
        return NOTHING
    count = len(drafts.problem_ids)
    solved = np.bincount(choices.problem, choices.right_drafts > 0, count)
    best = structs.replace(drafts, right=solved, graded=np.bincount(choices.problem, minlength=count))
    return differ(best, runs["draft"]).accuracy_gain


def throughput(runs: Runs) -> Estimate:
    """Wall time at batch size 1 over that at 128: single figures."""
    small, large = runs["speccot-b1"].wall_time_s, runs["speccot-b128"].wall_time_s
    return Estimate(small / large if large else math.nan)


UNTUNED = "Without SCoT's training a bundled target never saw a choice among whole thoughts, as the paper's general models have."
TUNED = "Measured with the adapter of SCoT's training (section 3.4), which SpecCoT's target does not have."
TERSE = "Both models of `tiny` learnt from the same short solutions: neither is wordy, so that there is nothing to save."
PERFECT = "The target of `tiny` solves next to every problem: there is no room above it."
ALL_OR_NOTHING = "The target of `tiny` gives a step all points or none, so that no threshold between differs from another."
SMALL = "A bundled target costs little more a token than its draft, and a CPU gains little from reading many tokens at once."
SIMULATED = "Simulated: QwQ-32B and R1-Distill-Qwen-1.5B on H100s, a roofline with the rates calibrated on A100s (bench/calibration.md)."
SHARED = "The reward model of `tiny` shares five layers with the target that judges."
SAME_LABELS = "The reward model of `wordy` has no weights of the target; both learnt from the same generator what a right step is."
LANGUAGE = "The language of `tiny` has no words of second thoughts."

CLAIMS = (
    Claim(
        where="SpecCoT 4.2, table 2",
        says="faster than the target alone",
        theirs="r = 1.7 to 4.1",
        runs=("speccot", "target"),
        measure=over("speccot", "target", lambda d: d.speed_up),
        is_="above",
        bound=1,
        form=number,
        timed=True,
        note=SMALL,
    ),
    Claim(
        where="SpecCoT 4.2, table 2",
        says="faster than the target alone, one problem at a time",
        theirs="r = 2.0 to 3.3 (QwQ-32B)",
        runs=("sim-speccot-2", "sim-target-2"),
        measure=over("sim-speccot-2", "sim-target-2", lambda d: d.speed_up),
        is_="above",
        bound=1,
        form=number,
        note=SIMULATED,
    ),
    Claim(
        where="SpecCoT 4.2",
        says="fewer committed tokens than the target alone",
        theirs="-50.2 % (GSM8K, QwQ-32B)",
        runs=("speccot", "target"),
        measure=over("speccot", "target", lambda d: d.token_change),
        is_="below",
        bound=0,
        form=points,
        lacks=TERSE,
    ),
    Claim(
        where="SpecCoT 4.2, figure 3",
        says="accuracy no more than a point below the target's",
        theirs="comparable",
        runs=("speccot", "target"),
        measure=over("speccot", "target", lambda d: d.accuracy_gain),
        is_="above",
        bound=-0.01,
        form=points,
    ),
    Claim(
        where="SpecCoT 4.2, figure 3",
        says="accuracy above the draft's",
        theirs="on all benchmarks",
        runs=("speccot", "draft"),
        measure=over("speccot", "draft", lambda d: d.accuracy_gain),
        is_="above",
        bound=0,
        form=points,
    ),
    Claim(
        where="SpecCoT 4.3, figure 4a",
        says="more accurate with the target's first tokens than without",
        theirs="on three data sets",
        runs=("speccot", "guidance-0"),
        measure=over("speccot", "guidance-0", lambda d: d.accuracy_gain),
        is_="above",
        bound=0,
        form=points,
    ),
    Claim(
        where="SpecCoT 4.3, figure 4b",
        says="with 10 candidates the fallback rate is below that with 1",
        theirs="a substantial decrease",
        runs=("candidates-10", "candidates-1"),
        measure=over("candidates-10", "candidates-1", lambda d: d.fallback_change),
        is_="below",
        bound=0,
        form=points,
        lacks="The target of `tiny` never saw more than 5 candidates.",
    ),
    Claim(
        where="SpecCoT 4.3, figure 4b",
        says="and with 5 candidates",
        theirs="a substantial decrease",
        runs=("candidates-5", "candidates-1"),
        measure=over("candidates-5", "candidates-1", lambda d: d.fallback_change),
        is_="below",
        bound=0,
        form=points,
    ),
    Claim(
        where="SpecCoT 4.4.3, table 4",
        says="from 2 to 4 GPUs the target alone saves a larger share of its time",
        theirs="35.3 % against 19.3 % (GSM8K, QwQ-32B)",
        runs=("sim-target-2", "sim-target-4", "sim-speccot-2", "sim-speccot-4"),
        measure=saved_more,
        is_="above",
        bound=0,
        form=points,
        note=SIMULATED,
    ),
    Claim(
        where="SpecCoT A.1, table 5",
        says="selected steps are better than the drafts they were selected from",
        theirs="+0.023 (GSM8K)",
        runs=("speccot",),
        measure=selecting,
        is_="above",
        bound=0,
        form=lambda e: reward(e, sign=True),
        lacks=SHARED,
        note=SAME_LABELS,
    ),
    Claim(
        where="SpecCoT A.1",
        says="fallback steps hold more words of second thoughts than drafts",
        theirs="no number",
        runs=("speccot",),
        measure=second_thoughts,
        is_="above",
        bound=0,
        form=lambda e: number(e, sign=True),
        lacks=LANGUAGE,
    ),
    Claim(
        where="SpecCoT A.2, table 6",
        says="at batch size 128 less wall time than at 1",
        theirs="2.45 times",
        runs=("speccot-b1", "speccot-b128"),
        measure=throughput,
        is_="above",
        bound=1,
        form=number,
        timed=True,
    ),
    Claim(
        where="SpecCoT A.3",
        says="faster with the draft model inside the target's engine too",
        theirs="r = 1.11 and 1.20 (3.33 to 3.01 s, 15.68 to 13.07 s)",
        runs=("speccot-decode", "vllm-speccot"),
        measure=over("speccot-decode", "vllm-speccot", lambda d: d.speed_up),
        is_="above",
        bound=1,
        form=number,
        timed=True,
        note=SMALL,
    ),
    Claim(
        where="SCoT 3.2, figure 2",
        says="with the best of its 5 drafts the draft model is more accurate than with one",
        theirs="close to the 32B model",
        runs=("best-of-n", "draft"),
        measure=best_draft,
        is_="above",
        bound=0,
        form=points,
    ),
    Claim(
        where="SpecCoT 2.3, figure 1a",
        says="and so it is with the one of 5 that the target picks",
        theirs="no number",
        runs=("best-of-n", "draft"),
        measure=over("best-of-n", "draft", lambda d: d.accuracy_gain),
        is_="above",
        bound=0,
        form=points,
        note=TUNED,
    ),
    Claim(
        where="SpecCoT 2.3, figure 1b",
        says="the draft model alone is more accurate behind the target's first tokens",
        theirs="no number",
        runs=("guided-draft", "draft"),
        measure=over("guided-draft", "draft", lambda d: d.accuracy_gain),
        is_="above",
        bound=0,
        form=points,
    ),
    Claim(
        where="SCoT 4.2, table 1",
        says="the thinking stage is faster than the target's alone",
        theirs="r = 1.90 to 2.92",
        runs=("scot", "target"),
        measure=over("scot", "target", lambda d: d.thinking_speed_up),
        is_="above",
        bound=1,
        form=number,
        timed=True,
        note=SMALL,
    ),
    Claim(
        where="SCoT 4.2, table 1",
        says="less than half of the thinking tokens are the target's",
        theirs="7.5 to 45.9 % by its figures",
        runs=("scot",),
        measure=by_target,
        is_="below",
        bound=0.5,
        form=percent,
    ),
    Claim(
        where="SCoT 4.2, figure 4",
        says="accuracy no more than a point below the target's",
        theirs="near it on all data sets",
        runs=("scot", "target"),
        measure=over("scot", "target", lambda d: d.accuracy_gain),
        is_="above",
        bound=-0.01,
        form=points,
    ),
    Claim(
        where="SCoT 4.2, figure 4",
        says="accuracy above the draft's",
        theirs="clearly superior",
        runs=("scot", "draft"),
        measure=over("scot", "draft", lambda d: d.accuracy_gain),
        is_="above",
        bound=0,
        form=points,
    ),
    Claim(
        where="SCoT 4.3",
        says="more accurate with 5 drafts than with one",
        theirs="on all data sets",
        runs=("scot", "scot-single"),
        measure=over("scot", "scot-single", lambda d: d.accuracy_gain),
        is_="above",
        bound=0,
        form=points,
    ),
    Claim(
        where="SCoT 4.3",
        says="more accurate with the tuned target's choice than with the untuned one's",
        theirs="on all data sets",
        runs=("scot", "scot-untuned"),
        measure=over("scot", "scot-untuned", lambda d: d.accuracy_gain),
        is_="above",
        bound=0,
        form=points,
        lacks="The untuned target of `tiny` rejects every draft and solves next to every problem itself: there is no room above it.",
        note=UNTUNED,
    ),
    Claim(
        where="SCoT 4.3",
        says="more accurate with error correction than without",
        theirs="on all data sets",
        runs=("scot", "best-of-n"),
        measure=over("scot", "best-of-n", lambda d: d.accuracy_gain),
        is_="above",
        bound=0,
        form=points,
    ),
    Claim(
        where="SCoT 4.4",
        says="class 1 is predicted better than class 2",
        theirs="class 2: about half, tuned",
        runs=("scot",),
        measure=class_gap,
        is_="above",
        bound=0,
        form=points,
    ),
    Claim(
        where="SCoT 4.4",
        says="an untuned target hardly ever (below 5 %) says that no draft is right where none is",
        theirs="0 % of class 2",
        runs=("scot-untuned",),
        measure=class_2,
        is_="below",
        bound=0.05,
        form=percent,
        lacks=UNTUNED,
        lacked_by=("tiny", "wordy"),
    ),
    Claim(
        where="SCoT 4.5, table 3",
        says="shorter answers than the target alone",
        theirs="-14 % (GSM8K, 314 to 270 tokens)",
        runs=("scot", "target"),
        measure=over("scot", "target", lambda d: d.answer_change),
        is_="below",
        bound=0,
        form=points,
        lacks="An answer of `tiny` is a box and nothing else.",
    ),
    Claim(
        where="SpecReason 5.2, figure 3",
        says="faster than the target alone",
        theirs="r = 1.4 to 3.0",
        runs=("specreason", "target"),
        measure=over("specreason", "target", lambda d: d.speed_up),
        is_="above",
        bound=1,
        form=number,
        timed=True,
        note=SMALL,
    ),
    Claim(
        where="SpecReason 5.2, figure 3",
        says="more accurate than the target alone",
        theirs="+0.4 to +9.0 points",
        runs=("specreason", "target"),
        measure=over("specreason", "target", lambda d: d.accuracy_gain),
        is_="above",
        bound=0,
        form=points,
        lacks=PERFECT,
    ),
    Claim(
        where="SpecReason 5.2, figure 4a",
        says="shorter thoughts than the target alone",
        theirs="1.2 to 2.0 times shorter",
        runs=("specreason", "target"),
        measure=over("specreason", "target", lambda d: d.thought_change),
        is_="below",
        bound=0,
        form=points,
        lacks=TERSE,
    ),
    Claim(
        where="SpecReason 5.2, figure 4b",
        says="the gain in accuracy over the target is larger with a tight token budget",
        theirs="+16.2 points at 4,096 tokens, +4.7 at 8,192 (AIME)",
        runs=("specreason-tight", "target-tight", "specreason", "target"),
        measure=gain_when_tight,
        is_="above",
        bound=0,
        form=points,
        lacks=TERSE,
    ),
    Claim(
        where="SpecReason 5.3, figure 5",
        says="at threshold 7 fewer steps by the draft than at 3",
        theirs="fewer are accepted",
        runs=("specreason", "threshold-3"),
        measure=over("specreason", "threshold-3", lambda d: d.draft_share_change),
        is_="below",
        bound=0,
        form=points,
        lacks=ALL_OR_NOTHING,
    ),
    Claim(
        where="SpecReason 5.3, figure 5",
        says="at threshold 7 slower than at 3",
        theirs="r = 0.52 (MATH, 35.7 to 69.2 s)",
        runs=("specreason", "threshold-3"),
        measure=over("specreason", "threshold-3", lambda d: d.speed_up),
        is_="below",
        bound=1,
        form=number,
        timed=True,
        lacks=ALL_OR_NOTHING,
    ),
    Claim(
        where="SpecReason 5.3, figure 5",
        says="at threshold 7 more accurate than at 3",
        theirs="+4.3 points (MATH)",
        runs=("specreason", "threshold-3"),
        measure=over("specreason", "threshold-3", lambda d: d.accuracy_gain),
        is_="above",
        bound=0,
        form=points,
        lacks=ALL_OR_NOTHING,
    ),
    Claim(
        where="SpecReason 5.3, figure 6",
        says="more accurate when the target writes the first steps",
        theirs="33.2 to 37.3 % (n = 0 to 40)",
        runs=("first-2", "specreason"),
        measure=over("first-2", "specreason", lambda d: d.accuracy_gain),
        is_="above",
        bound=0,
        form=points,
        lacks=PERFECT,
    ),
    Claim(
        where="SpecReason 5.3, figure 6",
        says="and slower",
        theirs="r = 0.92 (270.4 to 292.6 s)",
        runs=("first-2", "specreason"),
        measure=over("first-2", "specreason", lambda d: d.speed_up),
        is_="below",
        bound=1,
        form=number,
        timed=True,
    ),
    Claim(
        where="SpecReason 5.4, figure 7",
        says="scores of drafted steps agree with the rewards of a reward model (correlation above 0.5)",
        theirs="a strong correlation",
        runs=("specreason",),
        measure=score_agreement,
        is_="above",
        bound=0.5,
        form=lambda e: number(e, sign=True),
        lacks=SHARED,
        note=SAME_LABELS,
    ),
    Claim(
        where="SpecReason 5.2",
        says="SpecReason+Decode faster than SpecReason",
        theirs="r = 1.6 to 2.2",
        runs=("specreason-decode", "vllm-specreason"),
        measure=over("specreason-decode", "vllm-specreason", lambda d: d.speed_up),
        is_="above",
        bound=1,
        form=number,
        timed=True,
        note=SMALL,
    ),
    Claim(
        where="SpecReason 5.2",
        says="SpecReason+Decode faster than speculative decoding alone",
        theirs="8.8 to 58.0 % less latency",
        runs=("specreason-decode", "speculative-decoding"),
        measure=over("specreason-decode", "speculative-decoding", lambda d: d.speed_up),
        is_="above",
        bound=1,
        form=number,
        timed=True,
        note=SMALL,
    ),
)
