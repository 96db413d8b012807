"""The papers' tables as data: each names its systems, what makes rows, what makes columns, and the figures. See `paper_tables`."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from pipeline.analysis.compare.cells import number, percent, plain, reward
from pipeline.analysis.compare.figures import Compared
from pipeline.analysis.quality.estimates import NOTHING, Estimate
from pipeline.analysis.quality.reward_agreement import BINS

Pick = Callable[[Compared, Compared], Estimate]
"""The figure of a run, given also the base of the figure, which may be the run itself."""
Print = Callable[[Estimate], str]


class Metric(Struct, frozen=True):
    """One figure of a run."""

    title: str
    """With its unit."""
    pick: Pick
    form: Print = number
    over: str = ""
    """What the figure is over: empty for the run itself, `target` for a run of the target alone in the same setting, or else the dimension
    of the shape whose least value is the base. A base has no such figure."""


class System(Struct, frozen=True):
    """One system of a table."""

    label: str
    """Its name in the paper, or what it is."""
    graph: str
    params: dict[str, Any] = {}
    """Params that a run must have to be this system."""


class Shape(Struct, frozen=True, kw_only=True):
    """A table of a paper. A dimension is `system`, `data`, `models`, `draft`, `target`, `metric` or a setting (`compare.setting_of`)."""

    source: str
    """Paper, table or figure, and section."""
    title: str
    systems: tuple[System, ...]
    metrics: tuple[Metric, ...]
    rows: tuple[str, ...] = ("system", "models")
    columns: tuple[str, ...] = ("data", "metric")
    average: bool = False
    """Whether a last group of columns has the means over the data sets, where there are several."""
    note: str = ""


def _plain(e: Estimate) -> str:
    return plain(e.value)


def _signed(e: Estimate) -> str:
    return percent(e, sign=True)


def _saved(run: Compared, base: Compared) -> Estimate:
    """Share of the time that a speed-up saves, 1 - 1/r, as SpecCoT table 4 prints it."""
    r = run.over_baseline.speed_up
    ends = [None if each is None else 1 - 1 / each for each in (r.value, r.low, r.high)]
    return Estimate(*ends)


def _less_one(e: Estimate) -> Estimate:
    return e if e.value is None else Estimate(e.value - 1)


def _over(run: float | None, base: float | None) -> Estimate:
    return Estimate(run / base) if run and base else NOTHING


def _bin(place: int) -> Metric:
    end = "]" if place == BINS - 1 else ")"
    return Metric(
        f"[{place / BINS:.1f}, {(place + 1) / BINS:.1f}{end}", lambda run, _: run.agreement.means[place] if run.agreement else NOTHING
    )


def _kind(kind: str, title: str) -> Metric:
    return Metric(title, lambda run, _: run.thinking_shares[kind], percent)


def _of_quality(run: Compared, name: str) -> Estimate:
    return getattr(run.quality, name) if run.quality else NOTHING


def _of_selection(name: str, title: str) -> Metric:
    return Metric(title, lambda run, _: getattr(run.selection, name) if run.selection else NOTHING, percent)


ACCURACY = Metric("accuracy", lambda run, _: run.accuracy, percent)
TOKENS = Metric("tokens", lambda run, _: run.tokens)
THOUGHT = Metric("tokens of the thought", lambda run, _: run.thought_tokens)
LATENCY = Metric("latency s", lambda run, _: run.latency_s)
SPEED_UP = Metric("r", lambda run, _: run.over_baseline.speed_up, over="target")
THROUGHPUT = Metric("kept tokens/s", lambda run, _: Estimate(run.kept_tokens_per_s), _plain)
WALL = Metric("wall time s", lambda run, _: Estimate(run.wall_time_s), _plain)
FALLBACK = Metric("fallback", lambda run, _: run.fallback_rate, percent)
GAIN = Metric("gain over the target alone", lambda run, _: run.over_baseline.accuracy_gain, _signed, "target")
DRAFTED = Metric("tokens of a draft", lambda run, _: run.text_tokens.get("drafted", NOTHING))
DRAFT = System("draft alone", "draft")
TARGET = System("target alone", "target")
SPECCOT = System("SpecCoT", "speccot")
SCOT = System("SCoT", "scot")
SPECREASON = System("SpecReason", "specreason")
DECODE = System("SpecDecode", "speculative-decoding")
BOTH = System("SpecReason+Decode", "specreason-decode")
SCHEMES = (DRAFT, TARGET, DECODE, SPECREASON, BOTH)
THINKING_NOTE = (
    "Of the thinking stage: from a chain's first call to the end of its thought, without the answer. At batch sizes above 1 the time "
    "includes waiting for other chains."
)

SHAPES: dict[str, Shape] = {
    "speccot-1": Shape(
        source="SpecCoT table 1, section 2.1",
        title="One model alone",
        systems=(DRAFT, TARGET),
        metrics=(ACCURACY, LATENCY, TOKENS, THROUGHPUT),
        rows=("metric",),
        columns=("data", "models"),
    ),
    "speccot-2": Shape(
        source="SpecCoT table 2, section 4.2",
        title="Tokens, latency per problem and speed-up r over the same target alone",
        systems=(DRAFT, TARGET, SPECCOT),
        metrics=(TOKENS, LATENCY, SPEED_UP),
        average=True,
    ),
    "speccot-3": Shape(
        source="SpecCoT table 3, section 4.4.1",
        title="Pairs of draft and target",
        systems=(SPECCOT,),
        metrics=(ACCURACY, TOKENS, LATENCY, FALLBACK),
        rows=("draft", "metric"),
        columns=("data", "target"),
    ),
    "speccot-4": Shape(
        source="SpecCoT table 4, section 4.4.3",
        title="Time and throughput by resources",
        systems=(DRAFT, TARGET, SPECCOT),
        metrics=(
            LATENCY,
            Metric("time saved", _saved, _signed, "resources"),
            THROUGHPUT,
            Metric(
                "throughput gained", lambda run, base: _less_one(_over(run.kept_tokens_per_s, base.kept_tokens_per_s)), _signed, "resources"
            ),
        ),
        rows=("data", "system", "models"),
        columns=("metric", "resources"),
        note="Saved and gained over the least resources that the system ran on.",
    ),
    "speccot-5": Shape(
        source="SpecCoT table 5, section A.1",
        title="Mean reward of drafted and of selected steps",
        systems=(SPECCOT,),
        metrics=(
            Metric("draft quality", lambda run, _: _of_quality(run, "drafted"), reward),
            Metric("selected quality", lambda run, _: _of_quality(run, "selected"), reward),
        ),
        rows=("data", "models"),
        columns=("metric",),
        note="Needs `pipeline score RUN --prm FILE`.",
    ),
    "speccot-6": Shape(
        source="SpecCoT table 6, section A.2",
        title="Wall time and throughput by batch size",
        systems=(SPECCOT,),
        metrics=(
            WALL,
            THROUGHPUT,
            Metric("speed-up", lambda run, base: _over(base.wall_time_s, run.wall_time_s), _plain, "batch_size"),
        ),
        rows=("system", "models", "batch_size"),
        note="Speed-up: wall time at the least batch size over this one.",
    ),
    "scot-1": Shape(
        source="SCoT table 1, section 4.2",
        title="Tokens of the thought by target and draft, latency of the thinking stage and speed-up over the same target alone",
        systems=(TARGET, SCOT),
        metrics=(
            Metric("target tokens", lambda run, _: run.target_thought_tokens),
            Metric("draft tokens", lambda run, _: run.longest_draft_tokens),
            Metric("thinking s", lambda run, _: run.thinking_s),
            Metric("speed-up", lambda run, _: run.over_baseline.thinking_speed_up, over="target"),
        ),
        average=True,
        note=f"Per problem; of parallel drafts the longest counts. {THINKING_NOTE}",
    ),
    "scot-shares": Shape(
        source="SCoT 4.2",
        title="Shares of the time of thinking",
        systems=(SCOT, SPECCOT, SPECREASON),
        metrics=(_kind("target", "target"), _kind("drafting", "drafting"), _kind("verification", "selection")),
        average=True,
        note=THINKING_NOTE,
    ),
    "scot-2": Shape(
        source="SCoT table 2, section 4.3",
        title="Tokens of a draft, by draft model",
        systems=(SCOT,),
        metrics=(DRAFTED,),
        rows=("draft",),
        average=True,
    ),
    "scot-3": Shape(
        source="SCoT table 3, section 4.5",
        title="Tokens of the answer after the thought",
        systems=(TARGET, SCOT),
        metrics=(Metric("answer tokens", lambda run, _: run.answer_tokens),),
        average=True,
    ),
    "scot-4": Shape(
        source="SCoT 4.3, its table of ablations",
        title="Accuracy without parts of SCoT",
        systems=(SCOT, System("single draft", "scot", {"candidates": 1}), System("without error correction", "best-of-n")),
        metrics=(ACCURACY,),
        average=True,
        note="Without tuning: runs whose models are the untuned ones.",
    ),
    "scot-selection": Shape(
        source="SCoT 4.4, its table of selection",
        title="Selection among drafted thoughts: of problems with a right draft (class 1) and without (class 2)",
        systems=(SCOT,),
        metrics=(
            Metric("class 1", lambda run, _: Estimate(run.selection.class_1) if run.selection else NOTHING, _plain),
            _of_selection("class_1_right", "a right draft selected"),
            Metric("class 2", lambda run, _: Estimate(run.selection.class_2) if run.selection else NOTHING, _plain),
            _of_selection("class_2_right", "all rejected"),
        ),
    ),
    "specreason-3": Shape(
        source="SpecReason figure 3, section 5.2",
        title="Accuracy and latency of the schemes",
        systems=SCHEMES,
        metrics=(ACCURACY, LATENCY, SPEED_UP),
        average=True,
    ),
    "specreason-4a": Shape(
        source="SpecReason figure 4a, section 5.2",
        title="Tokens of the thought",
        systems=(TARGET, DRAFT, SPECREASON),
        metrics=(THOUGHT,),
    ),
    "specreason-4b": Shape(
        source="SpecReason figure 4b, section 5.2",
        title="Accuracy by token budget",
        systems=(TARGET, SPECREASON),
        metrics=(ACCURACY, GAIN),
        rows=("params.token_budget",),
        columns=("data", "system", "metric"),
    ),
    "specreason-5": Shape(
        source="SpecReason figure 5, section 5.3",
        title="Accuracy and latency by acceptance threshold",
        systems=(SPECREASON, BOTH),
        metrics=(ACCURACY, LATENCY, Metric("steps by the draft", lambda run, _: run.draft_share, percent)),
        rows=("system", "models", "params.threshold"),
    ),
    "specreason-6": Shape(
        source="SpecReason figure 6, section 5.3",
        title="Accuracy and latency by the number of first steps that the target writes",
        systems=(SPECREASON,),
        metrics=(ACCURACY, LATENCY),
        rows=("models", "params.first_steps"),
    ),
    "specreason-7": Shape(
        source="SpecReason figure 7, section 5.4",
        title="Mean utility score of speculated steps, by their reward from a process reward model",
        systems=(SPECREASON,),
        metrics=(
            *(_bin(place) for place in range(BINS)),
            Metric("rank correlation", lambda run, _: Estimate(run.agreement.rank_correlation) if run.agreement else NOTHING, _plain),
            Metric("steps", lambda run, _: Estimate(run.agreement.steps) if run.agreement else NOTHING, _plain),
        ),
        rows=("metric",),
        columns=("data", "models"),
        note="All speculated steps, accepted and rejected ones. Needs `pipeline score RUN --prm FILE`.",
    ),
    "specreason-8": Shape(
        source="SpecReason figure 8, section A.1",
        title="Accuracy and latency of the schemes with another base model",
        systems=SCHEMES,
        metrics=(ACCURACY, LATENCY, SPEED_UP),
    ),
    "specreason-9": Shape(
        source="SpecReason figure 9, section A.2",
        title="Tokens of the thought, by pair of models",
        systems=(TARGET, DRAFT, SPECREASON),
        metrics=(THOUGHT,),
        average=True,
    ),
}
"""The papers' tables by the name that `pipeline compare --table` takes."""
BY_DATA = Shape(
    source="SpecCoT tables 2 and 3, SpecReason figure 3",
    title="All data sets: accuracy, committed tokens and latency per problem, speed-up r over the same target alone",
    systems=(),
    metrics=(ACCURACY, TOKENS, LATENCY, SPEED_UP),
    average=True,
)
"""The table of all systems over several data sets; its systems are those of the runs."""
