"""Study files: a YAML file of what is compared with what enters, the points that it runs and the papers' tables over them leave.

A study's keys hold for each of its parts; a part's own override them. In the small form, which runs on what is bundled, `small`
overrides both. They are merged before anything is decoded. Nothing is run here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from pipeline.analysis.compare import data_name
from pipeline.analysis.tables import read_query
from pipeline.data.prepare import RECIPES
from pipeline.errors import GraphError, UsageError, boundary
from pipeline.graph.files import FileMapping, bundled_files, copied, find_file, read_file, setting, shown
from pipeline.graph.load import decode_file, load_engines, located, mapping, outline, with_preset
from pipeline.graph.spec import Count, Param
from pipeline.options import RunOptions, ScheduleName
from pipeline.study.points import Point, Study, grid
from pipeline.study.systems import EnginesEntry, Matrix, SystemEntry, Text, engines_name, read_systems, said, varied


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
    engines: Annotated[tuple[Text | EnginesEntry, ...], Meta(min_length=1)] = ()
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
    """Tables as of `compare --table`, each over the runs of all parts that have it."""
    parts: dict[Text, dict[str, Any]] = {}
    """By name; a study without them is one part. Each has keys of the study that take the place of those above."""
    small: dict[str, Any] = {}
    """Keys that take the place of the others in the small form, of the study or of a part."""


def is_study(name: Path) -> bool:
    """Whether this is the name of a study file, or its path; raises as `read_file`."""
    return "title" in read_file((bundled_files("study file") | bundled_files("graph")).get(str(name), name), "graph")


def read_study(name: Path, folder: RunOptions, models: Mapping[str, str] = {}, *, small: bool = False) -> Study:
    """What a study file runs, in the folder of those options, with other `models` by role. Raises `GraphError` for what is wrong in it, and
    in files that it names."""
    path = find_file(name, "study file")
    values = read_file(path, "study file")
    with located(values):
        parts = dict(_merged(values, small))
    specs = {part: decode_file(merged, StudySpec) for part, merged in parts.items()}
    several = len({_engines(each).name for spec in specs.values() for each in spec.engines}) > 1
    groups, told, tables = dict[str, tuple[Point, ...]](), list[str](), dict[str, dict[str, None]]()
    for part, spec in specs.items():
        with boundary(GraphError, parts[part].place, foreign=UsageError):
            found = dict(_groups(part, _with_models(spec, models), folder, told, several=several))
            groups |= found
            _check_names(point for points in groups.values() for point in points)
            for table in spec.tables:
                read_query(table)
                tables.setdefault(table, {}).update(dict.fromkeys(point.folder for points in found.values() for point in points))
    first, form = next(iter(specs.values())), ", in its small form" if small else ""
    title = f"{first.title} ({first.source}{form})" if first.source else f"{first.title}{form}"
    runs = tuple((table, tuple(folders)) for table, folders in tables.items())
    return Study(name=path.stem, title=title, groups=groups, tables=runs, told=tuple(dict.fromkeys(told)), folder=folder)


def _merged(values: FileMapping, small: bool) -> Iterator[tuple[str, FileMapping]]:
    """Each part by name with all its keys."""
    parts = _below(values, "parts")
    for name in parts or [""]:
        part, found = _below(parts, name), FileMapping(parts.places.get(name, values.place))
        for layer in (values, part, *(_below(each, "small") for each in (values, part) if small)):
            for key in ("limit", "random") if layer.get("limit") or layer.get("random") else ():  # the last one given counts
                found.pop(key, None)
            for key in layer.keys() - {"parts", "small"}:
                found[key], found.places[key] = layer[key], layer.places[key]
        yield name, found


def _below(values: FileMapping, key: str) -> FileMapping:
    """The mapping at a key; an empty one where there is none."""
    found: FileMapping = copied(mapping(values.get(key) or {}, (key,)), values.places.get(key, values.place))
    return found


def _with_models(spec: StudySpec, models: Mapping[str, str]) -> StudySpec:
    """A part whose engines load these models by role. Raises `UsageError` where models are named elsewhere than in its engines files."""
    for role, model in models.items():
        if "://" in model:
            raise UsageError(f"--model {role}={model}: a study's engines files name its servers; change a copy of it")
        for each in map(_engines, spec.engines):
            if named := next((key for key in each.set if key.endswith(".model")), None):
                raise UsageError(f"--model {role}={model}: the study compares models and sets {named}; name yours in a copy of it")
            backends = {spec.backend for spec in (load_engines(Path(each.engines)) or {}).values()}
            if backends & {"sim", "openai"}:
                raise UsageError(f"--model {role}={model}: the engines {each.name} load no model; name yours in a copy of the study")
    return structs.replace(spec, set=spec.set | {f"engines.{role}.model": model for role, model in models.items()})


def _groups(part: str, spec: StudySpec, folder: RunOptions, told: list[str], *, several: bool) -> Iterator[tuple[str, tuple[Point, ...]]]:
    """By heading the points of a part that are compared with each other: over the same problems, with the same values of the params that
    the baseline has as well. What is to be known of its systems is `told`."""
    known = outline(Path(spec.baseline)).params
    common = {name: values for name, values in spec.params.items() if name in known}
    matrix = _matrix(spec, folder, {name: values for name, values in spec.params.items() if name not in known}, several=several)
    for values in product(*common.values()):
        chosen = dict(zip(common, values, strict=True))
        systems = read_systems(structs.replace(matrix, common=chosen))
        told += said(systems)
        for data, points in grid(matrix, systems).items():
            yield ", ".join(filter(None, (part, data, shown(chosen)))), points


def _matrix(spec: StudySpec, folder: RunOptions, vary: Mapping[str, Sequence[Param]], *, several: bool) -> Matrix:
    """What a part runs; its systems are named after their engines too where there are `several`."""
    systems = varied((SystemEntry(graph=each) if isinstance(each, str) else each for each in spec.systems), vary)
    given = [setting(*each) for each in spec.set.items()]
    settings, samples = with_preset(spec.preset, [Path(each.graph) for each in systems], given, spec.samples)
    return Matrix(
        shared=structs.replace(folder, settings=settings, samples=samples),
        systems=systems,
        baseline=Path(spec.baseline),
        engines=[each if several else structs.replace(each, name="") for each in map(_engines, spec.engines)],
        baseline_engines=[Path(each) for each in spec.baseline_engines],
        data={
            _data_name(each): {"input": (each.data,), "columns": each.columns, "limit": each.limit, "random": each.random}
            for each in (_data(entry, spec) for entry in spec.data)
        },
        batch_sizes=spec.batch_sizes,
        schedules=spec.schedules,
        seeds=spec.seeds,
        repeats=spec.repeats,
    )


def _data(entry: str | DataEntry, spec: StudySpec) -> DataEntry:
    """An entry with the limits of its part, where it has none itself."""
    found = DataEntry(data=entry) if isinstance(entry, str) else entry
    found = found if found.limit or found.random else structs.replace(found, limit=spec.limit, random=spec.random)
    if found.limit and found.random:
        raise UsageError(f"data {found.data}: has both `limit` and `random`; give only one of them")
    return found


def _data_name(data: DataEntry) -> str:
    """What a data set is called in headings and folders."""
    part = [f"limit={data.limit}"] if data.limit else [f"random={data.random}"] if data.random else []
    return " ".join([data.data if data.data in RECIPES else data_name(Path(data.data)), *part])


def _engines(entry: str | EnginesEntry) -> EnginesEntry:
    return EnginesEntry(engines=entry, name=engines_name(Path(entry))) if isinstance(entry, str) else entry


def _check_names(points: Iterable[Point]) -> None:
    """Raise `UsageError` where a point would be called as another run is."""
    known = dict[str, Point]()
    for point in points:
        if point.run != known.setdefault(point.folder, point).run:
            raise UsageError(f"{point.folder} is a run of another part too, with other settings or problems; give both the same")
