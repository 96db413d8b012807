"""Runs side by side: how they differ, with intervals, and whether they may be compared at all.

Every interval is a percentile bootstrap over problems (Efron and Tibshirani 1993, chapter 13): samples of one problem
belong together, and of two runs over the same problems the same problems are drawn for both.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct

from pipeline.analysis.runs import RunTable
from pipeline.analysis.timeline import Array
from pipeline.errors import UsageError

RESAMPLES = 2000
LEVEL = 0.95


class Estimate(Struct, frozen=True):
    """A figure and its interval; nulls where there is nothing to say."""

    value: float | None
    low: float | None = None
    high: float | None = None


class Flag(Struct, frozen=True):
    """Why two runs may differ for another reason than their systems."""

    run: str
    what: str


class Compared(Struct, frozen=True, kw_only=True):
    """One run against the baseline. Tokens and seconds are means over problems."""

    run: str
    graph: str
    models: dict[str, str]
    schedule: str
    batch_size: int
    simulated: bool
    params: dict[str, bool | int | float | str]
    problems: int
    samples: int
    failed: int
    accuracy: Estimate
    accuracy_gain: Estimate
    """Over the baseline, on the problems both have."""
    tokens: Estimate
    """Committed: thought and answer."""
    draft_tokens: Estimate
    """Sampled by the role, whatever became of them."""
    target_tokens: Estimate
    latency_s: Estimate
    """Per problem, from admission to the end; at larger batches it holds the waiting for others."""
    speed_up: Estimate
    """r of SpecCoT table 2: latency of the baseline over this one's."""
    fallback_rate: Estimate
    """Steps written by a fallback over steps that were verified (SpecCoT 4.4.2)."""
    draft_share: Estimate
    """Steps by the draft over all steps (SpecReason, figure 4)."""
    wall_time_s: float
    tokens_per_s: float | None
    """Committed tokens over wall time (SpecCoT table 6)."""
    reflective: dict[str, float]
    """Words of second thoughts per 1,000 words, by decision of the step, and of all drafts (SpecCoT A.1)."""


class Comparison(Struct, frozen=True, kw_only=True):
    """Runs in the order given, the baseline's name, and what stands between them."""

    baseline: str
    runs: tuple[Compared, ...]
    flags: tuple[Flag, ...]


def compare(runs: Sequence[RunTable], baseline: str | None = None) -> Comparison:
    """Compare `runs` with the run or graph named `baseline`, by default the run of graph `target`, or else the first.

    Raises `UsageError` when a baseline is not among them or when runs solve different data.
    """
    base = _baseline(runs, baseline)
    _refuse(runs, base)
    flags = tuple(flag for run in runs for flag in flags_of(run, base))
    return Comparison(baseline=base.name, runs=tuple(_compared(run, base) for run in runs), flags=flags)


def _baseline(runs: Sequence[RunTable], wanted: str | None) -> RunTable:
    names = [run.name for run in runs]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{repeated[0]} is named twice; name each run once")
    for run in runs:
        if (run.graph if wanted is None else "") == "target" or wanted in (run.name, run.graph):
            return run
    if wanted is not None:
        raise UsageError(f"--baseline {wanted}: no such run or graph here; there are {', '.join(names)}")
    return runs[0]


def _refuse(runs: Sequence[RunTable], base: RunTable) -> None:
    for run in runs:
        if run.input.get("sha256") != base.input.get("sha256"):
            what = f"{run.name} solved {run.input.get('file')} and {base.name} {base.input.get('file')}, which differ"
            raise UsageError(f"{what}; compare runs over the same file")
        if not set(run.problem_ids) & set(base.problem_ids):
            raise UsageError(f"{run.name} and {base.name} have no finished problem in common")


def flags_of(run: RunTable, base: RunTable) -> list[Flag]:
    """What to know before a difference between `run` and `base` is believed."""
    said = []
    if run.status != "finished":
        said.append(f"it is {run.status}: only finished chains count")
    if run.failed:
        said.append(f"{run.failed} chains failed or were cancelled and are in no figure")
    for name in ("seed", "samples", "batch_size", "schedule"):
        ours, theirs = getattr(run, name), getattr(base, name)
        if ours != theirs:
            said.append(f"{name} is {ours}, the baseline's {theirs}")
    if run.simulated != base.simulated:
        said.append("one of the two is simulated, the other measured")
    if set(run.problem_ids) != set(base.problem_ids):
        common = len(set(run.problem_ids) & set(base.problem_ids))
        said.append(f"of its {len(run.problem_ids)} problems {common} are the baseline's; differences are over these")
    said += _different("", run.params, base.params, ("token_budget", "temperature"))
    said += _different("its ", run.models, base.models, sorted(run.models))
    return [Flag(run.name, what) for what in said]


def _different(article: str, ours: Mapping[str, object], theirs: Mapping[str, object], names: Sequence[str]) -> list[str]:
    both = [name for name in names if name in ours and name in theirs]
    return [f"{article}{name} is {ours[name]}, the baseline's {theirs[name]}" for name in both if ours[name] != theirs[name]]


def _compared(run: RunTable, base: RunTable) -> Compared:
    tokens = run.thought_tokens + run.answer_tokens
    verified = run.accepted + run.fallbacks
    ours, theirs = _paired(run, base)
    total = float(tokens.sum() * run.samples)
    return Compared(
        run=run.name,
        graph=run.graph,
        models=run.models,
        schedule=run.schedule,
        batch_size=run.batch_size,
        simulated=run.simulated,
        params=run.params,
        problems=len(run.problem_ids),
        samples=run.samples,
        failed=run.failed,
        accuracy=estimate(_mean, run.correct),
        accuracy_gain=estimate(lambda a, b: _mean(a) - _mean(b), run.correct[ours], base.correct[theirs]),
        tokens=estimate(_mean, tokens),
        draft_tokens=estimate(_mean, run.draft_tokens),
        target_tokens=estimate(_mean, run.target_tokens),
        latency_s=estimate(_mean, run.latency_s),
        speed_up=estimate(_ratio, base.latency_s[theirs], run.latency_s[ours]),
        fallback_rate=estimate(_ratio, run.fallbacks, verified),
        draft_share=estimate(_ratio, run.accepted, run.steps),
        wall_time_s=run.wall_time_s,
        tokens_per_s=total / run.wall_time_s if run.wall_time_s else None,
        reflective={kind: 1000 * text.reflective / text.words for kind, text in run.texts.items() if text.words},
    )


def _paired(run: RunTable, base: RunTable) -> tuple[Array, Array]:
    """Places of the problems that both have."""
    place = {problem: i for i, problem in enumerate(base.problem_ids)}
    common = [(i, place[problem]) for i, problem in enumerate(run.problem_ids) if problem in place]
    both = np.array(common, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _mean(values: Array) -> float:
    """Of what is known."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _ratio(over: Array, under: Array) -> float:
    return float(over.sum() / under.sum()) if under.sum() else float("nan")


def estimate(statistic: Callable[..., float], *columns: Array) -> Estimate:
    """`statistic` of columns with one place a problem, and its interval over resampled problems; seeded, so repeatable."""
    count = len(columns[0])
    if not count or all(np.isnan(column).all() for column in columns):
        return Estimate(None)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = float(statistic(*columns))
        if not np.isfinite(value):
            return Estimate(None)
        draws = np.random.default_rng(0).integers(0, count, (RESAMPLES, count))
        values = np.array([statistic(*(column[draw] for column in columns)) for draw in draws])
    values = values[np.isfinite(values)]
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if len(values) else (value, value)
    return Estimate(value, float(low), float(high))
