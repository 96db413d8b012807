"""Runs that differ in one thing alone: the resources they had, their batch size, their schedule, or one param. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from pipeline.analysis.compare.runs import RunTable
from pipeline.analysis.resources import Resources

Setting = Mapping[str, Any]


class Member(Struct, frozen=True):
    """A run, and its value of what a group differs in."""

    run: str
    value: str
    peers: dict[str, str]
    """By graph: the run of another graph that differs from this one in the graph alone, params of its own aside."""


class Group(Struct, frozen=True):
    """Runs of one graph that are alike but for `by`: `resources`, `batch_size`, `schedule`, or `params.NAME`. From less to more."""

    by: str
    graph: str
    simulated: bool
    members: tuple[Member, ...]

    def others(self, run: str, graph: str) -> set[str]:
        """What `run` is to be compared with here: the group's first run, and its peer of `graph`."""
        mine = next((member for member in self.members if member.run == run), None)
        if mine is None:
            return set()
        return ({self.members[0].run} - {run}) | ({mine.peers[graph]} if graph in mine.peers else set())


def grouped(runs: Sequence[RunTable]) -> tuple[Group, ...]:
    """All groups of two values or more."""
    settings = {run.name: setting_of(run) for run in runs}
    names = dict.fromkeys(name for setting in settings.values() for name in setting)
    varied = [name for name in names if name in ("resources", "batch_size", "schedule") or name.startswith("params.")]
    return tuple(group for name in varied for group in _groups_by(name, runs, settings))


def setting_of(run: RunTable) -> dict[str, Any]:
    """What was decided about a run, thing by thing."""
    engines = [
        (role, spec.get("backend"), run.models[role], str(spec.get("speculative_config"))) for role, spec in sorted(run.engines.items())
    ]
    return {
        "graph": run.graph,
        "engines": tuple(engines),
        "resources": run.resources,
        "batch_size": run.batch_size,
        "schedule": run.schedule,
        "samples": run.samples,
        "seed": run.seed,
        "rows": run.input.get("rows"),
        **{f"params.{name}": value for name, value in run.params.items()},
    }


def _groups_by(name: str, runs: Sequence[RunTable], settings: Mapping[str, Setting]) -> list[Group]:
    alike: dict[tuple[Any, ...], list[RunTable]] = {}
    for run in runs:
        setting = settings[run.name]
        if name in setting:
            others = tuple(sorted((key, repr(value)) for key, value in setting.items() if key != name))
            kind = run.resources.kind if name == "resources" else ()
            alike.setdefault((others, kind), []).append(run)
    return [_group(name, members, settings) for members in alike.values() if len({repr(settings[run.name][name]) for run in members}) > 1]


def _group(name: str, runs: Sequence[RunTable], settings: Mapping[str, Setting]) -> Group:
    ordered = sorted(runs, key=lambda run: _order(settings[run.name][name]))
    members = [Member(run.name, _label(settings[run.name][name]), _peers(name, run.name, settings)) for run in ordered]
    return Group(name, runs[0].graph, runs[0].simulated, tuple(members))


def _peers(name: str, run: str, settings: Mapping[str, Setting]) -> dict[str, str]:
    """Of each other graph that says `name` too, the first run that agrees with `run` in all that both say, engines by their role."""
    mine = settings[run]
    found: dict[str, str] = {}
    for other, theirs in settings.items():
        # One engine alone has less than two: resources have to agree only where they are the question.
        shared = (mine.keys() & theirs.keys()) - {"graph", "engines", *(["resources"] if name != "resources" else [])}
        same_engines = set(theirs["engines"]) <= set(mine["engines"]) or set(mine["engines"]) <= set(theirs["engines"])
        if theirs["graph"] != mine["graph"] and name in theirs and same_engines and all(mine[key] == theirs[key] for key in shared):
            found.setdefault(theirs["graph"], other)
    return found


def _order(value: Any) -> tuple[Any, ...]:
    return (isinstance(value, str), value)


def _label(value: Any) -> str:
    return value.label if isinstance(value, Resources) else str(value)
