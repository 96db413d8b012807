"""From a graph file and an engines file to a plan: what belongs to the graph is put into one mapping, decoded, checked, compiled.

The first flaw is raised with the file, the line, the path and the remedy.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, structs

from pipeline.errors import GraphError, UsageError, did_you_mean
from pipeline.graph.compiler import compile_graph
from pipeline.graph.decode import (
    Backends,
    Keys,
    WrongValue,
    check_name,
    decode,
    decode_engines,
    decode_file,
    decode_graph,
    located,
    mapping,
)
from pipeline.graph.files import OPTION, FileKind, FileMapping, copied, model_name, parse, read_file, read_setting, written
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import engine_specs, stage_specs
from pipeline.graph.rewards import RewardFile, RewardSpec
from pipeline.graph.rules import check_needs, flaws_in
from pipeline.graph.spec import Count, EngineSpec, FunctionJudgeSpec, GraphSpec, OpenSpec, Param

Graph = Path | Mapping[str, Any]
"""The path of a graph file, or the mapping that such a file would hold."""
Engines = Path | Mapping[str, Any] | None
"""The path of an engines file, or the mapping that such a file would hold; None: the file that the graph names."""

PRESET = "preset="
"""How a setting begins that applies a preset."""
PARAMS = "params"
"""The key of an engines file that is no role: values for the params of graphs that run on it, by the name of the graph."""
PARTS = ("engines", "prompts", "sampling", "stages")
"""The keys of a graph in whose values params are filled in."""
ROLE = "engines.ROLE.NAME"
"""The form of a setting of an engine."""
PARAM_PATTERN = r"\$[A-Za-z][A-Za-z0-9_-]*"
"""A value that names a param; other texts may begin with a dollar sign too."""
OPEN: Backends = {"open": OpenSpec}
"""The backend that values from Python may name, and no file."""


class Preset(Struct, frozen=True, forbid_unknown_fields=True):
    """The values of a paper, for any graph: each of them counts where the graph has such a param or stage."""

    set: dict[str, Param]
    """Values by what `--set` calls them: names of params, and `stages.STAGE.NAME`."""
    samples: Count | None = None
    """Attempts at every problem; null: the paper does not state it."""


class Setting(NamedTuple):
    """A value of `--set` or of a preset."""

    name: str
    value: Any
    place: str


def load_graph(graph: Graph, engines: Engines = None, settings: Sequence[str] = ()) -> Plan:
    """The plan of `graph` on its `engines`, with `settings` (`NAME=VALUE`, or `preset=FILE`) applied and every `$param` filled in.

    A path may also be the name of a file that comes with this package. Raises `GraphError`.
    """
    values = _read_graph(graph)
    with located(values):
        given = list(_read(settings, _names(values)))
        _bind_engines(values, engines)
        _set_params(values, given)
        used = set[str]().union(*(_fill(values, values, part, (part,)) for part in PARTS if part in values))
        if unused := [name for name in values[PARAMS] if name not in used]:
            raise WrongValue((PARAMS, unused[0]), f"this param is unused; write `${unused[0]}` where it belongs, or drop it")
        _set(given, "stages.STAGE.NAME", {str(keys[-1]): stage for keys, stage in _stages(values)})
        _fill_files(values)
        _set(given, ROLE, _mappings(values["engines"]))
        found = decode_graph(values, stage_specs(), engine_specs() | (OPEN if isinstance(engines, Mapping) else {}))
        for keys, what in flaws_in(found.stages, found.engines):
            raise WrongValue(("stages", *keys), what)
    plan = compile_graph(found)
    check_needs(plan, {role: spec.cannot for role, spec in plan.engines.items()})
    return plan


def source_of(plan: Plan) -> str:
    """The graph of `plan` on its engines as YAML, which unlike JSON has numbers without bounds."""
    graph = structs.replace(plan.graph, engines=plan.graph.engines | plan.engines)
    return written(msgspec.to_builtins(graph), default_flow_style=False, allow_unicode=True, width=100)


@lru_cache(64)
def plan_of(source: str) -> Plan:
    """The plan of a text that `source_of` made, for which no other file is read. Raises `GraphError` where it is none, or needs a package
    that is not installed; a judge that is a function need not be known here."""
    values = _read_graph(parse(source, "source"))
    judges = {str(stage.get("kind")) for _, stage in _stages(values) if stage.keys() <= {*FunctionJudgeSpec.__struct_fields__}}
    with located(values):
        return compile_graph(decode_graph(values, {**dict.fromkeys(judges, FunctionJudgeSpec), **stage_specs()}, engine_specs() | OPEN))


def _read_graph(graph: Graph) -> FileMapping:
    """The values of a graph, of which it may leave out params, prompts and sampling; raises `GraphError` where its keys or its name are
    wrong."""
    values: FileMapping = read_file(graph, "graph") if isinstance(graph, Path) else copied(graph, "graph")
    for key in (PARAMS, "prompts", "sampling"):
        if values.get(key) is None:
            values[key] = FileMapping(values.place)
    with located(values):
        spec = decode({**values, **{part: {} for part in PARTS}}, GraphSpec)
        check_name(spec.name, "a graph", ("name",))
    return values


def _bind_engines(values: FileMapping, engines: Engines) -> None:
    """Write the `engines`, or those of the file that the graph names, into it, and the values that they have for its params."""
    named = values.get("engines")
    if not isinstance(named, str) and (engines is None or named is not None):
        raise WrongValue(("engines",), "expected the name of an engines file; without one here, give it with --engines")
    if engines is not None:
        values.put(("engines",), engines, "--engines")
    if not isinstance(values["engines"], FileMapping):
        file = _named(values, "engines", "engines file", ())
        values.put(("engines",), file, file.place)
    known, keys = values[PARAMS], ("engines", PARAMS)
    graphs = values["engines"].get(PARAMS)
    for of, params in ({} if graphs is None else mapping(graphs, keys)).items():
        for name, value in mapping(params, (*keys, of)).items():
            if of != values["name"]:
                continue
            if name not in known:
                raise WrongValue((*keys, of, name), f"the graph has no such param; {did_you_mean(name, known)}")
            known.put((name,), value, params.places.get(name, params.place))
    values["engines"].pop(PARAMS, None)


def _named(inside: FileMapping, key: str, kind: FileKind, keys: Keys) -> FileMapping:
    """The file of this `kind` that the value of `key` names in the mapping at `keys`, next to where the name is written."""
    place = inside.places.get(key, inside.place)
    file = "" if place.startswith(OPTION) else place.rpartition(", line ")[0]
    try:
        return read_file(str(inside[key]), kind, Path(file).parent)
    except GraphError:
        raise
    except UsageError as error:
        raise WrongValue((*keys, key), str(error)) from error


def _read(settings: Iterable[str], known: "GraphNames | None" = None) -> Iterator[Setting]:
    """The values of `settings`, and of their presets where the graph has the name (`known`)."""
    for text in settings:
        if known is None or not text.startswith(PRESET):
            yield Setting(*read_setting(text))
            continue
        preset = read_file(text.removeprefix(PRESET), "preset")
        for name, value in decode_file(preset, Preset).set.items():
            if known.has(name):
                yield Setting(name, value, preset["set"].places[name])


def _set_params(values: FileMapping, settings: Iterable[Setting]) -> None:
    """Write the values of params; raises `GraphError` for one that the graph does not have."""
    params = values[PARAMS]
    for each in settings:
        if each.name in params:
            params.put((each.name,), each.value, each.place)
        elif not each.name.startswith(("stages.", "engines.")):
            raise GraphError(each.place, f"{values['name']} has no param `{each.name}`; {did_you_mean(each.name, params)}")


def _set(settings: Iterable[Setting], form: str, known: Mapping[str, FileMapping]) -> None:
    """Write the values of settings of this `form`, PART.WHAT.NAME, into the mapping that is `known` by what, or into all for `*`."""
    for each in settings:
        part, named, key = [*each.name.split(".", 2), "", ""][:3]
        if part != form.partition(".")[0]:
            continue
        if not key or not known.keys() >= {named} - {"*"}:
            raise GraphError(each.place, f"expected {form}=VALUE; {did_you_mean(named, known)}")
        for inside in known.values() if named == "*" else [known[named]]:
            inside.put((*key.split("."),), each.value, each.place)


def _stages(values: FileMapping, keys: Keys = ("stages",)) -> Iterator[tuple[Keys, FileMapping]]:
    """Every stage that is a mapping, with its path, also in loops."""
    for name, stage in _mappings(values.get("stages")).items():
        yield (*keys, name), stage
        yield from _stages(stage, (*keys, name, "stages"))


def _mappings(values: Any) -> dict[str, FileMapping]:
    """The mappings in a mapping, by key."""
    return {key: each for key, each in values.items() if isinstance(each, FileMapping)} if isinstance(values, FileMapping) else {}


def _fill(values: FileMapping, inside: Any, key: Any, keys: Keys) -> set[str]:
    """Put the value of each param at `key` of the mapping or list `inside`, or within what is there, whose path is `keys`; their names."""
    value, params = inside[key], values[PARAMS]
    if isinstance(value, dict | list):
        below = [*value] if isinstance(value, dict) else range(len(value))
        return set[str]().union(*(_fill(values, value, each, (*keys, each)) for each in below))
    if not (isinstance(value, str) and re.fullmatch(PARAM_PATTERN, value)):
        return set()
    if (name := value[1:]) not in params:
        raise WrongValue(keys, f"no param `{value}`; {did_you_mean(name, params)}")
    found = inside[key] = params[name]
    if isinstance(found, dict | list) or (isinstance(found, float) and not math.isfinite(found)):
        raise WrongValue((PARAMS, name), f"expected a text, a finite number, a boolean or null, got {found}")
    if isinstance(inside, FileMapping):
        inside.places[key] = params.places.get(name, params.place)
    return {name}


def _fill_files(values: FileMapping) -> None:
    """Replace the name of a prompts file by what is in it, and write into each stage what the file of its reward model says."""
    if isinstance(values["prompts"], str):
        file = _named(values, "prompts", "prompts file", ())
        values.put(("prompts",), file, values.places.get("prompts", values.place))
    for keys, stage in _stages(values):
        if isinstance(stage.get("prm"), str):
            _fill_reward(values, stage, keys)


def _fill_reward(values: FileMapping, stage: FileMapping, keys: Keys) -> None:
    """Write into the `stage` at `keys` how its reward model is asked and, where the graph's engines have no such role, what serves it."""
    file, role, engines = _named(stage, "prm", "reward model", keys), str(stage.get("engine")), values["engines"]
    decode_file(file, RewardFile)
    if stage.get("prompt") is None:
        stage.put(("prompt",), file["prompt"], file.places["prompt"])
    if engines.get(role) is None:
        engines.put((role,), file["reward"], file.places["reward"])
    served, own = (model_name(str(of.get("model") or "")) for of in (mapping(engines[role], ("engines", role)), file["reward"]))
    if served and own and served != own:
        what = f"serves `{served}`, not the reward model `{own}` of `prm: {stage['prm']}`"
        raise WrongValue(("engines", role), f"{what}; leave this role out, or set `prm` to the file of its model")


def load_engines(path: Path, settings: Sequence[str] = ()) -> dict[str, EngineSpec]:
    """The specs in an engines file, by role; `path` may be the name of one that comes with this package, `settings` are
    `engines.ROLE.NAME=VALUE`. Raises `GraphError`."""
    values = read_file(path, "engines file")
    values.pop(PARAMS, None)
    _set(_read(settings), ROLE, _mappings(values))
    with located(values):
        return decode_engines(values, engine_specs())


def load_reward_model(path: Path, settings: Sequence[str] = ()) -> RewardSpec:
    """The reward model in a file, which `path` or a bundled name names; `settings` are `engines.reward.NAME=VALUE`. Raises `GraphError`."""
    values = read_file(path, "reward model")
    prompt = decode_file(values, RewardFile).prompt
    _set(_read(settings), ROLE, {"reward": values["reward"]})
    with located(values):
        return RewardSpec(decode_engines({"reward": values["reward"]}, engine_specs())["reward"], prompt)


def load_preset(name: Path | str) -> Preset:
    """A preset, by its path or its name; raises `GraphError` for what is wrong in it."""
    return decode_file(read_file(name, "preset"), Preset)


class GraphNames(Struct, frozen=True):
    """The names in a graph that is not decoded."""

    params: frozenset[str]
    stages: frozenset[str]
    """The names of all stages, loops and the stages in them included."""
    roles: tuple[str, ...]
    """The roles that stages name, in the order of the file."""

    def has(self, setting: str) -> bool:
        """Whether a setting names a param, or a field of a stage as `stages.STAGE.NAME`."""
        part, stage, _ = [*setting.split(".", 2), "", ""][:3]
        return setting in self.params or (part == "stages" and stage in self.stages)


def outline(graph: Graph) -> GraphNames:
    """The names in a graph, which may be the name of a bundled one; raises `GraphError` where it has no mapping of stages."""
    values = _read_graph(graph)
    with located(values):
        mapping(values.get("stages"), ("stages",))
    return _names(values)


def _names(values: FileMapping) -> GraphNames:
    params, stages = values[PARAMS], {str(keys[-1]): stage for keys, stage in _stages(values)}
    roles = [str(stage["engine"]) for stage in stages.values() if "engine" in stage]
    named = dict.fromkeys(str(params.get(name[1:], name)) if name.startswith("$") else name for name in roles)
    return GraphNames(frozenset(params), frozenset(stages), tuple(named))
