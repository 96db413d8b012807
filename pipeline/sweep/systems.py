"""Which systems a sweep compares, and on which engines: options enter, systems leave. Only graphs and engines files are read.

The baseline of all others is the target alone on the same hardware: where the others' engines take memory of its devices it gets that
memory for its own cache. On each engines file of `--baseline-engines`, such as one with token-level speculation, it is a further baseline.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import structs

from pipeline.analysis.points import TARGET, THE_TARGET
from pipeline.analysis.rules import differences, rules_of
from pipeline.engines.registry import by_backend
from pipeline.engines.sim.replay import bindings
from pipeline.errors import GraphError, UsageError
from pipeline.graph.files import REPLAY, find_file, setting
from pipeline.graph.load import load_engines, outline
from pipeline.graph.plan import Plan
from pipeline.graph.spec import EngineSpec
from pipeline.run.prepare import load_plan
from pipeline.sweep.plan import SweepOptions, SweepPlan, SweepSystem, check_varied, combinations, planned_points, together


def plan_sweep(options: SweepOptions) -> SweepPlan:
    """What a sweep from the command line runs; raises as `read_systems`, and `UsageError` for a setting that none of its systems has."""
    systems = read_systems(options)
    virtual = all_virtual(systems)
    check_settings(systems, options)
    points = planned_points(systems, options, 1) if virtual else together(planned_points(systems, options, options.repeats))
    return SweepPlan(name=systems[-1].plan.name, options=options, points=points, remarks=remarks(systems, options))


def remarks(systems: Sequence[SweepSystem], options: SweepOptions) -> tuple[str, ...]:
    """What a user should know of the baselines, and of what is unlike."""
    return (*baselines(systems), *unequal_rules(systems))


def check_settings(systems: Sequence[SweepSystem], options: SweepOptions) -> None:
    """Raise `UsageError` for one of the user's settings that is of none of the `systems`."""
    if (unknown := unknown_setting(systems, options)) is not None:
        raise UsageError(f"--set {unknown}: none of the graphs has such a param")


def unknown_setting(systems: Sequence[SweepSystem], options: SweepOptions) -> str | None:
    """The first of the user's settings that is of none of the `systems`; None where there is none."""
    return next((each for each in options.settings if not any(each in system.settings for system in systems)), None)


def read_systems(options: SweepOptions) -> list[SweepSystem]:
    """All systems of a sweep: for each engines file the target alone, then each graph with each choice of the params that vary; last the
    target alone on each of `baseline_engines`.

    Raises `GraphError` for a faulty graph or engines file, and `UsageError` for a param that no graph has or systems with equal labels.
    """
    files = options.engines or (None,)
    names = _names(files)
    found = [system for file in files for system in _on(file, names[file], options)]
    found += [_baseline_on(file, options) for file in options.baseline_engines if file not in files]
    labels = [system.label for system in found]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise UsageError(f"two of the graphs are named {twice!r}; give each graph its own name")
    return [system if system.baseline else _beside(system, _alone(system, found)) for system in found]


def baselines(systems: Sequence[SweepSystem]) -> list[str]:
    """A notice for each target alone that got memory of other engines, with the options that reproduce it in a run."""
    return [
        f"{system.label} has the memory of the engines that it does not use: {' '.join(f'--set {each}' for each in system.widened)}"
        for system in systems
        if system.widened
    ]


def unequal_rules(systems: Sequence[SweepSystem]) -> list[str]:
    """A warning for each system that differs from the target alone in more than its graph."""
    return [f"warning: {each.label} against {_named(_alone(each, systems))}: {'; '.join(each.unlike)}" for each in systems if each.unlike]


def _named(alone: SweepSystem) -> str:
    return alone.label if alone.plan.name != TARGET else THE_TARGET


def _alone(system: SweepSystem, systems: Sequence[SweepSystem]) -> SweepSystem:
    """The target alone on the engines file of a system."""
    return next(each for each in systems if each.baseline and each.engines_file == system.engines_file)


def _beside(system: SweepSystem, alone: SweepSystem) -> SweepSystem:
    """`system` with its differences from the target `alone`."""
    return structs.replace(system, unlike=tuple(differences(rules_of(system.plan), rules_of(alone.plan)).values()))


def all_virtual(systems: Sequence[SweepSystem]) -> bool:
    """True if all systems compute on a simulated clock; raises `UsageError` if some do and others do not."""
    found = {system.label: system.virtual for system in systems}
    if len(set(found.values())) > 1:
        simulated = ", ".join(label for label, virtual in found.items() if virtual)
        raise UsageError(f"--engines: {simulated} would run on simulated time, the other systems would not; simulate all of them or none")
    return all(found.values())


def _on(file: Path | None, name: str, options: SweepOptions) -> list[SweepSystem]:
    """The systems on one engines file, whose `name` is empty where there is no other."""
    plain = [(graph, _plan(graph, file, options, ())) for graph in options.graphs]
    check_varied(options.vary, {plan.name: plan.params for _, plan in plain})
    alone = _system(_baseline(options), file, name, options, baseline=True)
    others = [
        _system(graph, file, name, options, choice)
        for graph, plan in plain
        if plan.digest != alone.plan.digest
        for choice in options.choices.get(graph) or combinations(options.vary, plan.params)
    ]
    engines = _shared([alone, *others])
    alone = _with_memory(alone, engines, options)
    if all(engines.get(role) == spec for role, spec in alone.plan.engines.items()):
        alone = structs.replace(alone, engines=engines)  # nothing has to be restarted for it
    return [alone, *(structs.replace(system, engines=engines) for system in others)]


def _baseline_on(file: Path, options: SweepOptions) -> SweepSystem:
    """The target alone on its own engines `file`, with the memory of the other engines in it."""
    alone = _system(_baseline(options), file, _name(file), options, baseline=True)
    if str(file).startswith(REPLAY):
        return alone
    return _with_memory(alone, load_engines(file, _of_engines(file, options)), options)


def _baseline(options: SweepOptions) -> Path:
    """The graph of the target alone."""
    beside = find_file(options.graphs[0], "graph").with_name("target.yaml")
    return options.baseline or (beside if beside.is_file() else Path("target"))


def _with_memory(alone: SweepSystem, others: Mapping[str, EngineSpec], options: SweepOptions) -> SweepSystem:
    """The target `alone`, with the memory that engines of `others` which it does not use would take of its devices."""
    own = alone.plan.engines
    fields = {
        role: changed
        for backend, group in by_backend({**others, **own})
        if backend.widened is not None
        for role, changed in backend.widened(group, [role for role in group if role in own]).items()
    }
    widened = tuple(setting(f"engines.{role}.{name}", value) for role, changed in fields.items() for name, value in changed.items())
    settings = alone.settings + widened
    plan = load_plan(alone.graph, options.bound(alone.engines_file), settings)
    return structs.replace(alone, settings=settings, widened=widened, plan=plan, engines=plan.engines)


def _system(
    graph: Path, file: Path | None, name: str, options: SweepOptions, choice: Mapping[str, str] | None = None, *, baseline: bool = False
) -> SweepSystem:
    choice = choice or {}
    settings = tuple(f"{param}={value}" for param, value in choice.items())
    plan = _plan(graph, file, options, settings)
    return SweepSystem(
        graph=graph,
        engines_file=file,
        placement=name,
        settings=_settings(plan, graph, file, options) + settings,
        plan=plan,
        varied={param: plan.params[param] for param in choice},
        baseline=baseline,
        engines=plan.engines,
    )


def _plan(graph: Path, file: Path | None, options: SweepOptions, choice: tuple[str, ...]) -> Plan:
    """The plan of a graph, with those of the user's settings that are params of it: graphs of a sweep may have different params."""
    bound = options.bound(file)
    bare = load_plan(graph, bound, tuple(each for each in _of_engines(file, options)))
    return load_plan(graph, bound, _settings(bare, graph, file, options) + choice)


def _settings(plan: Plan, graph: Path, file: Path | None, options: SweepOptions) -> tuple[str, ...]:
    known, stages = {"preset", *plan.params}, outline(graph).stages
    names = ((each.partition("=")[0], each) for each in options.settings)
    own = (each for name, each in names if name in known or (name.startswith("stages.") and name.split(".")[1] in stages))
    return (*own, *_of_engines(file, options))


def _of_engines(file: Path | None, options: SweepOptions) -> tuple[str, ...]:
    """Those of the user's settings of engines whose role there is in `file`; all of them where the graphs name their engines."""
    given = [each for each in options.settings if each.startswith("engines.")]
    if file is None and not options.planned_engines:
        return tuple(given)
    bound = bindings(options.bound(file))
    roles = {"*", *(load_engines(bound) if isinstance(bound, Path) else bound or ())}
    return tuple(each for each in given if each.split(".")[1] in roles)


def _shared(systems: Sequence[SweepSystem]) -> dict[str, EngineSpec]:
    """The engines of all `systems` by role; raises `GraphError` where one role has different engines."""
    specs: dict[str, EngineSpec] = {}
    for system in systems:
        for role, spec in system.plan.engines.items():
            if specs.setdefault(role, spec) != spec:
                raise GraphError(str(system.graph), f"engine {role!r} differs from earlier graphs; give one for all with --engines")
    return specs


def _names(files: Sequence[Path | None]) -> dict[Path | None, str]:
    """What each engines file is called in labels: nothing where there is one alone, else its name; raises `UsageError` for doubles."""
    if len(files) == 1:
        return {files[0]: ""}
    names: dict[Path | None, str] = {file: _name(file) for file in files if file is not None}
    if len(set(names.values())) < len(files):
        twice = next(name for name in names.values() if sum(_name(file) == name for file in files if file is not None) > 1)
        raise UsageError(f"--engines {twice}: two engines files have this name; give each file its own name")
    return names


def _name(file: Path) -> str:
    """`sim-2xh100` for a file of that name, with or without folder and suffix; the folder's name for `replay:RUN`."""
    text = str(file)
    return Path(text.removeprefix(REPLAY)).name if text.startswith(REPLAY) else file.name.removesuffix(".yaml").removesuffix(".yml")
