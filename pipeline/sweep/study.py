"""From a study file to the points that it runs: parts enter, a `SweepPlan` leaves, whose points are those of sweeps.

Each part is, for each engines file and each value of the params that its baseline has too, one sweep: what `read_systems` refuses there is
refused here. What several points would run alike, whatever they are called, is run once. Nothing is run here but a reward model over
finished runs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from pipeline.analysis.compare import data_name
from pipeline.analysis.studies import Place, Study, StudyTables
from pipeline.analysis.tables import read_query
from pipeline.data.prepare import RECIPES
from pipeline.errors import GraphError, RunError, UsageError, did_you_mean
from pipeline.graph.decode import WrongValue
from pipeline.graph.files import ARITH, setting, shown, written
from pipeline.graph.load import PRESET, GraphNames, load_preset, load_reward_model, outline
from pipeline.graph.spec import Param
from pipeline.rewards import score_run
from pipeline.sweep.plan import PlannedPoint, SweepOptions, SweepPlan, SweepSystem, combinations, planned_points, together
from pipeline.sweep.study_file import DataEntry, EnginesEntry, StudyFile, StudyPart, read_study_file
from pipeline.sweep.systems import read_systems, remarks, unknown_setting

WARM_UP = 8
"""Problems that every system solves on real engines before its first point."""
Tell = Callable[[str], object]


class StudyOptions(Struct, frozen=True, kw_only=True):
    """The options of `pipeline study`."""

    file: Path
    small: bool = False
    output: Path | None = None
    resume: bool = False
    workers: int | None = None


class _Group(Struct, frozen=True):
    """Points that are compared with each other."""

    part: StudyPart
    heading: str
    points: list[PlannedPoint]


def plan_study(options: StudyOptions) -> SweepPlan:
    """What a study runs. Raises `GraphError` for whatever is wrong in its file, and in the files that it names."""
    file = read_study_file(options.file, small=options.small)
    folder: dict[str, Any] = {"output": options.output, "resume": options.resume, "workers": options.workers, "warm_up": WARM_UP}
    shared = SweepOptions(graphs=(), input=Path(), batch_sizes=(), **folder)
    several = len(_engines_names(file)) > 1
    told: dict[str, None] = {}
    groups = [group for part in file.parts for group in _groups(file, part, told, several=several)]
    run_of = _merged(file, groups)
    tables = tuple(_tables(file, groups, run_of))
    points = list({point.name: point for point in run_of.values()}.values())
    real = [point for point in points if not point.system.virtual]
    study = Study(
        name=file.name,
        title=file.spec.title,
        source=file.spec.source,
        small=file.small,
        tables=tables,
        groups={group.heading: _places(group, run_of) for group in groups},
        rewards=_rewards(groups, run_of),
    )
    told |= dict.fromkeys(_same(groups, run_of))
    ordered = [*(point for point in points if point.system.virtual), *together(real)]
    return SweepPlan(name=file.name, options=shared, points=ordered, remarks=tuple(told), study=study)


def _engines_names(file: StudyFile) -> set[str]:
    """What the engines files are called; raises `GraphError` where two are called the same."""
    known: dict[str, EnginesEntry] = {}
    for part in file.parts:
        for place, entry in enumerate(part.engines):
            if entry is not None and known.setdefault(entry.name, entry) != entry:
                raise _flawed(file, part, "engines", f"two engines files are named `{entry.name}`; give one of them another `name`", place)
    return set(known)


def _groups(file: StudyFile, part: StudyPart, told: dict[str, None], *, several: bool) -> Iterator[_Group]:
    """The points of a part, those that are compared with each other together; raises `GraphError`."""
    named = _graphs(file, part)
    _check_params(file, part, named)
    _check_files(file, part)
    own = {name: values for name, values in part.params.items() if name not in named[part.baseline].params}
    others = [name for name in part.params if name not in own]
    for values in product(*(part.params[name] for name in others)):
        common = dict(zip(others, values, strict=True))
        systems = [pair for engines in part.engines for pair in _systems(file, part, engines, common, own, told, several=several)]
        for data in part.data:
            points = [point for system, options in systems for point in _points(part, data, system, options)]
            heading = ", ".join(filter(None, (part.name, _label(data), *(shown({name: value}) for name, value in common.items()))))
            yield _Group(part, heading, points)


def _graphs(file: StudyFile, part: StudyPart) -> dict[str, GraphNames]:
    """The names in the graphs of a part, its baseline included."""
    found: dict[str, GraphNames] = {}
    for key, graph in [*(("systems", entry.graph) for entry in part.systems), ("baseline", part.baseline)]:
        try:
            found[graph] = outline(Path(graph))
        except UsageError as error:
            raise _flawed(file, part, key, error) from error
    return found


def _check_params(file: StudyFile, part: StudyPart, named: Mapping[str, GraphNames]) -> None:
    """Raise `GraphError` where the file names a param that its graph, or any of them, does not have."""
    for place, entry in enumerate(part.systems):
        params = named[entry.graph].params
        if entry.set and entry.graph == part.baseline:
            raise _flawed(file, part, "systems", "is the graph of the baseline, with other values; name them under `params`", place)
        if unknown := next((name for name in entry.set if name not in params), None):
            raise _flawed(file, part, "systems", f"`{unknown}` is no param of {entry.graph}; {did_you_mean(unknown, params)}", place)
    known = frozenset[str]().union(*(names.params for names in named.values()))
    if unknown := next((name for name in part.params if name not in known), None):
        raise _flawed(file, part, "params", f"none of the graphs has a param `{unknown}`; {did_you_mean(unknown, known)}", unknown)


def _check_files(file: StudyFile, part: StudyPart) -> None:
    """Raise `GraphError` where the preset or the reward model of a part cannot be read."""
    loads: tuple[tuple[str, str | None, Callable[[Path], object]], ...] = (
        ("preset", part.preset, load_preset),
        ("prm", part.prm, load_reward_model),
    )
    for key, name, load in loads:
        try:
            if name is not None:
                load(Path(name))
        except UsageError as error:
            raise _flawed(file, part, key, error) from error


def _systems(
    file: StudyFile,
    part: StudyPart,
    engines: EnginesEntry | None,
    common: Mapping[str, Param],
    own: Mapping[str, Sequence[Param]],
    told: dict[str, None],
    *,
    several: bool,
) -> list[tuple[SweepSystem, SweepOptions]]:
    """The systems of a part on one engines file, with the options that they share; raises `GraphError`."""
    options = _options(part, engines, common, own)
    try:
        systems = read_systems(options)
    except UsageError as error:
        raise _flawed(file, part, "", error) from error
    if (unknown := unknown_setting(systems, options)) is not None:
        name = unknown.partition("=")[0]
        raise _flawed(file, part, "set" if name in part.set else "engines", f"none of the graphs and engines has `{name}`")
    told |= dict.fromkeys(remarks(systems, options))
    return [(_named(system, common, engines.name if several and engines is not None else ""), options) for system in systems]


def _options(
    part: StudyPart, engines: EnginesEntry | None, common: Mapping[str, Param], own: Mapping[str, Sequence[Param]]
) -> SweepOptions:
    """Those of the sweep that a part is on one engines file, but for the problems and the seed."""
    vary = {name: tuple(map(written, values)) for name, values in own.items()}
    choices: dict[Path, tuple[dict[str, str], ...]] = {}
    for entry in part.systems:
        fixed = {name: written(value) for name, value in entry.set.items()}
        free = {name: values for name, values in vary.items() if name not in fixed}
        found = tuple({**fixed, **choice} for choice in combinations(free, dict.fromkeys(outline(Path(entry.graph)).params)))
        choices[Path(entry.graph)] = (*choices.get(Path(entry.graph), ()), *found)
    given = [setting(name, value) for values in (part.set, common, engines.set if engines else {}) for name, value in values.items()]
    preset = [] if part.preset is None else [f"{PRESET}{part.preset}"]
    samples = part.samples or (load_preset(part.preset).samples if part.preset is not None else None) or 1
    return SweepOptions(
        graphs=tuple(choices),
        input=Path(),
        batch_sizes=part.batch_sizes,
        schedules=part.schedules,
        choices=choices,
        repeats=part.repeats,
        baseline=Path(part.baseline),
        engines=() if engines is None else (Path(engines.engines),),
        baseline_engines=tuple(map(Path, part.baseline_engines)),
        settings=(*preset, *given),
        samples=samples,
    )


def _named(system: SweepSystem, common: Mapping[str, Param], engines: str) -> SweepSystem:
    """`system` with what tells it from those of other parts: values of params that the baseline has as well, and the engines file."""
    varied = {name: system.plan.params[name] for name in common if name in system.plan.params}
    return structs.replace(system, varied={**varied, **system.varied}, placement=system.placement or engines)


def _points(part: StudyPart, data: DataEntry, system: SweepSystem, options: SweepOptions) -> Iterator[PlannedPoint]:
    """The points of a system over one data set, with every seed."""
    rows = {"input": file_of(data.data), "columns": data.columns, "limit": data.limit, "random": data.random}
    for seed in part.seeds:
        given = structs.replace(options, **rows, seed=seed)
        for point in planned_points([system], given, 1 if system.virtual else part.repeats):
            told = {"data": _label(data), "seed": seed if len(part.seeds) > 1 else None}
            yield structs.replace(point, coordinates=structs.replace(point.coordinates, **told))


def file_of(data: str) -> Path:
    """The file of a data set: of a recipe the bundled one, or else where `pipeline prepare` writes it; or the path that it is."""
    if data not in RECIPES:
        return Path(data)
    return ARITH / "test.parquet" if data == "arith" else Path("data") / f"{data}.parquet"


def missing_data(plan: SweepPlan) -> str:
    """A sentence on the files of problems that are not there, with what makes them; empty where all are."""
    missing = sorted({point.sweep.input for point in plan.points if not point.sweep.input.exists()})
    recipes = [path.stem for path in missing if path == file_of(path.stem)]
    others = [str(path) for path in missing if path.stem not in recipes]
    said = [f"{', '.join(others)}: no such file"] if others else []
    if recipes:
        commands = "; ".join(f"pipeline prepare {name} --from {'hub' if RECIPES[name].hub else 'FILE'}" for name in recipes)
        said.append(f"{', '.join(recipes)}: the problems are not in `data/`; prepare them first: {commands}")
    return "; ".join(said)


def _label(data: DataEntry) -> str:
    """What a data set is called in headings and folders."""
    name = data.data if data.data in RECIPES else data_name(Path(data.data))
    part = [f"limit={data.limit}"] if data.limit else [f"random={data.random}"] if data.random else []
    return " ".join([name, *part])


def _merged(file: StudyFile, groups: Sequence[_Group]) -> dict[str, PlannedPoint]:
    """By the name of every point the one that is run for it, the first that runs the same; raises `GraphError` where two parts call
    different systems or problems by one name."""
    points: dict[str, PlannedPoint] = {}
    systems: dict[str, SweepSystem] = {}
    runs: dict[str, PlannedPoint] = {}
    for group in groups:
        for point in group.points:
            system = systems.setdefault(point.system.label, point.system)
            other = points.setdefault(point.name, point)
            if system.plan != point.system.plan:
                unlike = sorted({*system.settings} ^ {*point.system.settings}) or ["other engines"]
                what = f"{system.label} is a system of another part too, with other settings: {', '.join(unlike)}"
                raise _flawed(file, group.part, "", f"{what}; give both the same, or name them under `params`")
            if (other.sweep.rows, other.sweep.samples) != (point.sweep.rows, point.sweep.samples):
                what = f"{point.name} is a run of another part too, with other problems or samples; give both the same"
                raise _flawed(file, group.part, "", what)
    return {name: runs.setdefault(_content(point), point) for name, point in points.items()}


def _content(point: PlannedPoint) -> str:
    """What is run at a point, whatever it is called."""
    plan, sweep, at = point.system.plan, point.sweep, point.coordinates
    return repr((plan.digest, plan.engines, sweep.rows, sweep.samples, sweep.seed, at.schedule, at.batch_size, at.repeat))


def _same(groups: Sequence[_Group], run_of: Mapping[str, PlannedPoint]) -> Iterator[str]:
    """A notice for each system whose runs are those of another one."""
    for point in (point for group in groups for point in group.points):
        if (first := run_of[point.name].system.label) != point.system.label:
            yield f"{point.system.label} is the same as {first}: run once"


def _tables(file: StudyFile, groups: Sequence[_Group], run_of: Mapping[str, PlannedPoint]) -> Iterator[StudyTables]:
    """The tables over all runs and those of each part; raises `GraphError` for one that is unknown."""
    asked: list[tuple[StudyPart | None, tuple[str, ...]]] = [(None, file.tables), *((part, part.tables) for part in file.parts)]
    for part, names in asked:
        points = dict.fromkeys(point.name for group in groups if part is None or group.part is part for point in group.points)
        for place, name in enumerate(names):
            try:
                read_query(name)
            except UsageError as error:
                raise _flawed(file, part, "tables", error, place) from error
        if names:
            yield StudyTables(names=names, runs=tuple(dict.fromkeys(run_of[name].name for name in points if name in run_of)))


def _places(group: _Group, run_of: Mapping[str, PlannedPoint]) -> dict[str, Place]:
    """What the runs of a group are among those that they are compared with."""
    found: dict[str, Place] = {}
    for point in group.points:
        at = point.coordinates
        place = Place(system=at.system, params=at.params, engines=at.engines, baseline=at.baseline, unlike=at.unlike)
        found.setdefault(run_of[point.name].name, place)
    return found


def _rewards(groups: Sequence[_Group], run_of: Mapping[str, PlannedPoint]) -> dict[str, tuple[str, ...]]:
    """By reward model the runs that it scores: those of systems that draft."""
    found: dict[str, dict[str, None]] = {}
    for group in groups:
        drafting = [run_of[point.name].name for point in group.points if point.system.plan.drafters]
        if group.part.prm is not None:
            found.setdefault(group.part.prm, {}).update(dict.fromkeys(drafting))
    return {prm: tuple(runs) for prm, runs in found.items()}


def _flawed(file: StudyFile, part: StudyPart | None, key: str, what: UsageError | str, *below: str | int) -> GraphError:
    """The error of a key of a part, or of all of it."""
    place = ("tables",) if part is None else part.where.get(key, ("parts", part.name) if part.name else ())
    return WrongValue((*place, *below), str(what)).placed(file.values)


def score_steps(folder: Path, study: Study, tell: Tell) -> list[str]:
    """Let the reward models of a study score the runs that they have not scored; a sentence for each that could not be scored."""
    failures: list[str] = []
    for prm, name in ((prm, name) for prm, runs in study.rewards.items() for name in runs):
        run = folder / "runs" / name
        if any((run / "rewards").glob("*.parquet")):
            continue
        tell(f"scoring the steps of {name} with {prm}")
        try:
            score_run(run, Path(prm))
        except (RunError, UsageError) as error:
            failures.append(f"{name} has no rewards: {error}")
    return failures
