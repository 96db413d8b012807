"""The figures of a run, with intervals: sums by problem enter, values with their 95 % intervals leave. `FIGURES` says which sum is divided
by which, and `CHANGES` how two runs over the same problems differ; `show`, `compare`, `sweep` and the report read them here.

A figure is a function of sums over problems. With its influence on the figure linearised, a problem is one independent term, however many
samples it has, and for two runs over the same problems what both share cancels out: the standard error is sqrt(n / (n - 1) * sum of squared
influences), over n problems (Särndal, Swensson and Wretman 1992, "Model Assisted Survey Sampling", section 5.5; of accuracies Miller 2024,
"Adding Error Bars to Evals", arXiv:2411.00640, section 2.2). Shares of 0 and 1, and accuracies with one sample a problem, have Wilson's
interval (1927). Below `LEAST` problems there is none.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct, structs

from pipeline.analysis.tables import FORMS, TOO_FEW
from pipeline.analysis.time.work import Array, Axis
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile

Sums: TypeAlias = dict[str, Array]
"""The columns of `problems.sql`, an element for each problem."""
Z_95 = 1.959963984540054
"""95 % of a normal distribution lie within this many standard deviations."""
LEAST = 30
"""Fewer problems give no interval: it would be too narrow."""
PROBLEMS = Path(__file__).with_name("problems.sql")
COUNTS = ("chains", "graded", "right")
"""Columns that are added up over the chains of a problem; the others are means over its finished chains."""


class Estimate(Struct, frozen=True):
    """A figure and the ends of its 95 % interval; nulls where there are no data, and no interval of too few problems."""

    value: float | None
    low: float | None = None
    high: float | None = None

    def shown(self, form: str = "number") -> str:
        """The figure as it is printed, with its interval, in one of `FORMS`."""
        value, low, high = (None if each is None else FORMS[form](each) for each in structs.astuple(self))
        return "-" if value is None else f"{value} ({TOO_FEW})" if low is None or high is None else f"{value} [{low}, {high}]"


NOTHING = Estimate(None)
"""The estimate without data."""


class Figure(Struct, frozen=True):
    """A figure of a run: a sum over problems divided by another one."""

    name: str
    over: str
    under: str = "problems"
    form: Literal["number", "percent", "reward"] = "number"
    needs: str = ""
    """A sum without which there is no such figure, rather than a figure of 0."""


FIGURES = (
    Figure("accuracy", "right", "graded", "percent"),  # pass@1
    Figure("tokens", "tokens"),  # of thought and answer
    Figure("thought_tokens", "thought_tokens"),
    Figure("answer_tokens", "answer_tokens"),  # sampled after the thought (SCoT table 3)
    Figure("latency_s", "latency_s"),  # from admission to the end
    Figure("thinking_s", "thinking_s"),  # from the first call to the end of the thought (SCoT 4.2)
    Figure("target_thought_tokens", "target_tokens"),  # of the thought, those that were not drafted (SCoT table 1)
    Figure("longest_draft_tokens", "longest", needs="drafts"),  # of each round, added up (SCoT table 1)
    Figure("tokens_per_draft", "drafted", "drafts"),  # SCoT table 2
    Figure("fallback_rate", "fallbacks", "verified", "percent"),  # of verified steps (SpecCoT 4.4.2)
    Figure("draft_step_share", "by_draft", "steps", "percent", needs="judged"),  # SpecReason 5.2
    Figure("unverified_share", "unverified", "steps", "percent", needs="unverified"),
    Figure("drafted_reward", "drafted_reward", "drafted_rewards", "reward"),  # SpecCoT table 5
    Figure("selected_reward", "selected_reward", "selected_rewards", "reward"),
)
CHANGES: Mapping[str, Mapping[str, int]] = {
    "speed_up": {"latency_s": -1},  # r of SpecCoT table 2
    "token_factor": {"tokens": -1},
    "rate_factor": {"tokens": 1, "latency_s": -1},
    "thinking_speed_up": {"thinking_s": -1},  # SCoT table 1
}
"""How a run differs from another one: products of powers of the sums of the one over those of the other. A speed-up is its factor of tokens
(how much shorter the text is) times its factor of rates (how many more tokens come per second)."""


def read_sums(runs: Sequence[Query]) -> Sums:
    """The sums by problem of open runs, which count as one run: of each only the first folder is read."""
    parts = [_read(db) for db in runs]
    problem, place = np.unique(np.concatenate([part.pop("problem") for part in parts]), return_inverse=True)
    sums: Sums = {"problem": problem}
    for name in list(parts[0]):  # column by column, so that a long run is not in memory twice
        added = np.bincount(place, np.concatenate([part.pop(name) for part in parts]), len(problem))
        sums[name] = added if name in COUNTS else added / np.maximum(sums["chains"], 1)
    return sums


def _read(db: Query) -> Sums:
    run = RunFile.read(db.folders[0])
    stages = [node for node in run.plan.stages() if node.spec.finishes]
    db.execute(f"CREATE OR REPLACE TEMP MACRO worked(instant) AS {Axis(0, run.pauses).sql('instant')}")
    ending, whole = [node.name for node in stages], [node.name for node in stages if not node.spec.answers]
    return db.columns(PROBLEMS, ending=ending or [""], whole=whole or [""])


def figures(sums: Sums) -> dict[str, Estimate]:
    """The `FIGURES` of a run, by name."""
    return {each.name: _figure(each, sums) for each in FIGURES}


def _figure(figure: Figure, sums: Sums) -> Estimate:
    if figure.needs and not sums[figure.needs].any():
        return NOTHING
    over, under = sums[figure.over], sums[figure.under]
    if figure.name == "accuracy":
        return outcomes(over, under)
    return (share if figure.form == "percent" else ratio)(over, under)


def changes(sums: Sums, base: Sums) -> dict[str, Estimate]:
    """The `CHANGES` of a run from another one, and its gain of accuracy, over the problems that both finished, or that both count."""
    (ours, theirs), (our, their) = common(sums, base), common(sums, base, "graded")
    found = {name: factor([(sums[of][ours], base[of][theirs], power) for of, power in powers.items()]) for name, powers in CHANGES.items()}
    return {"accuracy_gain": gain(sums["right"][our], sums["graded"][our], base["right"][their], base["graded"][their])} | found


def common(sums: Sums, base: Sums, marked: str = "chains") -> tuple[Array, Array]:
    """Where the problems are that both runs have, in the columns of each: by default those that both finished, else those with a `marked`
    chain in both."""
    _, ours, theirs = np.intersect1d(sums["problem"], base["problem"], assume_unique=True, return_indices=True)
    some = (sums[marked][ours] > 0) & (base[marked][theirs] > 0)
    return ours[some], theirs[some]


def ratio(over: Array, under: Array) -> Estimate:
    """The sum of `over` divided by the sum of `under`."""
    if not (whole := float(np.sum(under))):
        return NOTHING
    value = float(np.sum(over)) / whole
    return _around(value, (over - value * under) / whole)


def share(part: Array, whole: Array) -> Estimate:
    """The share of `part` in `whole`, both counts by problem; of 0 and 1 with Wilson's interval, with problems as trials."""
    found = ratio(part, whole)
    return _of_trials(found.value, int((whole > 0).sum())) if found.value in (0.0, 1.0) else found


def outcomes(right: Array, trials: Array) -> Estimate:
    """The share of `right` in `trials`, both by problem, of problems with trials: with Wilson's interval where each has one."""
    right, trials = right[trials > 0], trials[trials > 0]
    if len(trials) and trials.max() == 1:
        return _of_trials(float(right.sum() / len(trials)), len(trials))
    found = share(right, trials)
    return found if found.low is None or found.high is None else Estimate(found.value, max(0.0, found.low), min(1.0, found.high))


def gain(part: Array, whole: Array, base_part: Array, base_whole: Array) -> Estimate:
    """The share of `part` in `whole` minus the share of `base_part` in `base_whole`; counts by problem, over the same problems.

    Where no problem differs from the others, the interval reaches as far as Wilson's does for a share of 0 in that many problems.
    """
    if not whole.sum() or not base_whole.sum():
        return NOTHING
    ours, theirs = float(part.sum() / whole.sum()), float(base_part.sum() / base_whole.sum())
    influence = (part - ours * whole) / whole.sum() - (base_part - theirs * base_whole) / base_whole.sum()
    if influence.any() or len(part) < LEAST:
        return _around(ours - theirs, influence)
    room = wilson(0.0, len(part))[1]
    return Estimate(ours - theirs, max(-1.0, ours - theirs - room), min(1.0, ours - theirs + room))


def factor(terms: Sequence[tuple[Array, Array, int]]) -> Estimate:
    """The product of ratios of sums, each of a column over another one to a power; all over the same problems.

    The interval is symmetric in the logarithm: a factor and its inverse have inverse intervals.
    """
    totals = [(float(over.sum()), float(under.sum()), power) for over, under, power in terms]
    if not all(over > 0 and under > 0 for over, under, _ in totals):
        return NOTHING
    value = math.prod((over / under) ** power for over, under, power in totals)
    influences = [power * (over / above - under / below) for (over, under, power), (above, below, _) in zip(terms, totals, strict=True)]
    of_log = _around(0.0, np.sum(influences, axis=0))
    return Estimate(value, *(None if end is None else value * math.exp(end) for end in (of_log.low, of_log.high)))


def _around(value: float, influence: Array) -> Estimate:
    if (problems := len(influence)) < LEAST:
        return Estimate(value)
    half = Z_95 * math.sqrt(problems / (problems - 1) * float(influence @ influence))
    return Estimate(value, value - half, value + half)


def _of_trials(share: float, trials: int) -> Estimate:
    return Estimate(share, *(wilson(share, trials) if trials >= LEAST else ()))


def wilson(share: float, trials: int) -> tuple[float, float]:
    """The ends of Wilson's score interval of a `share` of independent trials."""
    z2 = Z_95 * Z_95
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z_95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials))
    return max(0.0, middle - half), min(1.0, middle + half)


def pass_at(samples: Array, right: Array) -> dict[int, float]:
    """pass@k for k = 1, 2, 4, ... up to the most samples of a problem: the chance that one of k samples is right.

    `samples` are the numbers of samples of the problems, `right` those of right ones. The unbiased estimator of Chen et al. 2021
    ("Evaluating Large Language Models Trained on Code", equation 1): 1 - C(n - c, k) / C(n, k) with c of n samples right, averaged over
    the problems that have k samples.
    """
    outcomes, found = Counter(zip(samples.astype(int).tolist(), right.astype(int).tolist(), strict=True)), {}
    for k in (2**power for power in range(int(samples.max(initial=0)).bit_length())):
        alike = {(n, c): problems for (n, c), problems in outcomes.items() if n >= k}
        missed = sum(problems * math.comb(n - c, k) / math.comb(n, k) for (n, c), problems in alike.items())
        found[k] = 1.0 - missed / sum(alike.values())
    return found
