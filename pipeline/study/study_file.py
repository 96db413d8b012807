"""Study files: a YAML file of what is compared with what enters, the points that it runs and the papers' tables over them leave.

A study's keys hold for each of its parts; a part's own override them. In the small form, which runs on what is bundled, `small`
overrides both. They are merged before anything is decoded. Nothing is run here.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from pipeline.analysis.compare import data_name
from pipeline.analysis.tables import read_query
from pipeline.data.prepare import RECIPES
from pipeline.errors import GraphError, UsageError, boundary
from pipeline.graph.files import FileMapping, bundled_files, copied, find_file, read_file, setting, shown, written
from pipeline.graph.load import PRESET, decode_file, load_preset, located, mapping, outline
from pipeline.graph.spec import Count, Param
from pipeline.options import RunOptions, ScheduleName
from pipeline.study.points import Point, Study, grid
from pipeline.study.systems import Matrix, combinations, read_systems, unlike

WARM_UP = 8
"""Problems that every system solves on real engines before its first point."""
OTHER = {"limit": "random", "random": "limit"}
"""Keys that choose problems: the last one given counts."""
Text = Annotated[str, Meta(min_length=1)]


class SystemEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A graph with values of some of its params."""

    graph: Text
    """A graph file, or the name of a bundled graph."""
    set: dict[str, Param] = {}
    """Values of its params, which tell it from other systems of the same graph."""


class EnginesEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engines file with other values for some of its keys."""

    engines: Text
    """An engines file, or the name of a bundled one."""
    name: Text
    """Its name in tables and folders."""
    set: dict[str, Param] = {}
    """Values as of `--set`, such as `engines.draft.model`."""


class DataEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Some problems of a data set."""

    data: Text
    """As an entry of `data`."""
    limit: Count | None = None
    """Only the first N problems."""
    random: Text | None = None
    """Only N random problems: `N:SEED`."""
    columns: dict[str, str] = {}
    """Columns of the file, as of `--column`: problem, answer, problem_id, options or grader."""


class StudySpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A study, or a part of one with all its keys."""

    title: Text
    """What is studied."""
    source: str = ""
    """Paper, table or figure, and section."""
    systems: Annotated[tuple[Text | SystemEntry, ...], Meta(min_length=1)]
    """The graphs that solve the problems, by name or file, each beside the baseline."""
    baseline: Text = "target"
    """The graph that they are compared with, on the same engines."""
    engines: Annotated[tuple[Text | EnginesEntry, ...], Meta(min_length=1)] | None = None
    """Engines files by name or path; by default those that the graphs name."""
    baseline_engines: tuple[Text, ...] = ()
    """Engines files on which the baseline runs as well."""
    data: Annotated[tuple[Text | DataEntry, ...], Meta(min_length=1)]
    """Data sets: the name of a recipe, or a file of problems."""
    limit: Count | None = None
    """Only the first N problems of each data set."""
    random: Text | None = None
    """Only N random problems of each data set: `N:SEED`."""
    preset: Text | None = None
    """Settings of a paper, as of `--preset`."""
    set: dict[str, Param] = {}
    """Settings of all systems and engines that have them, as of `--set`; they override the preset."""
    params: dict[str, Annotated[tuple[Param, ...], Meta(min_length=1)]] = {}
    """Values of params by name; every combination is run. Where the baseline has the param too, it is run with each value as well."""
    batch_sizes: Annotated[tuple[Count, ...], Meta(min_length=1)] = (1, 8, 32)
    """Most chains in progress at once."""
    schedules: tuple[ScheduleName, ...] = ("pipelined",)
    samples: Count | None = None
    """Attempts at every problem; by default as the preset says, or 1."""
    seeds: Annotated[tuple[int, ...], Meta(min_length=1)] = (0,)
    """Random seeds, a run for each; tables pool them."""
    repeats: Count = 1
    """Runs of every point on real engines."""
    tables: tuple[Text, ...] = ()
    """Tables as of `compare --table`: of a study over all its runs, of a part over its own."""
    parts: dict[Text, dict[str, Any]] = {}
    """By name; a study without them is one part. Each has keys of the study that take the place of those above."""
    small: dict[str, Any] = {}
    """Keys that take the place of the others in the small form, of the study or of a part."""


def is_study(name: Path) -> bool:
    """Whether this is the name of a study file, or its path; raises as `read_file`."""
    return "title" in read_file((bundled_files("study file") | bundled_files("graph")).get(str(name), name), "graph")


def read_study(name: Path, folder: RunOptions, *, small: bool = False) -> Study:
    """What a study file runs, in the folder of those options. Raises `GraphError` for what is wrong in it, and in files that it names."""
    path = find_file(name, "study file")
    values = read_file(path, "study file")
    with located(values):
        parts = dict(_merged(values, small))
    specs = {part: decode_file(merged, StudySpec) for part, merged in parts.items()}
    several = len({_engines(each).name for spec in specs.values() for each in spec.engines or ()}) > 1
    groups: dict[str, tuple[Point, ...]] = {}
    told, tables = dict[str, None](), list[tuple[str, tuple[str, ...]]]()
    for part, spec in specs.items():
        with boundary(GraphError, parts[part].place, foreign=UsageError):
            found = dict(_groups(part, spec, folder, told, several=several))
            _check_names(groups, found)
            groups |= found
            tables += _tables(spec.tables, found)
    first, form = next(iter(specs.values())), ", in its small form" if small else ""
    title = f"{first.title} ({first.source}{form})" if first.source else f"{first.title}{form}"
    with boundary(GraphError, values.places.get("tables", str(path)), foreign=UsageError):
        tables += _tables(values.get("tables", ()) if values.get("parts") else (), groups)
    return Study(name=path.stem, title=title, groups=groups, tables=tuple(tables), told=tuple(told), folder=folder, warm_up=WARM_UP)


def _merged(values: FileMapping, small: bool) -> Iterator[tuple[str, FileMapping]]:
    """Each part by name with all its keys; the tables of a study are no part's."""
    parts = _below(values, "parts")
    for name in parts or [""]:
        part, found = _below(parts, name), FileMapping(parts.places.get(name, values.place))
        for layer in (values, part, *(_below(each, "small") for each in (values, part) if small)):
            if layer.get("limit") and layer.get("random"):
                raise GraphError(layer.places["random"], "`random` is given beside `limit`; give only one of them")
            for key in layer.keys() - {"parts", "small"} - ({"tables"} if parts and layer is values else set()):
                if layer[key] and key in OTHER:
                    found.pop(OTHER[key], None)
                found[key], found.places[key] = layer[key], layer.places[key]
        yield name, found


def _below(values: FileMapping, key: str) -> FileMapping:
    """The mapping at a key; an empty one where there is none."""
    found: FileMapping = copied(mapping(values.get(key) or {}, (key,)), values.places.get(key, values.place))
    return found


def _groups(
    part: str, spec: StudySpec, folder: RunOptions, told: dict[str, None], *, several: bool
) -> Iterator[tuple[str, tuple[Point, ...]]]:
    """By heading the points of a part that are compared with each other: over the same problems, with the same values of the params that
    the baseline has as well. What is to be known of its systems is `told`."""
    common = {name: values for name, values in spec.params.items() if name in outline(Path(spec.baseline)).params}
    data = {_data_name(each): each for each in (_data(entry, spec) for entry in spec.data)}
    for values in product(*common.values()):
        chosen = dict(zip(common, values, strict=True))
        groups: dict[str, tuple[Point, ...]] = {}
        for entry in [None] if spec.engines is None else map(_engines, spec.engines):
            matrix = _matrix(spec, entry, chosen, folder, data)
            systems = read_systems(matrix)
            told |= dict.fromkeys([*(said for each in systems for said in each.notices), *unlike(systems)])
            name = entry.name if several and entry is not None else ""
            named = [
                structs.replace(each, name=" ".join(filter(None, [each.name, shown(chosen)])), engines=each.engines or name)
                for each in systems
            ]
            for label, points in grid(matrix, named).items():
                groups[label] = (*groups.get(label, ()), *points)
        for label, points in groups.items():
            yield ", ".join(filter(None, (part, label, shown(chosen)))), points


def _matrix(
    spec: StudySpec, entry: EnginesEntry | None, chosen: Mapping[str, Param], folder: RunOptions, data: Mapping[str, DataEntry]
) -> Matrix:
    """What a part runs on one engines file."""
    vary = {name: tuple(map(written, values)) for name, values in spec.params.items() if name not in chosen}
    choices: dict[Path, tuple[dict[str, str], ...]] = {}
    for system in (SystemEntry(graph=each) if isinstance(each, str) else each for each in spec.systems):
        graph, fixed = Path(system.graph), {name: written(value) for name, value in system.set.items()}
        free = combinations({name: values for name, values in vary.items() if name not in fixed}, graph)
        choices[graph] = (*choices.get(graph, ()), *({**fixed, **choice} for choice in free))
    preset = None if spec.preset is None else load_preset(spec.preset)
    given = [setting(name, value) for values in (spec.set, chosen, entry.set if entry else {}) for name, value in values.items()]
    shared = structs.replace(
        folder,
        graph=next(iter(choices)),
        engines=None if entry is None else Path(entry.engines),
        settings=(*([] if preset is None else [f"{PRESET}{spec.preset}"]), *given),
        samples=spec.samples or (preset.samples if preset else None) or 1,
    )
    return Matrix(
        shared=shared,
        graphs=tuple(choices),
        baseline=Path(spec.baseline),
        baseline_engines=tuple(map(Path, spec.baseline_engines)),
        vary=vary,
        choices=choices,
        data={
            name: {"input": (each.data,), "columns": each.columns, "limit": each.limit, "random": each.random}
            for name, each in data.items()
        },
        batch_sizes=spec.batch_sizes,
        schedules=spec.schedules,
        seeds=spec.seeds,
        repeats=spec.repeats,
    )


def _data(entry: str | DataEntry, spec: StudySpec) -> DataEntry:
    """An entry with the limits of its part, where it has none itself."""
    found = DataEntry(data=entry) if isinstance(entry, str) else entry
    if found.limit and found.random:
        raise UsageError(f"data {found.data}: has both `limit` and `random`; give only one of them")
    return found if found.limit or found.random else structs.replace(found, limit=spec.limit, random=spec.random)


def _data_name(data: DataEntry) -> str:
    """What a data set is called in headings and folders."""
    part = [f"limit={data.limit}"] if data.limit else [f"random={data.random}"] if data.random else []
    return " ".join([data.data if data.data in RECIPES else data_name(Path(data.data)), *part])


def _engines(entry: str | EnginesEntry) -> EnginesEntry:
    return EnginesEntry(engines=entry, name=Path(entry).name.removesuffix(".yaml")) if isinstance(entry, str) else entry


def _check_names(earlier: Mapping[str, tuple[Point, ...]], groups: Mapping[str, tuple[Point, ...]]) -> None:
    """Raise `UsageError` where a point would be called as another run is."""
    known = dict[str, Point]()
    for point in (point for each in (earlier, groups) for points in each.values() for point in points):
        if not point.same_run(known.setdefault(point.folder, point)):
            raise UsageError(f"{point.folder} is a run of another part too, with other settings or problems; give both the same")


def _tables(names: tuple[str, ...], groups: Mapping[str, tuple[Point, ...]]) -> list[tuple[str, tuple[str, ...]]]:
    """These tables over the runs of `groups`; raises `UsageError` for one that is unknown."""
    runs = tuple(dict.fromkeys(point.folder for points in groups.values() for point in points))
    for name in names:
        read_query(name)
    return [(name, runs) for name in names]
