"""From a graph file and an engines file to a plan: what belongs to the graph is put into one mapping, decoded, checked, compiled.

The first flaw, of these files or of others that are decoded here, is raised with the file, the line, the path and the remedy.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct, structs

from pipeline.errors import GraphError, UsageError, did_you_mean
from pipeline.graph.compiler import compile_graph
from pipeline.graph.files import OPTION, SET, FileKind, FileMapping, copied, model_name, parse, read_file, read_setting, written
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import engine_specs, stage_specs
from pipeline.graph.prompts import Prompts
from pipeline.graph.rewards import ChatPrompt, RewardFile, TextPrompt
from pipeline.graph.rules import check_needs, flaws_in
from pipeline.graph.spec import (
    NAME_PATTERN,
    Count,
    EngineSpec,
    FunctionJudgeSpec,
    GraphSpec,
    OpenSpec,
    Param,
    RepeatSpec,
    Sampling,
    SamplingSpec,
    StageSpec,
)

S = TypeVar("S", bound=Struct)
Keys = tuple[str | int, ...]
"""A path in values: keys of mappings and indexes of lists."""
Kinds = Mapping[str, type[StageSpec]]
Backends = dict[str, type[EngineSpec]]
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
        stages = {str(keys[-1]): stage for keys, stage in _stages(values)}
        _set(given, "stages.STAGE.NAME", stages, _mappings(values).get("sampling"))
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
    """The values of the presets in `settings` where the graph has the name (`known`), and then those of the other settings."""
    for text in sorted(settings, key=lambda each: not each.startswith(PRESET)):
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


def _set(settings: Iterable[Setting], form: str, known: Mapping[str, FileMapping], defaults: FileMapping | None = None) -> None:
    """Write the values of settings of this `form`, PART.WHAT.NAME, into the mapping that is `known` by what, or into all for `*`.

    A preset's value is not written over one of `--set`, which may stand in the `defaults` of all of them."""
    for each in settings:
        part, named, key = [*each.name.split(".", 2), "", ""][:3]
        if part != form.partition(".")[0]:
            continue
        if not key or not known.keys() >= {named} - {"*"}:
            raise GraphError(each.place, f"expected {form}=VALUE; {did_you_mean(named, known)}")
        for inside in known.values() if named == "*" else [known[named]]:
            keys = (*key.split("."),)
            now = place_of(inside if defaults is None or keys[0] in inside else defaults, keys)
            if each.place.startswith(SET) or not now.startswith(SET):
                inside.put(keys, each.value, each.place)


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


def load_reward_model(path: Path, settings: Sequence[str] = ()) -> tuple[EngineSpec, TextPrompt | ChatPrompt]:
    """The engine of the reward model in a file, which `path` or a bundled name names, and how it is asked; `settings` are
    `engines.reward.NAME=VALUE`. Raises `GraphError`."""
    values = read_file(path, "reward model")
    prompt = decode_file(values, RewardFile).prompt
    _set(_read(settings), ROLE, {"reward": values["reward"]})
    with located(values):
        return decode_engines({"reward": values["reward"]}, engine_specs())["reward"], prompt


def load_preset(name: Path | str) -> Preset:
    """A preset, by its path or its name; raises `GraphError` for what is wrong in it."""
    return decode_file(read_file(name, "preset"), Preset)


def with_preset(
    name: Path | str | None, graphs: Iterable[Graph], settings: Iterable[str], samples: int | None
) -> tuple[tuple[str, ...], int]:
    """The settings with the preset of this name, if there is one, and the attempts at every problem: `samples`, or what the preset says.

    Raises `UsageError` where none of the `graphs` has anything that the preset sets.
    """
    if name is None:
        return (*settings,), 1 if samples is None else samples
    preset, graphs = load_preset(name), [*graphs]
    if preset.set and not any(names.has(each) for names in map(outline, graphs) for each in preset.set):
        listed = ", ".join(f"`{each}`" for each in preset.set)
        where = " and ".join(str(each) if isinstance(each, Path) else "the graph" for each in graphs)
        raise UsageError(f"--preset {name}: sets only {listed}, none of which {where} has")
    return (f"{PRESET}{name}", *settings), samples if samples is not None else preset.samples or 1


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


class WrongValue(Exception):
    """What is wrong at `keys` of values, or with the `key` of the mapping there."""

    def __init__(self, keys: Keys, what: str, key: str | None = None) -> None:
        super().__init__(what)
        self.keys, self.key = keys, key


@contextmanager
def located(values: FileMapping) -> Iterator[None]:
    """Raise a `WrongValue` of `values` as a `GraphError` with the place where it was written."""
    try:
        yield
    except WrongValue as flaw:
        place = place_of(values, flaw.keys if flaw.key is None else (*flaw.keys, flaw.key))
        raise GraphError(place if place.startswith(OPTION) else f"{place}: {_shown(flaw.keys)}", str(flaw)) from flaw


def place_of(values: FileMapping, keys: Keys) -> str:
    """Where the value at `keys` was written: a file with the line, or a setting."""
    place, value = values.place, values
    with suppress(KeyError, IndexError, TypeError):
        for key in keys:
            place = getattr(value, "places", {}).get(key, place)
            value = value[key]  # type: ignore[index]
    return place


def mapping(value: Any, keys: Keys) -> dict[str, Any]:
    """`value`, which is at `keys`; raises `WrongValue` where it is no mapping."""
    if not isinstance(value, dict):
        raise WrongValue(keys, f"expected a mapping, got {'nothing' if value is None else f'`{type(value).__name__}`'}")
    return value


def decode(value: Any, to: type[S], keys: Keys = ()) -> S:
    """Decode the mapping at `keys`; raises `WrongValue`."""
    raw = mapping(value, keys)
    try:
        return msgspec.convert(raw, to)
    except msgspec.ValidationError as error:
        at, key, what = _explained(str(error), raw, to)
        raise WrongValue((*keys, *at), what, key) from error


def decode_file(values: FileMapping, to: type[S]) -> S:
    """Decode the whole of a file; raises `GraphError`."""
    with located(values):
        return decode(values, to)


def tagged(value: Any, tag: str, known: Mapping[str, type[S]], keys: Keys) -> type[S]:
    """The one of the `known` Structs that the key `tag` of the mapping at `keys` names; raises `WrongValue`."""
    name = mapping(value, keys).get(tag)
    if isinstance(name, str) and name in known:
        return known[name]
    if name is None:
        raise WrongValue(keys, f"has no `{tag}`; {did_you_mean('', known)}")
    raise WrongValue((*keys, tag), f"unknown {tag} `{name}`; {did_you_mean(str(name), known)}")


def check_name(name: str, of: str, keys: Keys) -> None:
    """Raise `WrongValue` where nothing may have this `name`."""
    if not re.fullmatch(NAME_PATTERN, name):
        expected = "expected lower-case letters, digits, - and _, beginning with a letter"
        raise WrongValue(keys, f"{name!r} is not a valid name of {of}; {expected}")


def named(value: Any, of: str, keys: Keys) -> dict[str, Any]:
    """The mapping at `keys`, whose keys are names; raises `WrongValue`."""
    for name in (found := mapping(value, keys)):
        check_name(name, of, (*keys, name))
    return found


def decode_graph(values: FileMapping, kinds: Kinds, backends: Backends) -> GraphSpec:
    """The spec of a graph that is filled in, whose rules nobody has checked; raises `WrongValue`."""
    params = dict(named(values["params"], "a param", ("params",)))
    engines = decode_engines(values.get("engines"), backends, ("engines",))
    prompts, sampling = decode(values["prompts"], Prompts, ("prompts",)), decode(values["sampling"], Sampling, ("sampling",))
    defaults = msgspec.to_builtins(sampling)

    def block(value: Any, keys: Keys) -> dict[str, StageSpec]:
        if not mapping(value, keys):
            raise WrongValue(keys, "holds no stage")
        return {name: stage(each, (*keys, name)) for name, each in named(value, "a stage", keys).items()}

    def stage(value: Any, keys: Keys) -> StageSpec:
        kind = tagged(value, "kind", kinds, keys)
        if kind is RepeatSpec:
            return structs.replace(decode({**value, "stages": {}}, kind, keys), stages=block(value.get("stages"), (*keys, "stages")))
        return decode({**(defaults if issubclass(kind, SamplingSpec) else {}), **value}, kind, keys)

    stages = block(values.get("stages"), ("stages",))
    return GraphSpec(name=values["name"], params=params, engines=engines, prompts=prompts, sampling=sampling, stages=stages)


def decode_engines(value: Any, backends: Backends, keys: Keys = ()) -> dict[str, EngineSpec]:
    """The engines at `keys`, by role; raises `WrongValue`."""
    roles = {role: (each, (*keys, role)) for role, each in named(value, "a role", keys).items()}
    return {role: decode(each, tagged(each, "backend", backends, at), at) for role, (each, at) in roles.items()}


def _shown(keys: Keys) -> str:
    """A path as errors show it: `$.labels[0]`."""
    return "$" + "".join(f"[{key}]" if isinstance(key, int) or key == "..." else f".{key}" for key in keys)


def _explained(message: str, raw: Any, to: type[Struct]) -> tuple[Keys, str | None, str]:
    """msgspec's message as path, key that is unknown or missing there, and a clause with the value and what would be right."""
    what, _, at = message.partition(" - at `$")
    keys: Keys = tuple(int(index) if index.isdigit() else name or index for name, index in re.findall(r"\.([^.\[`]+)|\[(.+?)\]", at))
    place, struct, types = raw, to, list[Any]()
    for key in keys:
        place = place.get(key) if isinstance(place, dict) else place
        types = next((_types(field.type) for field in structs.fields(struct) if field.encode_name == key), types)
        struct = next((each for each in types if isinstance(each, type) and issubclass(each, Struct)), struct)
    if unknown := re.match(r"Object contains unknown field `(.*)`", what):
        config = struct.__struct_config__
        known = [*struct.__struct_encode_fields__, *([config.tag_field] if config.tag_field else [])]
        return keys, unknown[1], f"unknown key `{unknown[1]}`; {did_you_mean(unknown[1], known)}"
    if missing := re.match(r"Object missing required field `(.*)`", what):
        return keys, missing[1], f"the key `{missing[1]}` is missing"
    if wrong := re.match(r"`(\w+)` (?=is |has |names )", what):  # a check of the Struct itself
        return (*keys, wrong[1]), None, what[wrong.end() :]
    choices = [str(choice) for each in types if get_origin(each) is Literal for choice in get_args(each)]
    tags = [each.__struct_config__ for each in types if isinstance(each, type) and issubclass(each, Struct)]
    choices += [str(each.tag) for each in tags if (each.tag_field,) == keys[-1:]]
    if choices and what.startswith(("Invalid enum value", "Invalid value", "Expected `str`")):
        return keys, None, f"unknown value `{place}`; {did_you_mean(str(place), choices)}"
    got = "" if ", got" in what or isinstance(place, dict | list) else f", got {place!r}"
    return keys, None, what[0].lower() + what[1:] + got


def _types(kind: Any) -> list[Any]:
    """The types that a field may have, those within others included."""
    inner = () if get_origin(kind) is Literal else get_args(kind)
    return [each for part in inner for each in _types(part)] or [kind]
