"""The tables of the papers: SQL files in `analysis/papers`, whose comments are a heading and a layout, and tables of runs enter, a `Table`
of the paper's form leaves.

A query is over `runs`, a table with a row for each run: what was decided about it, and the figures of `Compared`, estimates as structs of
`value`, `low` and `high`. `over_target` has the differences from the run of the target alone in the same setting, `over_least_resources`
and `least_batch_size` are of the run that has the least of these and is alike otherwise. The layout says which columns of the result make
rows, and which make columns of the table; a file without one is printed as it is. Of several runs in a cell the first is shown, and the
note names the others.
"""

import re
import types
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
from msgspec import Struct

from pipeline.analysis.compare.cells import Table, number, percent, plain, reward
from pipeline.analysis.compare.figures import Compared, Difference, Figures
from pipeline.analysis.compare.rules import DECIDED, differences
from pipeline.analysis.compare.runs import RunTable, data_sets
from pipeline.analysis.quality.estimates import Estimate
from pipeline.analysis.resources import Resources
from pipeline.errors import UsageError, did_you_mean, reason
from pipeline.graph.files import model_name
from pipeline.store.query import Query

FOLDER = Path(__file__).parent.parent / "papers"
FORMS: Mapping[str, Callable[[Estimate], str]] = {
    "number": number,
    "percent": percent,
    "signed": partial(percent, sign=True),
    "reward": reward,
    "plain": lambda e: plain(e.value),
}
"""How a figure is printed, by the name of the macro."""
MACROS = """
CREATE OR REPLACE MACRO plain(x) AS {'value': x::DOUBLE, 'low': NULL::DOUBLE, 'high': NULL::DOUBLE, 'form': 'plain'};
CREATE OR REPLACE MACRO saved(r) AS {'value': 1 - 1 / r.value, 'low': 1 - 1 / r.low, 'high': 1 - 1 / r.high};
CREATE OR REPLACE MACRO percent(e) AS {'value': e.value, 'low': e.low, 'high': e.high, 'form': 'percent'};
CREATE OR REPLACE MACRO signed(e) AS {'value': e.value, 'low': e.low, 'high': e.high, 'form': 'signed'};
CREATE OR REPLACE MACRO reward(e) AS {'value': e.value, 'low': e.low, 'high': e.high, 'form': 'reward'};
"""
"""For queries: how a figure is printed; and the share of the time that a speed-up saves, as SpecCoT table 4 has it."""
RATES = ("wall_time_s", "kept_tokens_per_s")
LEAST = ("resources", "batch_size")
DECISIONS = ("graph", "schedule", "batch_size", "replicas", "samples", "failed")
NAMED = ("data", "models", "draft", "target")
"""Dimensions besides the settings of a run, `system` and `metric`."""
_HEAD = re.compile(r"^-- (title|source|systems|rows|columns|average|note): (.*)$", re.MULTILINE)
Key = tuple[Any, ...]


class System(Struct, frozen=True):
    """One system of a table."""

    label: str
    """Its name in the paper, or a description."""
    asked: str
    """The graph, and the params that a run must have to be this system, as `graph scot candidates=1`."""

    def names(self, graph: str, params: Mapping[str, object]) -> bool:
        """True if a run of `graph` with these `params` is one of it."""
        _, wanted, *settings = self.asked.split()
        return graph == wanted and all(str(params.get(name)) == value for name, _, value in (each.partition("=") for each in settings))


class Layout(Struct, frozen=True, kw_only=True):
    """An SQL file of a table. A dimension is `system`, `data`, `models`, `draft`, `target`, `speculation`, `metric` or one of
    `setting_of`."""

    sql: str
    names: frozenset[str] | None = None
    """All words of a bundled table's query, which names the columns it reads; unknown for a user's query."""
    title: str
    source: str = ""
    """Paper, table or figure, and section."""
    systems: tuple[System, ...] = ()
    """In order; empty: every graph is one."""
    rows: tuple[str, ...] = ()
    """Dimensions that make rows; empty: the result is the table."""
    columns: tuple[str, ...] = ()
    average: bool = False
    """True if a last group of columns has the means over the data sets, where there are several."""
    note: str = ""


class Cell(Struct, frozen=True):
    """A figure, and how it is printed."""

    form: str
    figure: Estimate

    @property
    def text(self) -> str:
        return FORMS[self.form](self.figure)


Cells = Sequence[Cell | None]


class _Row(Struct, frozen=True):
    """A row of the result of a query."""

    run: RunTable
    at: dict[str, Any]
    """The run's value of every dimension but `metric`."""
    cells: dict[str, Cell]
    """By the name of the column."""


def bundled_tables() -> dict[str, Path]:
    """The files of the papers' tables, by their names."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.sql"))}


def table_file(name: str) -> Path:
    """The file of a table, given the table's name or an SQL file; raises `UsageError` if there is none."""
    if name.endswith(".sql"):
        return Path(name)
    known = bundled_tables()
    if name not in known:
        raise UsageError(f"--table {name}: no such table; {did_you_mean(name, known)}, or an SQL file of yours")
    return known[name]


def read_layout(file: Path) -> Layout:
    """The query in a file, and the layout in its comments; raises `UsageError` where it cannot be read."""
    try:
        sql = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: cannot be read: {reason(error)}; expected a file with a query") from error
    head = dict(_HEAD.findall(sql))
    lists = {name: tuple(re.split(", *", head[name])) for name in ("rows", "columns") if name in head}
    named_systems = (each.partition(" = ") for each in head.get("systems", "").split("; ") if each)
    systems = tuple(System(label, asked) for label, _, asked in named_systems)
    if wrong := next((each.label for each in systems if not re.match(r"graph \S", each.asked)), None):
        raise UsageError(f"{file}: `systems` has {wrong!r}; expected `LABEL = graph NAME PARAM=VALUE...`, separated by semicolons")
    if "average" in head and not {"data", "metric"} <= set(lists.get("columns", ())):
        raise UsageError(f"{file}: `average` needs `data` and `metric` among the `columns`")
    words = frozenset(re.findall(r"\w+", sql)) if file.parent == FOLDER else None
    named: dict[str, Any] = {"names": words} | {name: head.get(name, "") for name in ("source", "note")} | lists
    return Layout(sql=sql, title=head.get("title", file.stem), systems=systems, average="average" in head, **named)


def paper_table(file: Path, runs: Sequence[RunTable]) -> Table:
    """The table of an SQL file filled with `runs`; raises `UsageError` where none of them is one of its systems."""
    layout = read_layout(file)
    if not layout.rows:
        columns, rows = _asked(layout, runs)
        return Table(layout.title, columns, tuple(tuple(map(printed, row)) for row in rows), layout.note)
    systems = layout.systems or tuple(System(graph, f"graph {graph}") for graph in dict.fromkeys(run.graph for run in runs))
    rows_of = _rows(layout, systems, runs)
    if not rows_of:
        wanted = ", ".join(dict.fromkeys(system.asked for system in systems))
        raise UsageError(f"{layout.source}: none of the runs is of a system in it; give runs of {wanted}")
    return _laid_out(layout, systems, rows_of, runs)


def _asked(layout: Layout, runs: Sequence[RunTable]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """The columns and the rows of the result of a query over runs."""
    with Query() as db, db.errors_of_sql():
        make_runs(db, runs, layout.names)
        found = db.select(layout.sql)
        return tuple(found.columns), found.fetchall()


def make_runs(db: Query, runs: Sequence[RunTable], names: Container[str] | None = None) -> None:
    """Make the table `runs` for a query, and the macros for figures. Only figures in `names` are worked out, if that is given."""
    db.execute(MACROS)
    data, least = data_sets(runs), {name: {run.name: _least(name, run, runs) for run in runs} for name in LEAST}
    rows = [
        {"run": run.name, "data": data[run.name], "params": {name: str(value) for name, value in run.params.items()}}
        | {name: getattr(run, name) for name in DECISIONS}
        | models_of(run)
        | _figures(run, runs, {name: base[run.name] for name, base in least.items()}, names)
        for run in runs
    ]
    texts = dict.fromkeys(("run", "graph", "schedule", *NAMED), pa.string())
    kinds = {"params": pa.map_(pa.string(), pa.string())} | dict.fromkeys(DECISIONS[2:], pa.int64()) | texts
    kinds |= dict(_fields(Compared)) | {name: pa.struct(_fields(Difference)) for name in ("over_target", "over_least_resources")}
    kinds |= {f"least_{name}": pa.struct([(rate, pa.float64()) for rate in RATES]) for name in LEAST}
    table = {name: pa.array([_plain(row.get(name), kind) for row in rows], kind) for name, kind in kinds.items()}
    db.register("runs", **table)


def _figures(run: RunTable, runs: Sequence[RunTable], least: Mapping[str, RunTable | None], names: Container[str] | None) -> dict[str, Any]:
    """The figures of a run."""

    def of(figures: Figures) -> dict[str, Any]:
        return {name: getattr(figures, name) for name, _ in _fields(type(figures)) if names is None or name in names}

    bases = {"over_target": target_of(run, runs), "over_least_resources": least["resources"]}
    over = {name: of(Difference(run, base)) for name, base in bases.items() if base is not None}
    return of(Compared(run, run)) | over | {f"least_{name}": _rates(base) for name, base in least.items()}


def _rates(run: RunTable | None) -> dict[str, float | None] | None:
    return None if run is None else {name: getattr(Compared(run, run), name) for name in RATES}


def _fields(kind: type) -> list[tuple[str, pa.DataType]]:
    """The figures of a class as columns."""
    if issubclass(kind, Struct):
        return [(name, _type(hint)) for name, hint in get_type_hints(kind).items()]
    properties = {name: each.func for name, each in vars(kind).items() if isinstance(each, cached_property) and not name.startswith("_")}
    return [(name, _type(get_type_hints(func)["return"])) for name, func in properties.items()]


def _type(hint: Any) -> pa.DataType:
    """The Arrow type of values of a hint."""
    if get_origin(hint) in (Union, types.UnionType):
        [hint] = (each for each in get_args(hint) if each is not type(None))
    if get_origin(hint) is dict:
        return pa.map_(*map(_type, get_args(hint)))
    if get_origin(hint) is tuple:
        return pa.list_(_type(get_args(hint)[0]))
    simple = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    return simple[hint] if hint in simple else pa.struct(_fields(hint))


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A value as Arrow takes it."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(key, _plain(each, kind.item_type)) for key, each in value.items()]
    if pa.types.is_list(kind):
        return [_plain(each, kind.value_type) for each in value]
    if pa.types.is_struct(kind):
        of = value if isinstance(value, Mapping) else {field.name: getattr(value, field.name) for field in kind}
        return {field.name: _plain(of.get(field.name), field.type) for field in kind}
    return value


def models_of(run: RunTable) -> dict[str, str]:
    """The models of a run, joined: all, those that draft, and the one that writes."""
    writers = [role for role in run.roles if role not in run.drafters]
    return {
        "models": " + ".join(run.models.values()),
        "draft": " + ".join(run.models[role] for role in run.drafters if role in run.models) or "-",
        "target": run.models[writers[0]] if writers else "-",
    }


def target_of(run: RunTable, runs: Sequence[RunTable]) -> RunTable | None:
    """The run of the target alone over the same data with the same model that has most settings in common with `run`, and of these most
    fields of engines."""
    model = models_of(run)["target"]
    alike = [
        each for each in runs if each.graph == "target" and each.input.sha256 == run.input.sha256 and models_of(each)["target"] == model
    ]

    def agreeing(other: RunTable) -> Key:
        return _common(setting_of(run), setting_of(other)), _common(_engine_fields(run), _engine_fields(other))

    return max(alike, key=agreeing, default=None) if run.graph != "target" else None


def _common(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> int:
    """How many settings agree."""
    return sum(mine[name] == theirs[name] for name in mine.keys() & theirs.keys())


def _engine_fields(run: RunTable) -> dict[str, Any]:
    """The fields of the engines as `--set` names them, such as `engines.draft.text.verbosity`; lists are whole."""

    def flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if not isinstance(value, Mapping):
            yield name, value
            return
        for key, each in value.items():
            yield from flat(f"{name}.{key}", each)

    return dict(flat("engines", run.engines))


def _least(name: str, run: RunTable, runs: Sequence[RunTable]) -> RunTable | None:
    """The run that differs from `run` in the setting `name` alone and has its least value there; None if that is itself."""
    ignored = (name, "engines", "seed", *(["resources"] if name != "resources" else []))
    mine = {key: value for key, value in (setting_of(run) | models_of(run)).items() if key not in ignored}
    alike = [each for each in runs if all((setting_of(each) | models_of(each)).get(key) == value for key, value in mine.items())]
    found = min(alike, key=lambda each: (_rank(setting_of(each)[name]), -_common(_engine_fields(run), _engine_fields(each))))
    return None if found is run else found


def setting_of(run: RunTable) -> dict[str, Any]:
    """What was decided about a run, by name, params as `params.NAME`."""
    engines = [
        (role, spec.get("backend"), run.models[role], str(spec.get("speculative_config"))) for role, spec in sorted(run.engines.items())
    ]
    return {
        "graph": run.graph,
        "engines": tuple(engines),
        "resources": run.resources,
        "batch_size": run.batch_size,
        "replicas": run.replicas,
        "schedule": run.schedule,
        "samples": run.samples,
        "seed": run.seeds or (run.seed,),
        "data": run.input.sha256,
        "rows": run.input.rows,
        **{f"params.{name}": value for name, value in run.params.items()},
    }


def _rows(layout: Layout, systems: Sequence[System], runs: Sequence[RunTable]) -> list[_Row]:
    """The rows of the result, in the order of the runs. A run is the system that says most about its params."""
    names, found = _asked(layout, runs)
    by_run = {run.name: run for run in runs}
    if "run" not in names or any(row[names.index("run")] not in by_run for row in found):
        raise UsageError(f"{layout.title}: a query with a layout has a column `run`, the name of each row's run")
    data, rows = data_sets(runs), []
    dims = ("run", "graph", "data", "models", *layout.rows, *layout.columns)
    for values in (dict(zip(names, row, strict=True)) for row in found):
        run = by_run[values["run"]]
        system = max(
            (each for each in systems if each.names(run.graph, run.params)), key=lambda each: len(each.asked.split()), default=None
        )
        if system is not None:
            at = setting_of(run) | models_of(run)
            at |= {"system": system.label, "data": data[run.name], "speculation": _speculation(run)}
            rows.append(_Row(run, at, {name: _cell(value) for name, value in values.items() if name not in dims}))
    return sorted(rows, key=lambda row: list(by_run).index(row.run.name))


def _speculation(run: RunTable) -> str:
    """What proposes tokens inside its engines: the draft's model, or else the method."""
    specs = (run.engines[role] for role in run.roles if role in run.engines)
    configs = (spec.get("speculative_config") or (spec.get("speculative") and {"method": "simulated"}) for spec in specs)
    return ", ".join(model_name(str(each.get("model") or each.get("method"))) for each in configs if each) or "-"


def _cell(value: Any) -> Cell:
    if isinstance(value, Mapping):
        return Cell(value.get("form", "number"), Estimate(value["value"], value["low"], value["high"]))
    return Cell("plain" if value is not None else "number", Estimate(value))


def printed(value: Any) -> str:
    """A value of a result, as it is printed."""
    if value is None or _is_figure(value):
        return _cell(value).text
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _is_figure(value: Any) -> bool:
    """Whether a value is an estimate, and not another struct with such fields."""
    if not (isinstance(value, Mapping) and value.keys() >= {"value", "low", "high"} and value.get("form", "number") in FORMS):
        return False
    return all(value[name] is None or isinstance(value[name], int | float | Decimal) for name in ("value", "low", "high"))


def _laid_out(layout: Layout, systems: Sequence[System], rows: Sequence[_Row], runs: Sequence[RunTable]) -> Table:
    dims = layout.rows
    filled: dict[Key, Cell] = {}
    hidden: dict[str, None] = {}
    for row in rows:
        for metric, cell in row.cells.items():
            key = tuple(metric if name == "metric" else row.at.get(name, "-") for name in (*dims, *layout.columns))
            if filled.setdefault(key, cell) is not cell:
                hidden[row.run.name] = None
    given = {"system": [each.label for each in systems], "metric": list(rows[0].cells)}
    given |= {name: list(dict.fromkeys(row.at[name] for row in rows)) for name in NAMED}
    columns = _ordered(layout.columns, (key[len(dims) :] for key in filled), given)
    lines = {line: [filled.get((*line, *each)) for each in columns] for line in _ordered(dims, (key[: len(dims)] for key in filled), given)}
    lines = {line: cells for line, cells in lines.items() if any(map(_known, cells))}
    if not lines:
        of_target, note = "over_target" in (layout.names or ()), layout.note[:1].lower() + layout.note[1:].rstrip(".")
        needs = "it needs the run of the target alone over the same problems as well" if of_target else note
        raise UsageError(f"{layout.source or layout.title}: the runs give none of its figures; {needs or ', '.join(given['metric'])}")
    shown = [place for place in range(len(columns)) if any(_known(cells[place]) for cells in lines.values())]
    extra = _averages(layout, columns, list(lines.values()), given["metric"]) if layout.average else {}
    texts = tuple(
        (*map(_said, line), *(_text(cells[i]) for i in shown), *(means[place] for means in extra.values()))
        for place, (line, cells) in enumerate(lines.items())
    )
    headings = (*(name.removeprefix("params.").replace("batch_size", "batch size") for name in dims), *(_said(columns[i]) for i in shown))
    note = " ".join([*_notes(layout, rows, list(hidden)), *_unlike(layout, rows, runs)])
    return Table(f"{layout.title} ({layout.source})", (*headings, *extra), texts, note)


def _ordered(dims: Sequence[str], keys: Iterable[Key], given: Mapping[str, list[Any]]) -> list[Key]:
    """Each of `keys`, which have a value for each of `dims`, once: systems, metrics, data and models as given, settings ascending."""
    names = [(name, given.get(name)) for name in dims]
    return sorted(
        dict.fromkeys(keys),
        key=lambda key: tuple(_rank(each) if known is None else known.index(each) for (_, known), each in zip(names, key, strict=True)),
    )


def _rank(value: Any) -> Key:
    if isinstance(value, Resources):
        return (1, value.gpus, value.cores, value.flops_per_s, value.label)
    return (0, value) if isinstance(value, int | float) else (2, str(value))


def _known(cell: Cell | None) -> bool:
    return cell is not None and cell.figure.value is not None


def _text(cell: Cell | None) -> str:
    return cell.text if cell is not None else "-"


def _averages(
    layout: Layout, columns: Sequence[Key], lines: Sequence[Sequence[Cell | None]], metrics: Iterable[str]
) -> dict[str, list[str]]:
    """By heading, for each metric the unweighted mean over the data sets, of rows that have all of them; nothing of a single data set."""
    data, which = layout.columns.index("data"), layout.columns.index("metric")
    found = {}
    for metric in metrics if len({key[data] for key in columns}) > 1 else ():
        places = [i for i, key in enumerate(columns) if key[which] == metric]
        means = [_mean([cells[i] for i in places]) for cells in lines]
        if any(mean != "-" for mean in means):
            found[f"average, {metric}"] = means
    return found


def _mean(cells: Cells) -> str:
    known = [cell for cell in cells if cell is not None and cell.figure.value is not None]
    return Cell(known[0].form, Estimate(float(np.mean([each.figure.value for each in known])))).text if len(known) == len(cells) else "-"


def _said(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_said, value))
    return value.label if isinstance(value, Resources) else f"{value:g}" if isinstance(value, float) else str(value)


def _notes(layout: Layout, rows: Sequence[_Row], hidden: Sequence[str]) -> Iterator[str]:
    """The note of the layout, what is not shown, how many runs a row pools, and how many chains failed."""
    runs = {row.run.name: row.run for row in rows}.values()
    if layout.note:
        yield layout.note
    if hidden:
        yield f"Not shown because another run takes their place: {', '.join(hidden)}."
    if any(run.pooled for run in runs):
        pooled = sorted({len(run.pooled) or 1 for run in runs})  # some have fewer while a study goes on
        yield f"Pooled runs that differ only in the seed: {' or '.join(map(str, pooled))} a row."
    if failed := sum(run.failed for run in runs):
        yield f"{failed} chains failed: they count as wrong and are in no other figure."
    if made := list(dict.fromkeys(kind for run in runs if (kind := Compared(run, run).answers))):
        invented = [run for run in runs if Compared(run, run).answers]
        models = dict.fromkeys(models_of(run)["models"] for run in invented)
        whose = f" with {', '.join(models)}" if len(invented) < len(runs) else ""
        yield f"Accuracies{whose} are of {' and '.join(made)} answers."


def _unlike(layout: Layout, rows: Sequence[_Row], runs: Sequence[RunTable]) -> Iterator[str]:
    """How runs differ from the targets that their figures are relative to, apart from what the rows and columns say."""
    found: dict[str, str] = {}
    for run in {row.run.name: row.run for row in rows}.values() if "over_target" in layout.sql else ():
        if base := target_of(run, runs):
            clauses = dict.fromkeys(clause for kind, clause in differences(run.rules, base.rules) if kind in DECIDED)
            found |= {f"{run.name} over {base.name}": ", ".join(clauses)} if clauses else {}
    if found:
        yield f"Not the same: {'; '.join(f'{pair}: {clauses}' for pair, clauses in found.items())}."


def by_data_set(runs: Sequence[RunTable]) -> Table:
    """The table of all systems over several data sets."""
    return paper_table(bundled_tables()["data-sets"], runs)
