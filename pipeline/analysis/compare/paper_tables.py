"""A paper's table from runs: a `Shape` and tables of runs enter, a `Table` of the paper's form leaves. Pure.

A `Shape` names the systems, what makes rows, what makes columns, and the figures. A system without runs is left out and named in the
note. Where runs of a cell differ in a setting that the shape does not name, such as a param, that setting makes rows of its own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from msgspec import Struct, structs

from pipeline.analysis.compare.cells import Table
from pipeline.analysis.compare.compare import setting_of
from pipeline.analysis.compare.figures import Compared
from pipeline.analysis.compare.paper_shapes import BY_DATA, Metric, Shape, System
from pipeline.analysis.compare.rules import DECIDED, differences
from pipeline.analysis.compare.runs import RunTable, data_sets
from pipeline.analysis.quality.estimates import NOTHING, Estimate
from pipeline.analysis.resources import Resources
from pipeline.errors import UsageError

SHORT = {"batch_size": "batch size"}
"""What a column of row names is called, where that is not the name of its dimension."""
UNNAMED = ("graph", "data", "rows", "engines")
"""Settings of a run that a shape's dimensions say in another way, or that do not tell rows apart."""


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
    return Table(
        f"{shape.title} ({shape.source})", headings, rows, " ".join([_note(shape, cells, hidden), *_unlike(shape, cells, runs)]).strip()
    )


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
            known[run.name, base.name] = Compared(run, base)
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
    said += [f"Left out because there are no runs: {', '.join(missing)}."] if missing else []
    said += [f"Not shown because another run takes their place: {', '.join(hidden)}."] if hidden else []
    pooled = sorted({len(each.run.pooled) for each in cells if each.run.pooled})
    said += [f"Pooled runs that differ only in the seed: {', '.join(map(str, pooled))} a row."] if pooled else []
    failed = sum({each.run.name: each.run.failed for each in cells}.values())
    said += [f"{failed} chains failed: they count as wrong and are in no other figure."] if failed else []
    made = {kind: None for each in cells if (kind := Compared(each.run, each.run).answers)}
    said += [f"Accuracies are of {' and '.join(made)} answers."] if made else []
    return " ".join(said)


def _unlike(shape: Shape, cells: Sequence[_Cell], runs: Sequence[RunTable]) -> Iterator[str]:
    """How a run differs from the one that its figures are relative to, apart from what the rows and columns say."""
    found: dict[str, dict[str, None]] = {}
    for each, metric in product(cells, shape.metrics):
        base = _base(metric, each, cells, runs)
        if metric.over and base is not None and base is not each.run:
            clauses = (clause for kind, clause in differences(each.run.rules, base.rules) if kind in DECIDED)
            found.setdefault(f"{each.run.name} over {base.name}", {}).update(dict.fromkeys(clauses))
    said = "; ".join(f"{pair}: {', '.join(clauses)}" for pair, clauses in found.items() if clauses)
    if said:
        yield f"Not the same: {said}."


def _asked(system: System) -> str:
    return " ".join([f"graph {system.graph}", *(f"{name}={value}" for name, value in system.params.items())])


def by_data_set(runs: Sequence[RunTable]) -> Table:
    """`BY_DATA` with a system for each graph of `runs`."""
    return paper_table(
        structs.replace(BY_DATA, systems=tuple(System(graph, graph) for graph in dict.fromkeys(run.graph for run in runs))), runs
    )
