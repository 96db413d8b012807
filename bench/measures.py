"""What the papers' claims are about, measured: tables of runs by their names enter, an estimate with its interval leaves."""

import math
from collections.abc import Callable

import numpy as np
from judging import Runs
from msgspec import structs

from pipeline.analysis.compare.figures import Difference, differ, figures
from pipeline.analysis.quality.estimates import NOTHING, Estimate, difference, estimate


def over(run: str, base: str, take: Callable[[Difference], Estimate]) -> Callable[[Runs], Estimate]:
    """A difference of one run over another."""
    return lambda runs: take(differ(runs[run], runs[base]))


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
