"""The papers' own tables as data, and how one is filled from runs: tables of runs enter, a `Table` of the paper's shape leaves. Pure.

A `Shape` names the systems, what makes rows, what makes columns, and the figures. A system without runs is left out and named in the
note. Where runs of a cell differ in a setting that the shape does not name, such as a param, that setting makes rows of its own.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from msgspec import Struct, structs

from pipeline.analysis.compare.cells import Table, number, percent, plain, reward
from pipeline.analysis.compare.compare import setting_of
from pipeline.analysis.compare.figures import Compared, figures
from pipeline.analysis.compare.pooling import data_sets
from pipeline.analysis.compare.runs import RunTable
from pipeline.analysis.quality.estimates import NOTHING, Estimate
from pipeline.analysis.quality.reward_agreement import BINS
from pipeline.analysis.resources import Resources
from pipeline.errors import UsageError

Pick = Callable[[Compared, Compared], Estimate]
"""The figure of a run, given also the base of the figure, which may be the run itself."""
Print = Callable[[Estimate], str]
SHORT = {"batch_size": "batch size", "models": "models", "draft": "draft", "target": "target", "data": "data", "resources": "resources"}
"""What a column of row names is called, by its dimension."""
UNNAMED = ("graph", "data", "rows", "engines")
"""Settings of a run that a shape's dimensions say in another way, or that do not tell rows apart."""


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


class _Cell(Struct, frozen=True):
    """One run at its place in a table."""

    run: RunTable
    at: dict[str, Any]
    """Its value of every dimension but `metric`."""


def paper_table(shape: Shape, runs: Sequence[RunTable]) -> Table:
    """The table `shape` filled with `runs`; raises `UsageError` where none of them is one of its systems."""
    cells = _cells(shape, runs)
    if not cells:
        wanted = ", ".join(dict.fromkeys(_asked(system) for system in shape.systems))
        raise UsageError(f"{shape.source}: none of the runs is of a system in it; give runs of {wanted}")
    dims = (*shape.rows, *_varied(shape, cells))
    filled, hidden = _filled(shape, dims, cells, runs)
    keys = _Keys(shape, cells)
    columns = keys.ordered(shape.columns, [key[len(dims) :] for key in filled])
    found = {row: [filled.get((*row, *column)) for column in columns] for row in keys.ordered(dims, [key[: len(dims)] for key in filled])}
    found = {row: values for row, values in found.items() if any(_known(each) for each in values)}
    shown = [i for i in range(len(columns)) if any(_known(values[i]) for values in found.values())]
    extra = _averages(shape, columns, list(found.values())) if shape.average else {}
    rows = tuple(
        (*map(_said, row), *(_printed(values[i]) for i in shown), *(means[place] for means in extra.values()))
        for place, (row, values) in enumerate(found.items())
    )
    headings = (*map(_heading, dims), *(", ".join(map(_said, columns[i])) for i in shown), *extra)
    return Table(f"{shape.title} ({shape.source})", headings, rows, _note(shape, cells, hidden))


Found = tuple[Metric, Estimate]
Key = tuple[Any, ...]


def _cells(shape: Shape, runs: Sequence[RunTable]) -> list[_Cell]:
    data = data_sets(runs)
    found = [(system, run) for run in runs if (system := _system(shape, run)) is not None]
    return [_Cell(run, setting_of(run) | {"system": system.label, "data": data[run.name]} | _models(run)) for system, run in found]


def _system(shape: Shape, run: RunTable) -> System | None:
    """The system of `shape` that `run` is one of; of several the one that says most about its params."""
    found = [each for each in shape.systems if run.graph == each.graph and all(run.params.get(k) == v for k, v in each.params.items())]
    return max(found, key=lambda system: len(system.params), default=None)


def _models(run: RunTable) -> dict[str, str]:
    writers = [role for role in run.roles if role not in run.drafters]
    return {
        "models": " + ".join(run.models.values()),
        "draft": " + ".join(run.models[role] for role in run.drafters if role in run.models) or "-",
        "target": run.models[writers[0]] if writers else "-",
    }


def _varied(shape: Shape, cells: Sequence[_Cell]) -> list[str]:
    """Settings in which runs differ that the shape's dimensions put into one cell."""
    places: dict[tuple[Any, ...], list[_Cell]] = {}
    for each in cells:
        places.setdefault(_key([*shape.rows, *shape.columns], each.at, ""), []).append(each)
    said = (*UNNAMED, *shape.rows, *shape.columns, "system", *_models(cells[0].run))
    found: dict[str, None] = {}
    for members in places.values():
        names = [name for name in members[0].at if name not in said]
        found |= dict.fromkeys(name for name in names if len({repr(each.at.get(name)) for each in members}) > 1)
    return list(found)


def _key(dims: Iterable[str], at: Mapping[str, Any], metric: str) -> tuple[Any, ...]:
    return tuple(metric if name == "metric" else at.get(name, "-") for name in dims)


class _Keys:
    """Puts rows and columns in order: systems, metrics, data and models as they were given, settings in ascending order."""

    def __init__(self, shape: Shape, cells: Sequence[_Cell]) -> None:
        self._given: dict[str, list[Any]] = {
            "system": [system.label for system in shape.systems],
            "metric": [metric.title for metric in shape.metrics],
        }
        self._given |= {name: list(dict.fromkeys(each.at[name] for each in cells)) for name in ("data", "models", "draft", "target")}

    def ordered(self, dims: Sequence[str], keys: Iterable[Key]) -> list[Key]:
        """Each of `keys`, which have a value for each of `dims`, once and in order."""

        def place(key: Key) -> Key:
            return tuple(
                self._given[name].index(value) if name in self._given else _rank(value) for name, value in zip(dims, key, strict=True)
            )

        return sorted(dict.fromkeys(keys), key=place)


def _rank(value: Any) -> Key:
    if isinstance(value, Resources):
        return (1, value.gpus, value.cores, value.flops_per_s, value.label)
    return (0, value) if isinstance(value, int | float) else (2, str(value))


def _filled(shape: Shape, dims: Sequence[str], cells: Sequence[_Cell], runs: Sequence[RunTable]) -> tuple[dict[Key, Found], list[str]]:
    """The figures by the values of all dimensions, and the names of runs that have another run's place."""
    known: dict[tuple[str, str], Compared] = {}

    def compared(run: RunTable, base: RunTable) -> Compared:
        if (run.name, base.name) not in known:
            known[run.name, base.name] = figures(run, base)
        return known[run.name, base.name]

    filled: dict[Key, Found] = {}
    hidden: dict[str, None] = {}
    for each, metric in product(cells, shape.metrics):
        key = _key([*dims, *shape.columns], each.at, metric.title)
        base = _base(metric, each, cells, runs)
        if key in filled:
            hidden[each.run.name] = None
        elif base is None or (metric.over and base is each.run):
            filled[key] = metric, NOTHING
        else:
            filled[key] = metric, metric.pick(compared(each.run, base), compared(base, base))
    return filled, list(hidden)


def _base(metric: Metric, cell: _Cell, cells: Sequence[_Cell], runs: Sequence[RunTable]) -> RunTable | None:
    """The run that the figure is over; the cell's own where it is over none, None where there is no such run."""
    if not metric.over:
        return cell.run
    return _target(cell.run, runs) if metric.over == "target" else _least(metric.over, cell, cells)


def _target(run: RunTable, runs: Sequence[RunTable]) -> RunTable | None:
    """The run of the target alone over the same data with the same model that has most settings in common with `run`."""
    mine, model = setting_of(run), _models(run)["target"]
    alike = [each for each in runs if each.graph == "target" and each.input.sha256 == run.input.sha256 and _models(each)["target"] == model]

    def agreeing(other: RunTable) -> int:
        theirs = setting_of(other)
        return sum(mine[name] == theirs[name] for name in mine.keys() & theirs.keys())

    return max(alike, key=agreeing, default=None) if run.graph != "target" else None


def _least(dim: str, cell: _Cell, cells: Sequence[_Cell]) -> RunTable:
    """The run that differs from `cell` in the dimension `dim` alone and has its least value there."""
    ignored = (dim, "engines", "seed", *(["resources"] if dim != "resources" else []))
    alike = [each for each in cells if all(each.at.get(name) == value for name, value in cell.at.items() if name not in ignored)]
    return min(alike, key=lambda each: _rank(each.at[dim])).run


def _known(found: Found | None) -> bool:
    return found is not None and found[1].value is not None


def _printed(found: Found | None) -> str:
    return found[0].form(found[1]) if found is not None else "-"


def _averages(shape: Shape, columns: Sequence[Key], rows: Sequence[Sequence[Found | None]]) -> dict[str, list[str]]:
    """By heading, for each metric the unweighted mean over the data sets, of rows that have all of them; nothing of a single data set."""
    data, which = shape.columns.index("data"), shape.columns.index("metric")
    sets = {key[data] for key in columns}
    found = {}
    for metric in shape.metrics if len(sets) > 1 else ():
        places = [i for i, key in enumerate(columns) if key[which] == metric.title]
        means = [metric.form(_mean(values[i] for i in places)) for values in rows]
        if any(mean != "-" for mean in means):
            found[f"average, {metric.title}"] = means
    return found


def _mean(cells: Iterable[Found | None]) -> Estimate:
    values = [None if each is None else each[1].value for each in cells]
    return NOTHING if None in values else Estimate(float(np.mean([value for value in values if value is not None])))


def _heading(name: str) -> str:
    return SHORT.get(name, name.removeprefix("params."))


def _said(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_said, value))
    return value.label if isinstance(value, Resources) else f"{value:g}" if isinstance(value, float) else str(value)


def _note(shape: Shape, cells: Sequence[_Cell], hidden: Sequence[str]) -> str:
    """The shape's note, what is missing, how many runs a row pools, and how many chains failed."""
    there = {each.at["system"] for each in cells}
    said = [shape.note] if shape.note else []
    missing = [f"{system.label} ({_asked(system)})" for system in shape.systems if system.label not in there]
    said += [f"Left out, as there are no runs of them: {', '.join(missing)}."] if missing else []
    said += [f"Not shown, as another run has their place: {', '.join(hidden)}."] if hidden else []
    pooled = sorted({len(each.run.pooled) for each in cells if each.run.pooled})
    said += [f"Pooled runs that differ in the seed alone: {', '.join(map(str, pooled))} a row."] if pooled else []
    failed = sum({each.run.name: each.run.failed for each in cells}.values())
    said += [f"{failed} chains failed: they count as wrong and are in no other figure."] if failed else []
    return " ".join(said)


def _asked(system: System) -> str:
    return " ".join([f"graph {system.graph}", *(f"{name}={value}" for name, value in system.params.items())])


def _plain(e: Estimate) -> str:
    return plain(e.value)


def _signed(e: Estimate) -> str:
    return percent(e, sign=True)


def _saved(run: Compared, base: Compared) -> Estimate:
    """Share of the time that a speed-up saves, 1 - 1/r, as SpecCoT table 4 prints it."""
    r = run.over_baseline.speed_up
    ends = [None if each is None else 1 - 1 / each for each in (r.value, r.low, r.high)]
    return Estimate(*ends)


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
THROUGHPUT = Metric("tokens/s", lambda run, _: Estimate(run.tokens_per_s), _plain)
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
            Metric("throughput gained", lambda run, base: _less_one(_over(run.tokens_per_s, base.tokens_per_s)), _signed, "resources"),
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
        note="Needs `pipeline grade RUN --prm FILE`.",
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
        note="All speculated steps, accepted and rejected ones. Needs `pipeline grade RUN --prm FILE`.",
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


def by_data_set(runs: Sequence[RunTable]) -> Table:
    """`BY_DATA` with a system for each graph of `runs`."""
    return paper_table(
        structs.replace(BY_DATA, systems=tuple(System(graph, graph) for graph in dict.fromkeys(run.graph for run in runs))), runs
    )


def _less_one(e: Estimate) -> Estimate:
    return e if e.value is None else Estimate(e.value - 1)
