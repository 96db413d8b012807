"""From a graph file and an engines file to a plan: what belongs to the graph is put into one document, decoded, checked, compiled.

All flaws of the document are told together, each with the file, the line, the path and the remedy. The caller says which kinds of stages
and which backends there are.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, structs

from pipeline.bundled import bundled_files, find_file
from pipeline.errors import GraphError, UsageError, did_you_mean, nearest
from pipeline.graph.compiler import compile_graph
from pipeline.graph.document import Document, WrittenAt, read_setting, unknown_key
from pipeline.graph.needs import check_needs
from pipeline.graph.plan import Plan
from pipeline.graph.prompt_files import check_prompts, choose_prompts, fill_prompts, said_file
from pipeline.graph.prompts import Prompts
from pipeline.graph.rewards import fill_rewards
from pipeline.graph.rules import flaws_in, speculation_flaw
from pipeline.graph.spec import (
    NAME_PATTERN,
    Count,
    EngineSpec,
    GraphSpec,
    Param,
    RepeatSpec,
    Sampling,
    SamplingSpec,
    StageSpec,
    Undecoded,
)
from pipeline.graph.yaml_file import Keys
from pipeline.text import storable

T = TypeVar("T", bound=Struct)
Kinds = Mapping[str, type[StageSpec]]
Backends = Mapping[str, type[EngineSpec]]
Graph = Path | Mapping[str, Any]
"""The path of a graph file, or the mapping that such a file would hold."""
Engines = Path | Mapping[str, Any] | None
"""The path of an engines file, or the mapping that such a file would hold; None: what the graph says under `engines`."""

PRESET = "preset="
"""How a setting begins that applies a preset."""
PARAMS = "params"
"""The key of an engines file that is no role: values for the params of graphs that run on it, by the name of the graph."""
PLAIN = ("target", "target-steps")
"""Bundled graphs whose params say nothing of speculation."""
PARAM_PATTERN = r"\$[A-Za-z][A-Za-z0-9_-]*"
"""A value that names a param; other texts may begin with a dollar sign too."""


class Preset(Struct, frozen=True, forbid_unknown_fields=True):
    """The values of a paper, for any graph: each of them counts where the graph has such a param or stage."""

    set: dict[str, Param]
    """Values by what `--set` calls them: names of params, and `stages.STAGE.NAME`."""
    samples: Count | None = None
    """Attempts at every problem; null: the paper does not state it."""


def load_graph(graph: Graph, kinds: Kinds, backends: Backends, *, engines: Engines = None, settings: Sequence[str] = ()) -> Plan:
    """The plan of `graph` on its `engines`, with `settings` (`NAME=VALUE`, or `preset=FILE`) applied and every `$param` filled in.

    A path may also be the name of a file that comes with this package. Raises `GraphError`, or `GraphErrors` for several flaws.
    """
    path = Path("graph") if isinstance(graph, Mapping) else find_file(graph, "graph")
    document = Document(graph, path) if isinstance(graph, Mapping) else Document.read(path)
    _drop_unknown_keys(document)
    document.values[PARAMS] = document.at((PARAMS,)) or {}
    broken = [part for part in ("stages", PARAMS) if document.mapping((part,)) is None]
    for part in broken:
        document.values[part] = {}
        document.close((part,))
    roles_file = _bind_engines(document, path, engines)
    parts = ("stages", "sampling", "prompts", *(["engines"] if roles_file == path else []))  # those that may name params
    if "stages" not in broken:
        _check_params(document, parts)
    of_engines = [setting for setting in settings if setting.startswith("engines.")]
    for setting in (each for each in settings if each not in of_engines):
        if (PARAMS if "." not in setting.partition("=")[0] else setting.partition(".")[0]) not in broken:
            with document.noted():
                _apply(setting, document)
    below = [keys for _, keys in _stages_below(document.at(("stages",)), ("stages",))]
    fill_rewards(document, below, kinds, partial(said_file, graph=path, kind="reward model"))
    for setting in of_engines if roles_file is not None else ():
        with document.noted():
            _apply(setting, document)
    _fill_params(document, parts, known=PARAMS not in broken)
    plan = compile_graph(_decoded(document, path, roles_file, kinds, backends))
    check_needs(plan, {role: spec.cannot for role, spec in plan.engines.items()})
    return plan


def _drop_unknown_keys(document: Document) -> None:
    """Note the keys that no graph has; each is taken for the one that was meant, so that this is not told to be missing as well."""
    names = {field.name for field in structs.fields(GraphSpec)}
    for key in sorted(document.values.keys() - names, key=str):
        document.flaw((), unknown_key(str(key), GraphSpec), key=str(key))
        value = document.values.pop(key)
        if (meant := nearest(str(key), names)) is not None:
            document.values.setdefault(meant, value)


def _bind_engines(document: Document, path: Path, override: Engines) -> Path | None:
    """Put the engines by role into the `document` of the graph at `path`, and their values for its params; the file they are from, None
    where there is none."""
    named = document.at(("engines",))
    if override is None and isinstance(named, dict):
        return path
    document.values["engines"] = {}
    try:
        if isinstance(override, Mapping):
            found = Document(override, "--engines")
        elif override is not None:
            found = Document.read(find_file(override, "engines file"))
        elif named is None:
            raise UsageError("is missing; name an engines file here, or give one with --engines")
        else:
            found = Document.read(_engines_file(path, str(named)))
    except GraphError as error:
        document.add(error)
        return None
    except UsageError as error:
        if override is not None:
            raise
        document.flaw(("engines",), str(error))
        return None
    for name, value in _engines_params(found, document).items():
        document.put((PARAMS, name), value, found.origin((PARAMS, str(document.at(("name",))), name)))
    found.values.pop(PARAMS, None)
    document.put(("engines",), found.values, found.origin(()))
    with document.noted():
        found.check()
    return Path(found.file)


def _engines_file(graph: Path, name: str) -> Path:
    """The engines file that a graph names: a path from its folder on, or a bundled one."""
    file = find_file(name, "engines file", beside=graph.parent)
    if file.exists() and not file.is_file():
        raise UsageError(f"{file} is not a regular file")  # it might never end
    return file


def _engines_params(engines: Document, graph: Document) -> dict[str, Any]:
    """The values that an engines file has for the params of a graph."""
    said = engines.mapping((PARAMS,)) if engines.at((PARAMS,)) else None
    for name, values in (said or {}).items():
        if not isinstance(values, dict):
            engines.flaw((PARAMS, name), f"expected the params of a graph named `{name}`, such as scot: {{adapter: selection}}")
    name, known = str(graph.at(("name",))), graph.at((PARAMS,))
    found = engines.at((PARAMS, name))
    found = found if isinstance(found, dict) else {}
    for param in found.keys() - known.keys():
        engines.flaw((PARAMS, name, param), f"the graph has no such param; {did_you_mean(param, known)}")
    return {param: value for param, value in found.items() if param in known}


def _apply(setting: str, document: Document) -> None:
    """Apply one of the `settings` of `load_graph`."""
    params, stages = document.at((PARAMS,)), dict(_stages_below(document.at(("stages",)), ("stages",)))
    if not setting.startswith(PRESET) or "preset" in params:
        apply_setting(setting, document, ("engines",), params, stages)
        return
    preset = Document.read(find_file(setting.removeprefix(PRESET), "preset"))
    for name, value in preset.decoded(Preset).set.items():
        part, stage, key = [*name.split(".", 2), "", ""][:3]
        if name in params:
            document.put((PARAMS, name), value, preset.origin(("set", name)))
        elif part == "stages" and stage in stages:
            document.put((*stages[stage], *key.split(".")), value, preset.origin(("set", name)))


def apply_setting(
    setting: str, document: Document, engines: Keys, params: Collection[str] = (), stages: Mapping[str, Keys] | None = None
) -> None:
    """Write the value of an `engines.ROLE.NAME=VALUE` into the roles at `engines`, where `*` stands for all of them, of a
    `stages.STAGE.NAME=VALUE` into one of the `stages`, of a `NAME=VALUE` into the `params`; raises `GraphError` where there is none."""
    name, value = read_setting(setting)
    origin = WrittenAt(f"--set {setting}", None)
    part, named, key = [*name.split(".", 2), "", ""][:3]
    if name.startswith("engines.") or (name.startswith("stages.") and stages is not None):
        known = {role: (*engines, role) for role in document.at(engines)} if part == "engines" else dict(stages or {})
        chosen = list(known) if named == "*" and part == "engines" else [named]
        if not key or not known.keys() >= set(chosen):
            what = {"engines": "ROLE", "stages": "STAGE"}[part]
            raise GraphError(origin.file, f"expected {part}.{what}.NAME=VALUE; {did_you_mean(named, known)}")
        for each in chosen:
            document.put((*known[each], *key.split(".")), value, origin)
    elif name not in params:
        raise GraphError(origin.file, f"{document.file} has no param `{name}`; {did_you_mean(name, params)}")
    else:
        document.put((PARAMS, name), value, origin)


def _stages_below(value: Any, keys: Keys) -> Iterator[tuple[str, Keys]]:
    """The name and the path of every stage that is a mapping, those of loops included; `value` is at `keys`."""
    for name, stage in value.items() if isinstance(value, dict) else ():
        if isinstance(stage, dict):
            yield name, (*keys, name)
            yield from _stages_below(stage.get("stages"), (*keys, name, "stages"))


def _named(value: Any) -> Iterator[str]:
    """The params that `value` names, those in mappings and lists within it included."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _named(each)
    elif isinstance(value, str) and re.fullmatch(PARAM_PATTERN, value):
        yield value[1:]


def _check_params(document: Document, parts: Sequence[str]) -> None:
    """Note the params that none of these parts of a graph names."""
    used = {name for part in parts for name in _named(document.at((part,)))}
    for name in document.at((PARAMS,)):
        if name not in used:
            document.flaw((PARAMS, name), f"this param is unused; write `${name}` where it belongs, or drop it")


def _fill_params(document: Document, parts: Sequence[str], *, known: bool) -> None:
    """Put the values of params where these parts of a graph name them; where they are not `known`, nothing is said of what lacks them."""
    params = document.at((PARAMS,))
    unfit = {name: what for name, value in params.items() if (what := _unfit(value)) is not None}

    def filled(value: Any, keys: Keys) -> Any:
        if isinstance(value, dict):
            return {key: filled(each, (*keys, key)) for key, each in value.items()}
        if isinstance(value, list):
            return [filled(each, (*keys, place)) for place, each in enumerate(value)]
        if not (isinstance(value, str) and re.fullmatch(PARAM_PATTERN, value)):
            return value
        if value[1:] in params:
            document.borrow(keys, (PARAMS, value[1:]))
        elif known:
            document.flaw(keys, f"no param `{value}`; {did_you_mean(value[1:], params)}")
        if value[1:] not in params or value[1:] in unfit:  # of which is said what is wrong
            document.close(keys)
        return params.get(value[1:])

    for part in parts:
        document.values[part] = filled(document.at((part,)), (part,))
    for name, what in unfit.items():
        document.flaw((PARAMS, name), what)
    document.values[PARAMS] = {name: value for name, value in params.items() if name not in unfit}


def _unfit(value: Any) -> str | None:
    """The flaw of a `value` that no param may have; None where it has none, or decoding tells it."""
    if isinstance(value, dict | list):
        return f"expected one value, got a {'mapping' if isinstance(value, dict) else 'list'}"
    return f"is {value}; expected a finite number" if isinstance(value, float) and not math.isfinite(value) else None


def _decoded(document: Document, path: Path, roles_file: Path | None, kinds: Kinds, backends: Backends) -> GraphSpec:
    """The spec of a graph that is filled in; raises all flaws of its document."""
    _check_names(document, (PARAMS,), "a param")
    _check_names(document, ("engines",), "a role")
    if isinstance(name := document.at(("name",)), str) and not re.fullmatch(NAME_PATTERN, name):
        document.flaw(("name",), _bad_name(name, "a graph"))
    engines = _engines(document, ("engines",), backends, (roles_file or path).parent)
    below = [keys for _, keys in _stages_below(document.at(("stages",)), ("stages",))]
    choose_prompts(document, below, kinds, engines, (PARAMS, "prompts"))
    prompts = fill_prompts(document, below, path)
    _fill_sampling(document, kinds)
    stages = _stages(document, ("stages",), kinds, prompts)
    spec = document.decode((), GraphSpec, {"engines": {}, "stages": {}, "prompts": {}})
    if not stages:
        document.flaw(("stages",), "holds no stage")
    else:
        for keys, what in flaws_in(stages, engines if roles_file else None):
            document.flaw(("stages", *keys), what)
    if not document.is_flawed and (flaw := speculation_flaw(stages)) is not None:
        document.flaw(("stages", *flaw[0]), flaw[1])
    document.check()
    assert spec is not None
    assert prompts is not None
    whole = {role: engine for role, engine in engines.items() if engine is not None}
    return structs.replace(spec, engines=whole, prompts=prompts, stages=stages)


def _check_names(document: Document, keys: Keys, of: str) -> None:
    for name in document.at(keys):
        if not re.fullmatch(NAME_PATTERN, str(name)):
            document.flaw(keys, _bad_name(name, of), key=name)


def _bad_name(name: object, of: str) -> str:
    return f"{name!r} is not a valid name of {of}; expected lower-case letters, digits, - and _, beginning with a letter"


def _engines(document: Document, keys: Keys, backends: Backends, folder: Path) -> dict[str, EngineSpec | None]:
    """The engines at `keys` of a file in `folder`, by role; None for one with flaws."""
    found = {role: document.tagged((*keys, role), "backend", backends) for role in document.at(keys)}
    return {role: engine and engine.located(folder) for role, engine in found.items()}


def _stages(document: Document, keys: Keys, kinds: Kinds, prompts: Prompts | None) -> dict[str, StageSpec]:
    """The stages of the block at `keys` of a graph with these `prompts`; one with a flaw is an `Undecoded`."""
    found: dict[str, StageSpec] = {}
    for name in document.mapping(keys) or ():
        found[name] = _stage(document, (*keys, name), kinds, prompts)
        if not re.fullmatch(NAME_PATTERN, str(name)):
            document.flaw(keys, _bad_name(name, "a stage"), key=name)
    return found


def _stage(document: Document, keys: Keys, kinds: Kinds, prompts: Prompts | None) -> StageSpec:
    raw = document.mapping(keys)
    if raw is None:
        return Undecoded(of=None)
    kind, body, spec = document.kind(keys, "kind", kinds), dict[str, StageSpec](), None
    if kind is RepeatSpec:
        body = _stages(document, (*keys, "stages"), kinds, prompts)
        if raw.get("stages") == {}:
            document.flaw((*keys, "stages"), "holds no stage")
    if kind is not None:
        spec = document.decode(keys, kind, {"stages": {}} if kind is RepeatSpec else {})
    if spec is None:
        named = {key: raw[key] for key in ("when", "engine") if isinstance(raw.get(key), str)}
        after = raw.get("after")
        after = [after] if isinstance(after, str) else after if isinstance(after, list) else []
        return Undecoded(of=kind, after=tuple(each for each in after if isinstance(each, str)), stages=body, **named)
    if spec.prompts is not None and prompts is not None:
        check_prompts(document, (*keys, "prompts"), spec.prompts)
        if spec.prompts.thought != prompts.thought:
            what = "all stages of a graph share one pair of reasoning tags; set it in the graph's `prompts`"
            document.flaw((*keys, "prompts", "thought"), what)
    return structs.replace(spec, stages=body) if isinstance(spec, RepeatSpec) else spec


def _fill_sampling(document: Document, kinds: Kinds) -> None:
    """Write the keys of `sampling` into each stage that samples text and does not name them itself."""
    sampling = Sampling() if document.at(("sampling",)) is None else document.decode(("sampling",), Sampling)
    document.values["sampling"] = {} if sampling is None else msgspec.to_builtins(sampling)
    for _, keys in _stages_below(document.at(("stages",)), ("stages",)):
        stage = document.at(keys)
        kind = kinds.get(str(stage.get("kind")))
        if kind is not None and issubclass(kind, SamplingSpec):
            stage |= {key: value for key, value in document.values["sampling"].items() if key not in stage}


def load_engines(path: Path, backends: Backends, settings: Sequence[str] = ()) -> dict[str, EngineSpec]:
    """The specs in an engines file, by role; `path` may be the name of one that comes with this package, `settings` are
    `engines.ROLE.NAME=VALUE`. Raises `GraphError`, or `GraphErrors` for several flaws."""
    path = find_file(path, "engines file")
    document = Document.read(path)
    document.values.pop(PARAMS, None)
    _check_names(document, (), "a role")
    for setting in settings:
        with document.noted():
            apply_setting(setting, document, ())
    return decode_engines(document, backends)


def decode_engines(document: Document, backends: Backends) -> dict[str, EngineSpec]:
    """The specs in a document of engines by role; raises its flaws."""
    found = _engines(document, (), backends, Path(document.file).parent)
    document.check()
    return {role: engine for role, engine in found.items() if engine is not None}


def load_preset(name: Path | str) -> Preset:
    """A preset, by its path or its name; raises `GraphError` for what is wrong in it."""
    return load_struct(find_file(name, "preset"), Preset)


def own_params(preset: Preset) -> list[str]:
    """The params by which a preset describes its speculation: those that no graph of the target alone has."""
    known = bundled_files("graph")
    plain = frozenset[str]().union(*(outline(known[name]).params for name in PLAIN))
    return [name for name in preset.set if "." not in name and name not in plain]


def load_struct(path: Path, to: type[T]) -> T:
    """The one `to` that a YAML file describes, such as the recipe of a data set; raises `GraphError`."""
    return Document.read(path).decoded(to)


def anywhere(setting: str, graph: Path) -> str:
    """`setting` with an absolute path where it names a preset or a prompts file in the working folder, so that it means the same in
    any other."""
    name, _, text = setting.partition("=")
    with suppress(UsageError):
        if setting.startswith(PRESET):
            file = find_file(text, "preset")
        elif name.rpartition(".")[2] in ("prompts", "like"):
            file = said_file(text, graph)
        else:
            return setting
        if file == Path(text):
            return f"{name}={storable(str(file.absolute()))}"
    return setting


class GraphNames(Struct, frozen=True):
    """The names in a graph that is not decoded."""

    params: frozenset[str]
    stages: frozenset[str]
    """The names of all stages, loops and those within them included."""
    roles: tuple[str, ...]
    """The roles that stages name, in the order of the file."""
    kinds: frozenset[str]
    """The kinds of all stages."""

    def has(self, setting: str) -> bool:
        """Whether the name of a setting is that of a param, or `stages.STAGE.NAME` of a stage."""
        part, stage, _ = [*setting.split(".", 2), "", ""][:3]
        return setting in self.params or (part == "stages" and stage in self.stages)


def outline(graph: Graph) -> GraphNames:
    """The names in a graph, which may be the name of a bundled one; raises `GraphError` where it has no mapping of stages."""
    document = Document(graph, "graph") if isinstance(graph, Mapping) else Document.read(find_file(graph, "graph"))
    params = document.mapping((PARAMS,)) if document.at((PARAMS,)) else {}
    stages = [(name, document.at(keys)) for name, keys in _stages_below(document.mapping(("stages",)), ("stages",))]
    document.check()
    assert params is not None
    roles = [str(stage["engine"]) for _, stage in stages if "engine" in stage]
    named = dict.fromkeys(str(params.get(name[1:], name)) if name.startswith("$") else name for name in roles)
    kinds = frozenset(str(stage.get("kind")) for _, stage in stages)
    return GraphNames(frozenset(params), frozenset(name for name, _ in stages), tuple(named), kinds)
