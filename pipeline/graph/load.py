"""From a graph file and an engines file to a plan: what belongs to the graph is put into one document, decoded, checked, compiled.

The first flaw is raised with the file, the line, the path and the remedy. The caller says which kinds of stages and backends there are.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, structs

from pipeline.bundled import BUNDLED, FileKind, bundled_files, find_file
from pipeline.errors import GraphError, UsageError, did_you_mean
from pipeline.graph.compiler import compile_graph
from pipeline.graph.document import SET, Document, read_setting
from pipeline.graph.needs import check_needs
from pipeline.graph.plan import Plan
from pipeline.graph.prompts import Prompts, flaws
from pipeline.graph.rewards import fill_rewards
from pipeline.graph.rules import flaws_in
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
)
from pipeline.graph.yaml_file import Keys, Marked
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
AUTO, OWN, PUBLISHED = "auto", "default", "published"
"""Prompts that the model that judges decides: the first prompts file where it is bundled, else the second."""


class Preset(Struct, frozen=True, forbid_unknown_fields=True):
    """The values of a paper, for any graph: each of them counts where the graph has such a param or stage."""

    set: dict[str, Param]
    """Values by what `--set` calls them: names of params, and `stages.STAGE.NAME`."""
    samples: Count | None = None
    """Attempts at every problem; null: the paper does not state it."""


def load_graph(graph: Graph, kinds: Kinds, backends: Backends, *, engines: Engines = None, settings: Sequence[str] = ()) -> Plan:
    """The plan of `graph` on its `engines`, with `settings` (`NAME=VALUE`, or `preset=FILE`) applied and every `$param` filled in.

    A path may also be the name of a file that comes with this package. Raises `GraphError`.
    """
    path = Path("graph") if isinstance(graph, Mapping) else find_file(graph, "graph")
    document = Document(graph, path) if isinstance(graph, Mapping) else Document.read(path)
    if document.at((PARAMS,)) is None:
        document.put((PARAMS,), {})
    document.decode((), GraphSpec, {"engines": {}, "prompts": {}, "sampling": {}, "stages": {}})
    parts = [part for part in ("stages", "sampling", "prompts") if part in document.values]  # those that may name params
    if engines is None and isinstance(document.at(("engines",)), dict):
        parts.append("engines")
    else:
        _bind_engines(document, path, engines)
    used = {name for part in parts for name in _named(document.values[part])}
    of_engines = [each for each in settings if each.startswith("engines.")]
    for setting in (each for each in settings if each not in of_engines):
        _apply(setting, document)
    filled = _filled(document, (), Marked(((part, document.values[part]) for part in parts), document.values.places))
    document.values.update(filled)
    document.values.places = filled.places
    for name in (each for each in document.mapping((PARAMS,)) if each not in used):
        raise document.flaw((PARAMS, name), f"this param is unused; write `${name}` where it belongs, or drop it")
    fill_rewards(document, list(_below(document).values()), kinds, lambda name: said_file(name, path, "reward model"))
    for setting in of_engines:
        apply_setting(setting, document, ("engines",))
    plan = compile_graph(_decoded(document, path, kinds, backends))
    check_needs(plan, {role: spec.cannot for role, spec in plan.engines.items()})
    return plan


def _bind_engines(document: Document, path: Path, override: Engines) -> None:
    """Put the engines of a file by role into the `document` of the graph at `path`, and their values for its params."""
    named = document.at(("engines",))
    if override is None and named is None:
        raise document.flaw(("engines",), "is missing; name an engines file here, or give one with --engines")
    if isinstance(override, Mapping):
        found = Document(override, "--engines")
    elif override is not None:
        found = Document.read(find_file(override, "engines file"))
    else:
        with _blamed(document, ("engines",)):
            found = Document.read(find_file(str(named), "engines file", beside=path.parent))
    _bind_params(found, document)
    document.put(("engines",), found.values)


@contextmanager
def _blamed(document: Document, keys: Keys) -> Iterator[None]:
    """Say of a file that is not there where it is named."""
    try:
        yield
    except GraphError:
        raise
    except UsageError as error:
        raise document.flaw(keys, str(error)) from error


def _bind_params(engines: Document, graph: Document) -> None:
    """Put the values that an engines file has for the params of a graph into it, and take them out of the file."""
    name, known = str(graph.at(("name",))), graph.mapping((PARAMS,))
    for of, values in (engines.mapping((PARAMS,)) if engines.at((PARAMS,)) else {}).items():
        if not isinstance(values, dict):
            raise engines.flaw((PARAMS, of), f"expected the params of a graph named `{of}`, such as scot: {{adapter: selection}}")
        for param, value in values.items() if of == name else ():
            if param not in known:
                raise engines.flaw((PARAMS, of, param), f"the graph has no such param; {did_you_mean(param, known)}")
            graph.put((PARAMS, param), value, engines.place((PARAMS, of, param)))
    engines.values.pop(PARAMS, None)


def _apply(setting: str, document: Document) -> None:
    """Apply one of the `settings` of `load_graph`."""
    params, stages = document.mapping((PARAMS,)), _below(document)
    if not setting.startswith(PRESET) or "preset" in params:
        apply_setting(setting, document, ("engines",), params, stages)
        return
    preset = Document.read(find_file(setting.removeprefix(PRESET), "preset"))
    for name, value in preset.decode((), Preset).set.items():
        part, stage, key = [*name.split(".", 2), "", ""][:3]
        if name in params:
            document.put((PARAMS, name), value, preset.place(("set", name)))
        elif part == "stages" and stage in stages:
            document.put((*stages[stage], *key.split(".")), value, preset.place(("set", name)))


def apply_setting(
    setting: str, document: Document, engines: Keys, params: Collection[str] = (), stages: Mapping[str, Keys] | None = None
) -> None:
    """Write the value of an `engines.ROLE.NAME=VALUE` into the roles at `engines`, where `*` stands for all of them, of a
    `stages.STAGE.NAME=VALUE` into one of the `stages`, of a `NAME=VALUE` into the `params`; raises `GraphError` where there is none."""
    name, value = read_setting(setting)
    place = f"{SET}{setting}"
    part, named, key = [*name.split(".", 2), "", ""][:3]
    if name.startswith("engines.") or (name.startswith("stages.") and stages is not None):
        known = {role: (*engines, role) for role in document.mapping(engines)} if part == "engines" else dict(stages or {})
        chosen = list(known) if named == "*" and part == "engines" else [named]
        if not key or not known.keys() >= set(chosen):
            what = {"engines": "ROLE", "stages": "STAGE"}[part]
            raise GraphError(place, f"expected {part}.{what}.NAME=VALUE; {did_you_mean(named, known)}")
        for each in chosen:
            document.put((*known[each], *key.split(".")), value, place)
    elif name not in params:
        raise GraphError(place, f"{document.file} has no param `{name}`; {did_you_mean(name, params)}")
    else:
        document.put((PARAMS, name), value, place)


def _below(document: Document, keys: Keys = ("stages",)) -> dict[str, Keys]:
    """The path of every stage at `keys` that is a mapping by its name, those of loops included."""
    found: dict[str, Keys] = {}
    stages = document.at(keys)
    for name in [name for name, stage in stages.items() if isinstance(stage, Marked)] if isinstance(stages, Marked) else ():
        found |= {name: (*keys, name), **_below(document, (*keys, name, "stages"))}
    return found


def _param(value: Any) -> str | None:
    """The name of the param that `value` is."""
    return value[1:] if isinstance(value, str) and re.fullmatch(PARAM_PATTERN, value) else None


def _named(value: Any) -> Iterator[str]:
    """The params that `value` names, those in mappings and lists within it included."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _named(each)
    elif (name := _param(value)) is not None:
        yield name


def _filled(document: Document, keys: Keys, value: Any) -> Any:
    """The `value` at `keys` with those of params where it names them, each with its place."""
    params = document.mapping((PARAMS,))
    if isinstance(value, list):
        return [_filled(document, (*keys, index), each) for index, each in enumerate(value)]
    if isinstance(value, Marked):
        places = {key: params.places.get(_param(each) or "", value.places.get(key, "")) for key, each in value.items()}
        filled = ((key, _filled(document, (*keys, key), each)) for key, each in value.items())
        return Marked(filled, {key: place for key, place in places.items() if place})
    if (name := _param(value)) is None:
        return value
    if name not in params:
        raise document.flaw(keys, f"no param `{value}`; {did_you_mean(name, params)}")
    found = params[name]
    if isinstance(found, dict | list):
        raise document.flaw((PARAMS, name), f"expected one value, got a {'mapping' if isinstance(found, dict) else 'list'}")
    if isinstance(found, float) and not math.isfinite(found):
        raise document.flaw((PARAMS, name), f"is {found}; expected a finite number")
    return found


def _decoded(document: Document, path: Path, kinds: Kinds, backends: Backends) -> GraphSpec:
    """The spec of the graph at `path` that is filled in; raises `GraphError`."""
    _check_name(document, ("name",), document.values["name"], "a graph")
    for name in document.mapping((PARAMS,)):
        _check_name(document, (PARAMS, name), name, "a param")
    engines = _engines(document, ("engines",), backends)
    if document.at(("prompts",)) == AUTO:
        _choose_prompts(document, kinds, engines)
    prompts = _prompts(document, ("prompts",), path, Marked())
    sampling = Sampling() if document.at(("sampling",)) is None else document.decode(("sampling",), Sampling)
    stages = _Stages(document, path, kinds, prompts, sampling).block(("stages",))
    for keys, what in flaws_in(stages, engines):
        raise document.flaw(("stages", *keys), what)
    params = dict(document.mapping((PARAMS,)))
    return GraphSpec(name=document.values["name"], params=params, engines=engines, prompts=prompts, sampling=sampling, stages=stages)


def _check_name(document: Document, keys: Keys, name: str, of: str) -> None:
    if not re.fullmatch(NAME_PATTERN, name):
        expected = "expected lower-case letters, digits, - and _, beginning with a letter"
        raise document.flaw(keys, f"{name!r} is not a valid name of {of}; {expected}")


def _engines(document: Document, keys: Keys, backends: Backends) -> dict[str, EngineSpec]:
    """The engines at `keys`, by role."""
    for role in document.mapping(keys):
        _check_name(document, (*keys, role), role, "a role")
    return {role: document.tagged((*keys, role), "backend", backends) for role in document.mapping(keys)}


class _Stages(NamedTuple):
    """Decodes the stages of the graph at `path`, with what it says for all of them."""

    document: Document
    path: Path
    kinds: Kinds
    prompts: Prompts
    sampling: Sampling

    def block(self, keys: Keys) -> dict[str, StageSpec]:
        """The stages at `keys`."""
        if not self.document.mapping(keys):
            raise self.document.flaw(keys, "holds no stage")
        return {name: self._stage((*keys, name)) for name in self.document.mapping(keys)}

    def _stage(self, keys: Keys) -> StageSpec:
        document = self.document
        _check_name(document, keys, str(keys[-1]), "a stage")
        kind, said = document.kind(keys, "kind", self.kinds), document.mapping(keys)
        if said.get("prompts") is not None:
            own = _prompts(document, (*keys, "prompts"), self.path, document.mapping(("prompts",)))
            if own.thought != self.prompts.thought:
                what = "all stages of a graph share one pair of reasoning tags; set it in the graph's `prompts`"
                raise document.flaw((*keys, "prompts", "thought"), what)
        if kind is RepeatSpec:
            loop = document.decode(keys, RepeatSpec, {"stages": {}})
            return structs.replace(loop, stages=self.block((*keys, "stages")))
        for key, value in msgspec.to_builtins(self.sampling).items() if issubclass(kind, SamplingSpec) else ():
            if key not in said:
                document.put((*keys, key), value, document.place(("sampling", key)))
        return document.decode(keys, kind)


def _choose_prompts(document: Document, kinds: Kinds, engines: Mapping[str, EngineSpec]) -> None:
    """Write the prompts file that suits the judge's model in place of the prompts `auto` of a graph, and in that of its param."""
    stages = [document.mapping(keys) for keys in _below(document).values()]
    judges = {str(stage.get("engine")) for stage in stages if getattr(kinds.get(str(stage.get("kind"))), "judges", False)}
    named = [engine.tokenizer_name for role, engine in engines.items() if role in judges]
    chosen = OWN if all(name is None or name.startswith(BUNDLED) for name in named) else PUBLISHED
    document.put(("prompts",), chosen)
    if document.at((PARAMS, "prompts")) == AUTO:
        document.put((PARAMS, "prompts"), chosen)


def _prompts(document: Document, keys: Keys, path: Path, under: Marked) -> Prompts:
    """Make a block `prompts` of the graph at `path` whole: what it leaves out says the file that it is `like`, else what is `under` it."""
    said = document.at(keys)
    also = (AUTO,) if isinstance(said, str) and len(keys) == 1 else ()
    document.put(keys, {} if said is None else {"like": said} if isinstance(said, str) else said)
    block = document.mapping(keys)
    if (name := block.pop("like", None)) is not None:
        with _blamed(document, (*keys, "like")):
            under = Document.read(said_file(str(name), path, also=also)).values
    document.put(keys, _merged(under, block))
    return _checked_prompts(document, keys)


def _checked_prompts(document: Document, keys: Keys) -> Prompts:
    """The prompts at `keys`; raises `GraphError`."""
    found = document.decode(keys, Prompts)
    for key, what in flaws(found):
        raise document.flaw((*keys, *key.split(".")), what)
    return found


def load_prompts(path: Path) -> Prompts:
    """The texts of a prompts file, alone; raises `GraphError`."""
    return _checked_prompts(Document.read(path), ())


def said_file(name: str, graph: Path, kind: FileKind = "prompts file", also: Sequence[str] = ()) -> Path:
    """The file of that `kind` that `name` refers to: from a graph, one next to it or a bundled one; from `--set`, also one in the working
    folder. `also`: as of `find_file`."""
    file = find_file(name, kind, beside=graph.parent, also=also)
    return Path(name) if not file.exists() and Path(name).exists() else file


def _merged(under: Marked, over: Marked) -> Marked:
    """`under` with the values of `over`, mappings within them likewise."""
    nested = {
        key: _merged(under[key], each) for key, each in over.items() if isinstance(each, Marked) and isinstance(under.get(key), Marked)
    }
    return Marked({**under, **over, **nested}.items(), {**under.places, **over.places})


def load_engines(path: Path, backends: Backends, settings: Sequence[str] = ()) -> dict[str, EngineSpec]:
    """The specs in an engines file, by role; `path` may be the name of one that comes with this package, `settings` are
    `engines.ROLE.NAME=VALUE`. Raises `GraphError`."""
    document = Document.read(find_file(path, "engines file"))
    document.values.pop(PARAMS, None)
    for setting in settings:
        apply_setting(setting, document, ())
    return _engines(document, (), backends)


def load_struct(path: Path, to: type[T]) -> T:
    """The one `to` that a YAML file describes; raises `GraphError`."""
    return Document.read(path).decode((), to)


def load_preset(name: Path | str) -> Preset:
    """A preset, by its path or its name; raises `GraphError` for what is wrong in it."""
    return load_struct(find_file(name, "preset"), Preset)


def own_params(preset: Preset) -> list[str]:
    """The params by which a preset describes its speculation: those that no graph of the target alone has."""
    known = bundled_files("graph")
    plain = frozenset[str]().union(*(outline(known[name]).params for name in PLAIN))
    return [name for name in preset.set if "." not in name and name not in plain]


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
    params = document.mapping((PARAMS,)) if document.at((PARAMS,)) else Marked()
    document.mapping(("stages",))
    stages = {name: document.mapping(keys) for name, keys in _below(document).items()}
    roles = [str(stage["engine"]) for stage in stages.values() if "engine" in stage]
    named = dict.fromkeys(str(params.get(name[1:], name)) if name.startswith("$") else name for name in roles)
    kinds = frozenset(str(stage.get("kind")) for stage in stages.values())
    return GraphNames(frozenset(params), frozenset(stages), tuple(named), kinds)
