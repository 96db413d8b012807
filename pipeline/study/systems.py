"""The systems that a study compares, and on which engines: a `Matrix` enters, systems leave. Only graphs and engines files are read.

The baseline of all others is the target alone on the same hardware: where the others' engines take memory of its devices it gets that
memory for its own cache. On each engines file of `baseline_engines`, such as one with token-level speculation, it is a further baseline.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from pipeline.analysis.headline import baseline_folder
from pipeline.analysis.rules import differences, rules_of
from pipeline.engines.registry import by_backend
from pipeline.engines.sim.replay import bindings
from pipeline.errors import UsageError, did_you_mean
from pipeline.graph.files import REPLAY, find_file, setting, shown
from pipeline.graph.load import load_engines, outline
from pipeline.graph.plan import Plan
from pipeline.graph.rules import virtual_time
from pipeline.graph.spec import EngineSpec
from pipeline.options import RunOptions, ScheduleName
from pipeline.run.prepare import load_plan


class Matrix(Struct, frozen=True, kw_only=True):
    """Systems x engines x data x batch sizes x schedules x seeds: the options of runs that are compared with each other."""

    shared: RunOptions
    """What all runs share; its graph is the first of `graphs`, its settings are for all graphs and engines that have such names."""
    graphs: tuple[Path, ...]
    baseline: Path | None = None
    """The graph of the target alone; by default `target.yaml` next to the first graph, else the bundled one."""
    engines: tuple[Path, ...] = ()
    """Engines files, each with its own baseline; by default as in `shared`."""
    baseline_engines: tuple[Path, ...] = ()
    """Engines files on which the target alone runs as well."""
    vary: Mapping[str, tuple[str, ...]] = {}
    """Values of params by name; of every graph each combination of those that it has is a system."""
    choices: Mapping[Path, tuple[Mapping[str, str], ...]] = {}
    """By graph the values of params of its systems; without them those that `vary` gives."""
    data: Mapping[str, Mapping[str, Any]] = {}
    """By data set the options that choose its problems; by default as in `shared`."""
    batch_sizes: tuple[int, ...] = (1, 8, 32)
    schedules: tuple[ScheduleName, ...] = ("pipelined",)
    seeds: tuple[int, ...] = (0,)
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


def read_systems(matrix: Matrix) -> list[System]:
    """All systems: for each engines file the target alone, then each graph with each choice of params; last the target alone on each of
    `baseline_engines`.

    Raises `GraphError` for a faulty graph or engines file, and `UsageError` for a param or setting that none has and for equal names.
    """
    check_varied(matrix)
    files = matrix.engines or (matrix.shared.engines,)
    found = [system for file in files for system in _on(file, matrix, _name(file) if file and len(files) > 1 else "")]
    for file in matrix.baseline_engines:
        if file not in files:
            own = structs.replace(matrix.shared, engines=file, planned_engines={})
            alone = system_of(_baseline(matrix), own, engines=_name(file), baseline=True)
            others = {} if str(file).startswith(REPLAY) else load_engines(file, _of_engines(own))
            found.append(with_memory(alone, others))
    names = [(system.name, system.engines) for system in found]
    if twice := next((each for each in names if names.count(each) > 1), None):
        raise UsageError(f"two systems are called {' on '.join(filter(None, twice))!r}; give each graph and engines file its own name")
    if unknown := next((each for each in matrix.shared.settings if not any(each in system.options.settings for system in found)), None):
        raise UsageError(f"--set {unknown}: no graph or engines file here has `{unknown.partition('=')[0]}`")
    return found


def run_baseline(options: RunOptions) -> System:
    """The target alone on the engines of a run with these options (`run --baseline`); raises `UsageError` where the run itself is one."""
    if options.in_memory:
        raise UsageError("--baseline: graph and engines have to be in files")
    alone, *others = read_systems(Matrix(shared=structs.replace(options, baseline=False), graphs=(options.graph,)))
    if not others:
        raise UsageError(f"--baseline: {options.graph} is the target alone: there is nothing to compare it with")
    return alone


def unlike(systems: Sequence[System]) -> Iterator[str]:
    """A warning for each system that differs from the target alone on its engines in more than its graph."""
    for system in systems:
        alone = next(each for each in systems if each.baseline and each.engines == system.engines)
        if found := differences(rules_of(system.plan), rules_of(alone.plan)):
            yield f"warning: {system.name} against {alone.name}: {'; '.join(found.values())}"


def check_varied(matrix: Matrix) -> None:
    """Raise `UsageError` for a param that none of the graphs has, or a value that is named twice."""
    known = sorted({name for graph in matrix.graphs for name in outline(graph).params})
    for name, values in matrix.vary.items():
        if name not in known:
            raise UsageError(f"--vary {name}: no graph here has such a param; {did_you_mean(name, known)}")
        if len(set(values)) < len(values):
            raise UsageError(f"--vary {name}={','.join(values)}: a value is named twice")


def combinations(vary: Mapping[str, Sequence[str]], graph: Path) -> list[dict[str, str]]:
    """Every choice of a value for each varied param that a graph has; one empty choice where it has none."""
    own = {name: values for name, values in vary.items() if name in outline(graph).params}
    return [dict(zip(own, values, strict=True)) for values in product(*own.values())]


def _on(file: Path | None, matrix: Matrix, name: str) -> list[System]:
    """The systems on one engines file, the target alone first."""
    options = structs.replace(matrix.shared, engines=file)
    alone = system_of(_baseline(matrix), options, engines=name, baseline=True)
    others = [
        system_of(graph, options, choice, engines=name)
        for graph in matrix.graphs
        for choice in matrix.choices.get(graph) or combinations(matrix.vary, graph)
    ]
    others = [each for each in others if each.plan != alone.plan]
    engines = {role: spec for system in others for role, spec in system.plan.engines.items()}
    return [with_memory(alone, engines), *others]


def system_of(
    graph: Path, options: RunOptions, choice: Mapping[str, str] | None = None, *, engines: str = "", baseline: bool = False
) -> System:
    """The system of a graph with this choice of params, and the settings that concern it or its engines."""
    choice, names = choice or {}, outline(graph)
    own = (each for each in options.settings if (name := each.partition("=")[0]) == "preset" or names.has(name))
    settings = (*own, *_of_engines(options), *(f"{param}={value}" for param, value in choice.items()))
    plan = load_plan(graph, options.bound_engines, settings)
    return System(
        name=" ".join(filter(None, [plan.name, shown({param: plan.params[param] for param in choice})])),
        engines=engines,
        options=structs.replace(options, graph=graph, settings=settings),
        plan=plan,
        baseline=baseline,
    )


def with_memory(alone: System, others: Mapping[str, EngineSpec]) -> System:
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


def _baseline(matrix: Matrix) -> Path:
    beside = find_file(matrix.graphs[0], "graph").with_name("target.yaml")
    return matrix.baseline or (beside if beside.is_file() else Path("target"))


def _of_engines(options: RunOptions) -> tuple[str, ...]:
    """The settings for roles that its engines file has; all of them where the graphs name their engines."""
    given, bound = [each for each in options.settings if each.startswith("engines.")], options.bound_engines
    if bound is None:
        return tuple(given)
    named = bindings(bound)
    roles = {"*", *(load_engines(named) if isinstance(named, Path) else named or ())}
    return tuple(each for each in given if each.split(".")[1] in roles)


def _name(file: Path) -> str:
    """`sim-2xh100` for a file of that name, with or without folder and suffix; the folder's name for `replay:RUN`."""
    text = str(file)
    return Path(text.removeprefix(REPLAY)).name if text.startswith(REPLAY) else file.name.removesuffix(".yaml").removesuffix(".yml")
