"""The systems that a study compares, and on which engines: a `Matrix` enters, systems leave. Only graphs and engines files are read.

The baseline of all others is the target alone on the same hardware: where the others' engines take memory of its devices it gets that
memory for its own cache. On each engines file of `baseline_engines`, such as one with token-level speculation, it is a further baseline.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from pipeline.analysis.headline import baseline_folder
from pipeline.analysis.rules import differences, rules_of
from pipeline.engines.registry import by_backend, notices
from pipeline.engines.sim.replay import bindings
from pipeline.errors import UsageError, did_you_mean
from pipeline.graph.files import REPLAY, find_file, setting, shown
from pipeline.graph.load import PRESET, load_engines, outline
from pipeline.graph.plan import Plan
from pipeline.graph.rules import virtual_time
from pipeline.graph.spec import EngineSpec, Param
from pipeline.options import RunOptions, ScheduleName
from pipeline.run.prepare import load_plan

Text = Annotated[str, Meta(min_length=1)]


class SystemEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A graph with values of some of its params."""

    graph: Text
    """A graph file, or the name of a bundled graph."""
    set: Mapping[str, Param] = {}
    """Values of its params, which tell it from other systems of the same graph."""


class EnginesEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engines file with other values for some of its keys."""

    engines: Text
    """An engines file, or the name of a bundled one."""
    name: Text
    """Its name in tables and folders."""
    set: Mapping[str, Param] = {}
    """Values as of `--set`, such as `engines.draft.model`."""


class Matrix(Struct, frozen=True, kw_only=True):
    """Systems x engines x data x batch sizes x schedules x seeds: the options of runs that are compared with each other."""

    shared: RunOptions
    """What all runs share; its settings are for all graphs and engines that have such names."""
    systems: Sequence[SystemEntry]
    """What is compared with the baseline; `varied` makes systems of the values of params."""
    baseline: Path | None = None
    """The graph of the target alone; by default `target.yaml` next to the first graph, else the bundled one."""
    common: Mapping[str, Param] = {}
    """Values of params of all systems that have them, the baseline included, which are part of their names."""
    engines: Sequence[EnginesEntry] = ()
    """Engines files, each with its own baseline; by default those of `shared`."""
    baseline_engines: Sequence[Path] = ()
    """Engines files on which the target alone runs as well."""
    data: Mapping[str, Mapping[str, Any]] = {}
    """By data set the options that choose its problems; by default as in `shared`."""
    batch_sizes: Sequence[int] = (1, 8, 32)
    schedules: Sequence[ScheduleName] = ("pipelined",)
    seeds: Sequence[int] = (0,)
    repeats: int = 1
    """Runs of every point on real engines; simulated ones would be equal."""


class System(Struct, frozen=True, kw_only=True):
    """A graph on its engines, with values of the params that vary."""

    name: str
    """The graph's name and the params that vary: `speccot candidates=5`."""
    engines: str = ""
    """The name of its engines file where there are several."""
    options: RunOptions
    plan: Plan
    baseline: bool = False
    widened: tuple[str, ...] = ()
    """Settings that give it the memory of engines that it does not use."""

    @property
    def virtual(self) -> bool:
        """Whether its engines compute on a simulated clock."""
        return virtual_time(self.plan.engines, str(self.options.graph))

    @property
    def notices(self) -> tuple[str, ...]:
        """A sentence on the memory of other engines that it was given, where there is any."""
        given, where = " ".join(f"--set {each}" for each in self.widened), f" on {self.engines}" if self.engines else ""
        return (f"{self.name}{where}: given the unused memory of the other engines ({given})",) if given else ()

    def next_to(self, folder: Path) -> RunOptions:
        """The options of its run where that is the baseline of the run in `folder`; what is there of it already is resumed."""
        return structs.replace(self.options, output=baseline_folder(folder), resume=True)


def varied(systems: Iterable[SystemEntry], values: Mapping[str, Sequence[Param]]) -> list[SystemEntry]:
    """Each system with every choice of one of the `values` for each param that its graph has and that it does not set itself.

    Raises `UsageError` for a param that none of the graphs has, and a value that is named twice.
    """
    found, known = list[SystemEntry](), set[str]()
    for system in systems:
        params = outline(Path(system.graph)).params
        own = {name: each for name, each in values.items() if name in params and name not in system.set}
        choices = (dict(zip(own, choice, strict=True)) for choice in product(*own.values()))
        found += (structs.replace(system, set={**system.set, **choice}) for choice in choices)
        known |= params
    for name, each in values.items():
        if name not in known:
            raise UsageError(f"--vary {name}: no graph here has such a param; {did_you_mean(name, sorted(known))}")
        if len(set(each)) < len(each):
            raise UsageError(f"--vary {name}={','.join(map(str, each))}: a value is named twice")
    return found


def read_systems(matrix: Matrix) -> list[System]:
    """All systems: for each engines file the target alone, then the others; last the target alone on each of `baseline_engines`.

    Raises `GraphError` for a faulty graph or engines file, and `UsageError` for a setting that none has and for equal names.
    """
    shared, found, asked = matrix.shared, list[System](), dict[str, None]()
    beside = find_file(Path(matrix.systems[0].graph), "graph").with_name("target.yaml")
    target = SystemEntry(graph=str(matrix.baseline or (beside if beside.is_file() else "target")))
    for entry in matrix.engines or (None,):
        options, name = shared, ""
        if entry is not None:
            own = (setting(*each) for each in entry.set.items())
            options, name = structs.replace(shared, engines=Path(entry.engines), settings=(*shared.settings, *own)), entry.name
        alone = _system(target, matrix, options, name, baseline=True)
        others = [each for each in (_system(each, matrix, options, name) for each in matrix.systems) if each.plan != alone.plan]
        found += [_with_memory(alone, {role: spec for each in others for role, spec in each.plan.engines.items()}), *others]
        asked |= dict.fromkeys(options.settings)
    for file in matrix.baseline_engines:
        if file not in {shared.engines, *(Path(entry.engines) for entry in matrix.engines)}:
            options = structs.replace(shared, engines=file, planned_engines={})
            alone = _system(target, matrix, options, engines_name(file), baseline=True)
            found.append(_with_memory(alone, {} if str(file).startswith(REPLAY) else load_engines(file, _of_engines(options))))
    names = [(system.name, system.engines) for system in found]
    if twice := next((each for each in names if names.count(each) > 1), None):
        raise UsageError(f"two systems are called {' on '.join(filter(None, twice))!r}; give each graph and engines file its own name")
    if unknown := next((each for each in asked if not any(each in system.options.settings for system in found)), None):
        raise UsageError(f"--set {unknown}: no graph or engines file here has `{unknown.partition('=')[0]}`")
    return found


def run_baseline(options: RunOptions) -> System:
    """The target alone on the engines of a run with these options (`run --baseline`); raises `UsageError` where the run itself is one."""
    if options.in_memory:
        raise UsageError("--baseline: graph and engines have to be in files")
    systems = (SystemEntry(graph=str(options.graph)),)
    alone, *others = read_systems(Matrix(shared=structs.replace(options, baseline=False), systems=systems))
    if not others:
        raise UsageError(f"--baseline: {options.graph} is the target alone: there is nothing to compare it with")
    return alone


def said(systems: Sequence[System]) -> Iterator[str]:
    """Notices about systems and their engines, and a warning for each that differs from the target alone there in more than its graph."""
    for system in systems:
        yield from (*notices(system.plan.engines), *system.notices)
    for system in systems:
        alone = next(each for each in systems if each.baseline and each.engines == system.engines)
        if found := differences(rules_of(system.plan), rules_of(alone.plan)):
            yield f"warning: {system.name} against {alone.name}: {'; '.join(found.values())}"


def engines_name(file: Path) -> str:
    """`sim-2xh100` for a file of that name, with or without folder and suffix; the folder's name for `replay:RUN`."""
    return Path(str(file).removeprefix(REPLAY)).name.removesuffix(".yaml").removesuffix(".yml")


def _system(entry: SystemEntry, matrix: Matrix, options: RunOptions, engines: str, *, baseline: bool = False) -> System:
    """The system of a graph with its own values of params and the common ones, and the settings that concern it or its engines."""
    graph = Path(entry.graph)
    names, values = outline(graph), dict(entry.set)
    values |= {name: value for name, value in matrix.common.items() if name in names.params and name not in values}
    given = (each for each in options.settings if each.startswith(PRESET) or names.has(each.partition("=")[0]))
    settings = (*given, *_of_engines(options), *(setting(*each) for each in values.items()))
    plan = load_plan(graph, options.bound_engines, settings)
    return System(
        name=" ".join(filter(None, [plan.name, shown({name: plan.params[name] for name in values})])),
        engines=engines,
        options=structs.replace(options, graph=graph, settings=settings),
        plan=plan,
        baseline=baseline,
    )


def _with_memory(alone: System, others: Mapping[str, EngineSpec]) -> System:
    """The target alone with the memory that those engines of `others` which it does not use would take of its devices."""
    own = alone.plan.engines
    fields = {
        role: changed
        for backend, group in by_backend({**others, **own})
        if backend.widened is not None
        for role, changed in backend.widened(group, [role for role in group if role in own]).items()
    }
    widened = tuple(setting(f"engines.{role}.{name}", value) for role, changed in fields.items() for name, value in changed.items())
    options = structs.replace(alone.options, settings=alone.options.settings + widened)
    plan = load_plan(options.graph, options.bound_engines, options.settings)
    return structs.replace(alone, options=options, widened=widened, plan=plan)


def _of_engines(options: RunOptions) -> tuple[str, ...]:
    """The settings for roles that its engines file has; all of them where the graphs name their engines."""
    named = bindings(options.bound_engines)
    roles = load_engines(named) if isinstance(named, Path) else named
    given = (each for each in options.settings if each.startswith("engines."))
    return tuple(each for each in given if roles is None or each.split(".")[1] in {"*", *roles})
