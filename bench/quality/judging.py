"""How a claim of a paper is judged, by an interval and never by a figure alone; and what the claims are about, measured.

The runs of one site that are there for one purpose enter, such as those of a pair at batch size 1, a verdict with its figures leaves.
Nothing is run here.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct, structs

from pipeline.analysis.compare.cells import number, percent, plain, reward, signed
from pipeline.analysis.compare.figures import Compared, Difference
from pipeline.analysis.compare.runs import Details, RunTable
from pipeline.analysis.quality.estimates import NOTHING, Estimate, difference, estimate
from pipeline.store.query import Query

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t, 97.5 %, with 1 to 10 degrees of freedom."""
Verdict = Literal["holds", "does not hold", "cannot be said", "not testable here", "not run"]
Measure = Callable[..., Estimate]
Group = Literal["shown", "not shown", "cannot be shown here", "not run"]


class Site(Struct, frozen=True, kw_only=True):
    """The runs of one site for one purpose, by system: the graph with what was varied."""

    name: str
    """A pair of models, or a simulated machine and its texts."""
    kind: str
    """The purpose."""
    runs: Mapping[str, RunTable]
    """Of repeated runs, and of several seeds of a simulated one, the mean times."""
    folders: Mapping[str, Path]
    asked: frozenset[str]
    """The systems that were to be run here."""
    noise: float | None = None
    """The factor within which 95 % of the ratios of times of the same work lie; None: not known, no clock is believed."""

    @property
    def simulated(self) -> bool:
        return any(run.simulated for run in self.runs.values())

    @property
    def point(self) -> str:
        """The operating point: batch sizes, problems, and on what."""
        runs = list(self.runs.values())
        sizes = sorted({run.batch_size for run in runs})
        size = " to ".join(str(each) for each in dict.fromkeys((sizes[0], sizes[-1])))
        where = "simulated" if self.simulated else max(run.resources for run in runs).label
        return f"batch size {size}, {max(len(run.problem_ids) for run in runs)} problems, {where}"


class Claim(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One sentence of a paper, and what would show it here: a `measure` of `runs` that lies above or below a bound."""

    where: str
    says: str
    """In our words."""
    theirs: str
    """Their number."""
    kind: str = ""
    """The purpose of the runs that it takes; it is judged at every site that has them. Empty: nothing here could show it."""
    runs: tuple[str, ...] = ()
    measure: str = ""
    """A name of `MEASURES`; of a figure of `Difference` the first run over the second."""
    above: float | None = None
    below: float | None = None
    lacks: dict[str, str] = {}
    """By site the property that it rests on and that is lacking there, as a clause: it is not testable there, whatever is measured."""
    given: tuple[str, ...] = ()
    """Simulated machines that were given what it says."""
    note: str = ""
    """A sentence that is true whatever is measured."""
    why: str = ""
    """Of a headline: why it comes out as it does, as a clause."""


CLAIMS = msgspec.yaml.decode(Path(__file__).with_name("claims.yaml").read_bytes(), type=tuple[Claim, ...])
"""All of them, the headlines first."""


class Found(Struct, frozen=True):
    """Our number at one site, and what follows."""

    site: Site
    ours: Estimate
    verdict: Verdict
    said: str


class Judged(Struct, frozen=True):
    """A claim with what was found at each site."""

    claim: Claim
    found: tuple[Found, ...]

    @property
    def group(self) -> Group:
        """Shown where it holds at one site or more; what does not hold at others is beside it."""
        verdicts = {each.verdict for each in self.found}
        if "holds" in verdicts:
            return "shown"
        if verdicts & {"does not hold", "cannot be said"}:
            return "not shown"
        return "not run" if "not run" in verdicts else "cannot be shown here"


def judge(claim: Claim, sites: Iterable[Site]) -> Judged:
    """The verdict of every site that has the runs which the claim takes."""
    there = (site for site in sites if site.kind == claim.kind and site.asked.issuperset(claim.runs) and site.name not in claim.given)
    return Judged(claim, tuple(_found(claim, site) for site in there))


def _found(claim: Claim, site: Site) -> Found:
    if not site.runs.keys() >= {*claim.runs}:
        return Found(site, NOTHING, "not run", "")
    measure, form = MEASURES[claim.measure]
    ours = measure(site, *claim.runs)
    if claim.measure in TIMED and (site.noise or not site.simulated):
        ours = widened(ours, site.noise)
    verdict: Verdict = "not testable here" if site.name in claim.lacks else verdict_of(ours, claim.above, claim.below)
    said = "nothing to measure" if ours.value is None else form(ours)
    if claim.measure == "speed_up" and ours.value is not None:
        both = Difference(*(site.runs[name] for name in claim.runs))
        said += f" = {plain(both.token_factor.value)} x {plain(both.rate_factor.value)}"
    return Found(site, ours, verdict, said)


def verdict_of(ours: Estimate, above: float | None, below: float | None) -> Verdict:
    """Holds when the whole interval is beyond the bound, does not when none of it is, not even the bound itself."""
    if ours.low is None or ours.high is None:
        return "cannot be said"
    if above is not None:
        return "holds" if ours.low > above else "does not hold" if ours.high <= above else "cannot be said"
    assert below is not None, "a claim has a bound"
    return "holds" if ours.high < below else "does not hold" if ours.low >= below else "cannot be said"


def mean_of(runs: Sequence[RunTable]) -> RunTable:
    """One run with the mean times of repeated ones; all else is that of the first."""
    first = runs[0]
    if len(runs) == 1:
        return first

    def details() -> Details:
        each = [run.details for run in runs]
        times = {"thinking_s": np.mean([one.thinking_s for one in each], axis=0)}
        kinds = {kind: np.mean([one.kinds_s[kind] for one in each], axis=0) for kind in first.details.kinds_s}
        return structs.replace(first.details, **times, kinds_s=kinds)

    latency = np.mean([run.latency_s for run in runs], axis=0)
    wall = float(np.mean([run.wall_time_s for run in runs]))
    return structs.replace(first, latency_s=latency, wall_time_s=wall, read=details)


def noise_of(repeats: Iterable[Sequence[RunTable]]) -> float | None:
    """The factor within which 95 % of the ratios between two such means of runs of the same work lie; None without repeated runs.

    Wall times are taken as log-normal with one variance for all systems, pooled over `repeats`, the runs of each.
    """
    logs = [np.log([run.wall_time_s for run in same]) for same in repeats if len(same) > 1]
    freedom = sum(len(each) - 1 for each in logs)
    if not freedom:
        return None
    variance = sum(float(((each - each.mean()) ** 2).sum()) for each in logs) / freedom
    return math.exp(T_975[min(freedom, len(T_975)) - 1] * math.sqrt(2 * variance / min(map(len, logs))))


def widened(ours: Estimate, noise: float | None) -> Estimate:
    """A ratio of times with the interval that `noise` between runs leaves of it."""
    if noise is None or ours.value is None:
        return Estimate(ours.value)
    low, high = (ours.value if end is None else end for end in (ours.low, ours.high))
    return Estimate(ours.value, low / noise, high * noise)


# What the claims are about.

NEW_TOKENS = """
SELECT sum(input_tokens - cached_input_tokens)::DOUBLE AS tokens, count(*)::DOUBLE AS calls
FROM calls WHERE purpose = 'judge' AND cached_input_tokens IS NOT NULL GROUP BY chain_id ORDER BY chain_id
"""


def _latencies(site: Site, runs: Iterable[str]) -> list[np.ndarray]:
    return [site.runs[name].latency_s for name in runs]


def over(field: str) -> Measure:
    """A figure of the `Difference` of the first run over the second."""
    return lambda site, run, base: getattr(Difference(site.runs[run], site.runs[base]), field)


def saved_more(site: Site, *runs: str) -> Estimate:
    """Share of the time that more cards save: the target's less SpecCoT's."""
    return estimate(lambda t2, t4, s2, s4: s4 / s2 - t4 / t2, *_latencies(site, runs))


def gains_less(site: Site, *runs: str) -> Estimate:
    """SpecReason's speed-up on the slower machine over that on the faster one."""
    return estimate(lambda t, s, fast_t, fast_s: (t / s) / (fast_t / fast_s), *_latencies(site, runs))


def gap_widens(site: Site, *runs: str) -> Estimate:
    """Seconds a problem that token-level speculation saves at one threshold, less those at another; by a real clock without an interval, as
    the noise between runs is known of ratios alone."""
    columns = _latencies(site, runs)
    found = estimate(lambda a, b, c, d, n: (a - b - (c - d)) / n, *columns, np.ones(len(columns[0])))
    return found if site.simulated else Estimate(found.value)


def throughput(site: Site, small: str, large: str) -> Estimate:
    """Wall time of one run over that of another: single figures."""
    return Estimate(site.runs[small].wall_time_s / site.runs[large].wall_time_s)


def selection_share(site: Site, run: str) -> Estimate:
    """The share of the thinking time in which the target chooses."""
    return Compared(site.runs[run], site.runs[run]).thinking_shares["verification"]


def drafts_longer(site: Site, run: str) -> Estimate:
    """The share of the thinking time that is drafting, less that in which the target thinks."""
    kinds = site.runs[run].details.kinds_s
    return estimate(lambda d, v, t: (d - t) / (d + v + t), *(kinds[kind] for kind in ("drafting", "verification", "target")))


def new_tokens(site: Site, run: str) -> Estimate:
    """Tokens of a verification that the prefix cache of the judge's engine did not have."""
    with Query(site.folders[run]) as db:
        found = db.columns(NEW_TOKENS)
    return estimate(np.divide, *(np.ma.filled(found[name], 0) for name in ("tokens", "calls")))


def draft_share(site: Site, run: str) -> Estimate:
    """Steps by the draft over all steps."""
    return Compared(site.runs[run], site.runs[run]).draft_share


def class_gap(site: Site, run: str) -> Estimate:
    """Right predictions of class 1 less those of class 2, problems as they are drawn."""
    choices = site.runs[run].details.choices
    if choices is None:
        return NOTHING
    first = choices.right_drafts > 0
    count = len(site.runs[run].problem_ids)

    def of_problems(values: np.ndarray, which: np.ndarray) -> np.ndarray:
        return np.bincount(choices.problem[which], values[which], count)

    ones, of_class_2 = np.ones(len(first)), ~first
    one = of_problems(choices.picked_right, first), of_problems(ones, first)
    return difference(*one, of_problems(choices.rejected, of_class_2), of_problems(ones, of_class_2))


def class_2(site: Site, run: str) -> Estimate:
    """Right predictions of class 2."""
    selection = Compared(site.runs[run], site.runs[run]).selection
    return NOTHING if selection is None else selection.class_2_right


def by_target(site: Site, run: str) -> Estimate:
    """The target's share of the thinking tokens of SCoT, those of the draft model being those of its longest draft (SCoT table 1)."""
    scot = site.runs[run]
    if "longest" not in scot.details.texts:
        return NOTHING
    accepted = scot.details.texts["accepted"].tokens if "accepted" in scot.details.texts else np.zeros(len(scot.chains))
    return estimate(
        lambda target, draft: target / (target + draft), scot.thought_tokens * scot.chains - accepted, scot.details.texts["longest"].tokens
    )


def best_draft(site: Site, run: str, base: str) -> Estimate:
    """Problems that one of the drafted thoughts solves, less those that the target solves alone."""
    drafts, choices = site.runs[run], site.runs[run].details.choices
    if choices is None:
        return NOTHING
    count = len(drafts.problem_ids)
    solved = np.bincount(choices.problem, choices.right_drafts > 0, count)
    best = structs.replace(drafts, right=solved, graded=np.bincount(choices.problem, minlength=count))
    return Difference(best, site.runs[base]).accuracy_gain


def score_agreement(site: Site, run: str) -> Estimate:
    """Pearson's correlation of SpecReason's scores of drafted steps with the rewards of these, its interval over problems."""
    scored = site.runs[run].details.scored
    if scored is None:
        return NOTHING
    x, y = scored.score, scored.reward
    sums = [np.bincount(scored.problem, each) for each in (np.ones(len(x)), x, y, x * x, y * y, x * y)]
    return estimate(lambda n, x, y, xx, yy, xy: (n * xy - x * y) / np.sqrt((n * xx - x * x) * (n * yy - y * y)), *sums)


def gain_when_tight(site: Site, *runs: str) -> Estimate:
    """The gain over the target with a tight token budget, less that with an ample one."""
    columns = [column for name in runs for column in (site.runs[name].right, site.runs[name].graded)]
    return estimate(lambda a, m, b, n, c, o, d, p: a / m - b / n - (c / o - d / p), *columns)


def selecting(site: Site, run: str) -> Estimate:
    """The gain in the reward of a step by selecting."""
    quality = Compared(site.runs[run], site.runs[run]).quality
    return NOTHING if quality is None else quality.gain


MEASURES: dict[str, tuple[Measure, Callable[[Estimate], str]]] = {
    **{field: (over(field), number) for field in ("speed_up", "thinking_speed_up")},
    **{field: (over(field), signed) for field in ("accuracy_gain", "token_change", "thought_change", "answer_change", "fallback_change")},
    **{each.__name__: (each, number) for each in (throughput, new_tokens, gains_less)},
    **{each.__name__: (each, percent) for each in (selection_share, by_target, draft_share, class_2)},
    **{each.__name__: (each, signed) for each in (saved_more, drafts_longer, class_gap, best_draft, gain_when_tight)},
    **{each.__name__: (each, partial(number, sign=True)) for each in (gap_widens, score_agreement)},
    "selecting": (selecting, partial(reward, sign=True)),
}
"""By name: of a site and the names of its runs, and how it is printed."""
TIMED = ("speed_up", "thinking_speed_up", "throughput")
"""Ratios of times: by a real clock their intervals over problems do not hold what other work on the machine did to a run."""
