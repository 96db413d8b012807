"""From a graph file and an engines file to a plan: what belongs to the graph is put into one document, decoded, checked, compiled.

The first flaw is raised with the file, the line, the path and the remedy.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from pipeline.errors import GraphError, UsageError, did_you_mean
from pipeline.graph.bundled import BUNDLED, FileKind, bundled_files, find_file, model_name
from pipeline.graph.compiler import compile_graph
from pipeline.graph.document import SET, Document, Keys, parse, read_setting, written
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import engine_specs, stage_specs
from pipeline.graph.prompts import Prompts, flaws
from pipeline.graph.rewards import FORMS, RewardFile, RewardSpec
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
from pipeline.text import storable

Kinds = Mapping[str, type[StageSpec]]
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
OPEN: dict[str, type[EngineSpec]] = {"open": OpenSpec}
"""The backend that values from Python may name, and no file."""


class Preset(Struct, frozen=True, forbid_unknown_fields=True):
    """The values of a paper, for any graph: each of them counts where the graph has such a param or stage."""

    set: dict[str, Param]
    """Values by what `--set` calls them: names of params, and `stages.STAGE.NAME`."""
    samples: Count | None = None
    """Attempts at every problem; null: the paper does not state it."""


def load_graph(graph: Graph, engines: Engines = None, settings: Sequence[str] = ()) -> Plan:
    """The plan of `graph` on its `engines`, with `settings` (`NAME=VALUE`, or `preset=FILE`) applied and every `$param` filled in.

    A path may also be the name of a file that comes with this package. Raises `GraphError`.
    """
    document = _document(graph)
    parts: list[str] = [part for part in ("stages", "sampling", "prompts") if part in document.values]  # those that may name params
    _check_top(document)
    if engines is None and isinstance(document.at(("engines",)), dict):
        parts.append("engines")
    else:
        _bind_engines(document, engines)
    used = {name for part in parts for name in _params_in(document.values[part])}
    of_engines = [each for each in settings if each.startswith("engines.")]
    for setting in (each for each in settings if each not in of_engines):
        _apply(setting, document)
    for part in parts:
        _fill(document, (part,), document.values[part])
    if unused := [name for name in document.mapping((PARAMS,)) if name not in used]:
        raise document.flaw((PARAMS, unused[0]), f"this param is unused; write `${unused[0]}` where it belongs, or drop it")
    _fill_rewards(document)
    for setting in of_engines:
        set_engine(setting, document, ("engines",))
    found = _decoded(document, stage_specs(), engine_specs() | (OPEN if isinstance(engines, Mapping) else {}))
    assert isinstance(found.engines, dict), "they are bound above"
    for keys, what in flaws_in(found.stages, found.engines):
        raise document.flaw(("stages", *keys), what)
    plan = compile_graph(found)
    check_needs(plan, {role: spec.cannot for role, spec in plan.engines.items()})
    return plan


def source_of(plan: Plan) -> str:
    """The graph of `plan` on its engines as YAML, which unlike JSON has numbers without bounds."""
    assert isinstance(plan.graph.engines, dict), "the loader binds the roles"
    graph = structs.replace(plan.graph, engines=plan.graph.engines | plan.engines)
    return written(msgspec.to_builtins(graph), default_flow_style=False, allow_unicode=True, width=100)


@lru_cache(64)
def plan_of(source: str) -> Plan:
    """The plan of a text that `source_of` made, for which no other file is read. Raises `GraphError` where it is none, or needs a package
    that is not installed; a judge that is a function need not be known here."""
    document = Document(parse(source, "source"), "source")
    _check_top(document)
    stages = [document.mapping(keys) for keys in _below(document).values()]
    judges = {str(stage.get("kind")): FunctionJudgeSpec for stage in stages if stage.keys() <= {*FunctionJudgeSpec.__struct_fields__}}
    return compile_graph(_decoded(document, {**judges, **stage_specs()}, engine_specs() | OPEN))


def _document(graph: Graph) -> Document:
    return Document(graph, "graph") if isinstance(graph, Mapping) else Document.read(find_file(graph, "graph"))


def _check_top(document: Document) -> None:
    """Raise `GraphError` where the keys of a graph or its name are wrong; a graph without params gets none."""
    spec = document.decode((), GraphSpec, {"engines": {}, "prompts": {}, "sampling": {}, "stages": {}})
    _check_name(document, ("name",), spec.name, "a graph")
    if document.at((PARAMS,)) is None:
        document.put((PARAMS,), {})


def _bind_engines(document: Document, override: Engines) -> None:
    """Put the engines of a file by role into the `document` of a graph, and their values for its params."""
    named = document.at(("engines",))
    if isinstance(override, Mapping):
        found = Document(override, "--engines")
    elif override is not None:
        found = Document.read(find_file(override, "engines file"))
    elif named is None:
        raise document.flaw(("engines",), "is missing; name an engines file here, or give one with --engines")
    else:
        with _blamed(document, ("engines",)):
            found = Document.read(find_file(str(named), "engines file", beside=Path(document.file).parent))
    name, known = str(document.at(("name",))), document.mapping((PARAMS,))
    for of, values in (found.mapping((PARAMS,)) if found.at((PARAMS,)) else {}).items():
        if not isinstance(values, dict):
            raise found.flaw((PARAMS, of), f"expected the params of a graph named `{of}`, such as scot: {{adapter: selection}}")
        for param in values if of == name else ():
            if param not in known:
                raise found.flaw((PARAMS, of, param), f"the graph has no such param; {did_you_mean(param, known)}")
            document.graft((PARAMS, param), found, (PARAMS, of, param))
    found.values.pop(PARAMS, None)
    document.graft(("engines",), found)


@contextmanager
def _blamed(document: Document, keys: Keys) -> Iterator[None]:
    """Say of a file that is not there where it is named."""
    try:
        yield
    except GraphError:
        raise
    except UsageError as error:
        raise document.flaw(keys, str(error)) from error


def _apply(setting: str, document: Document) -> None:
    """Apply one of the `settings` of `load_graph` that is about no engine."""
    if setting.startswith(PRESET):
        preset = Document.read(find_file(setting.removeprefix(PRESET), "preset"))
        stages = _below(document)
        for name in preset.decode((), Preset).set:
            part, stage, key = [*name.split(".", 2), "", ""][:3]
            if name in document.mapping((PARAMS,)):
                document.graft((PARAMS, name), preset, ("set", name))
            elif part == "stages" and stage in stages:
                document.graft((*stages[stage], *key.split(".")), preset, ("set", name))
    elif setting.startswith("stages."):
        _set(setting, document, "STAGE", {name: [keys] for name, keys in _below(document).items()})
    else:
        name, value = read_setting(setting)
        if name not in (params := document.mapping((PARAMS,))):
            raise GraphError(f"{SET}{setting}", f"{document.file} has no param `{name}`; {did_you_mean(name, params)}")
        document.put((PARAMS, name), value, f"{SET}{setting}")


def set_engine(setting: str, document: Document, engines: Keys = ()) -> None:
    """Write the value of an `engines.ROLE.NAME=VALUE` into the roles at `engines`, where `*` is all of them; raises `GraphError`."""
    roles = {role: [(*engines, role)] for role in document.mapping(engines)}
    _set(setting, document, "ROLE", roles | {"*": [(*engines, role) for role in document.mapping(engines)]})


def _set(setting: str, document: Document, what: str, known: Mapping[str, Sequence[Keys]]) -> None:
    """Write the value of a `PART.NAME.KEY=VALUE` at the key of each mapping that the name stands for."""
    name, value = read_setting(setting)
    part, named, key = [*name.split(".", 2), "", ""][:3]
    if not key or named not in known:
        raise GraphError(f"{SET}{setting}", f"expected {part}.{what}.NAME=VALUE; {did_you_mean(named, known)}")
    for keys in known[named]:
        document.put((*keys, *key.split(".")), value, f"{SET}{setting}")


def _below(document: Document, keys: Keys = ("stages",)) -> dict[str, Keys]:
    """The path of every stage at `keys` that is a mapping by its name, those of loops included."""
    found: dict[str, Keys] = {}
    stages = document.at(keys)
    for name in [name for name, stage in stages.items() if isinstance(stage, dict)] if isinstance(stages, dict) else ():
        found |= {name: (*keys, name), **_below(document, (*keys, name, "stages"))}
    return found


def _params_in(value: Any) -> Iterator[str]:
    """The params that `value` names, those in mappings and lists within it included."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _params_in(each)
    elif isinstance(value, str) and re.fullmatch(PARAM_PATTERN, value):
        yield value[1:]


def _fill(document: Document, keys: Keys, value: Any) -> None:
    """Put the values of params where the `value` at `keys` names them, each with its place."""
    if isinstance(value, dict | list):
        for key, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
            _fill(document, (*keys, key), each)
        return
    for name in _params_in(value):
        params = document.mapping((PARAMS,))
        if name not in params:
            raise document.flaw(keys, f"no param `{value}`; {did_you_mean(name, params)}")
        found = params[name]
        if isinstance(found, dict | list):
            raise document.flaw((PARAMS, name), f"expected one value, got a {'mapping' if isinstance(found, dict) else 'list'}")
        if isinstance(found, float) and not math.isfinite(found):
            raise document.flaw((PARAMS, name), f"is {found}; expected a finite number")
        document.graft(keys, document, (PARAMS, name))


def _fill_rewards(document: Document) -> None:
    """Write into each stage that asks a reward model what its file says: how it is asked and, where the graph's engines have no such role,
    what serves it."""
    asks = {keys: getattr(stage_specs().get(str(document.at((*keys, "kind")))), "rewards", False) for keys in _below(document).values()}
    writers = {str(document.at((*keys, "engine"))) for keys, rewards in asks.items() if not rewards}
    for keys in (keys for keys, rewards in asks.items() if rewards):
        stage, prm = document.mapping(keys), document.at((*keys, "prm"))
        if not isinstance(prm, str):
            continue
        with _blamed(document, (*keys, "prm")):
            file = Document.read(said_file(prm, Path(document.file), "reward model"))
        file.decode((), RewardFile)
        if stage.get("prompt") is None:
            document.graft((*keys, "prompt"), file, ("prompt",))
        role = ("engines", str(stage.get("engine")))
        if document.at(role) is None:
            document.graft(role, file, ("reward",))
        elif role[1] not in writers:
            models = [model_name(str(of.at((*at, "model")) or "")) for of, at in ((file, ("reward",)), (document, role))]
            if all(models) and models[0] != models[1]:
                what = f"serves `{models[1]}`, not the reward model `{models[0]}` of `prm: {prm}`"
                raise document.flaw(role, f"{what}; leave this role out, or set `prm` to the file of its model")


def _decoded(document: Document, kinds: Kinds, backends: Mapping[str, type[EngineSpec]]) -> GraphSpec:
    """The spec of a graph that is filled in, whose rules nobody has checked; raises `GraphError`."""
    _named(document, (PARAMS,), "a param")
    engines = _engines(document, ("engines",), backends)
    if document.at(("prompts",)) == AUTO:
        _choose_prompts(document, kinds, engines)
    prompts = _prompts(document, ("prompts",))
    if document.at(("sampling",)) is None:
        document.put(("sampling",), {})
    sampling = document.decode(("sampling",), Sampling)
    stages = _block(document, ("stages",), kinds, prompts)
    name, params = document.values["name"], dict(document.mapping((PARAMS,)))
    return GraphSpec(name=name, params=params, engines=engines, prompts=prompts, sampling=sampling, stages=stages)


def _check_name(document: Document, keys: Keys, name: str, of: str) -> None:
    if not re.fullmatch(NAME_PATTERN, name):
        expected = "expected lower-case letters, digits, - and _, beginning with a letter"
        raise document.flaw(keys, f"{name!r} is not a valid name of {of}; {expected}")


def _named(document: Document, keys: Keys, of: str) -> list[str]:
    """The names in the mapping at `keys`, which are those `of` something; raises `GraphError`."""
    names = list(document.mapping(keys))
    for name in names:
        _check_name(document, (*keys, name), name, of)
    return names


def _engines(document: Document, keys: Keys, backends: Mapping[str, type[EngineSpec]]) -> dict[str, EngineSpec]:
    """The engines at `keys`, by role."""
    return {role: document.tagged((*keys, role), "backend", backends) for role in _named(document, keys, "a role")}


def _block(document: Document, keys: Keys, kinds: Kinds, prompts: Prompts) -> dict[str, StageSpec]:
    """The stages at `keys` of a graph with these `prompts`."""
    if not document.mapping(keys):
        raise document.flaw(keys, "holds no stage")
    return {name: _stage(document, (*keys, name), kinds, prompts) for name in _named(document, keys, "a stage")}


def _stage(document: Document, keys: Keys, kinds: Kinds, prompts: Prompts) -> StageSpec:
    kind, said = document.kind(keys, "kind", kinds), document.mapping(keys)
    if said.get("prompts") is not None and _prompts(document, (*keys, "prompts")).thought != prompts.thought:
        what = "all stages of a graph share one pair of reasoning tags; set it in the graph's `prompts`"
        raise document.flaw((*keys, "prompts", "thought"), what)
    if kind is RepeatSpec:
        loop = document.decode(keys, RepeatSpec, {"stages": {}})
        return structs.replace(loop, stages=_block(document, (*keys, "stages"), kinds, prompts))
    for key, value in document.mapping(("sampling",)).items() if issubclass(kind, SamplingSpec) else ():
        if key not in said and value is not None:
            document.graft((*keys, key), document, ("sampling", key))
    return document.decode(keys, kind)


def _choose_prompts(document: Document, kinds: Kinds, engines: Mapping[str, EngineSpec]) -> None:
    """Write the prompts file that suits the judge's model over the prompts `auto` of a graph, and over those of its param."""
    stages = [document.mapping(keys) for keys in _below(document).values()]
    judges = {str(stage.get("engine")) for stage in stages if getattr(kinds.get(str(stage.get("kind"))), "judges", False)}
    named = [engine.tokenizer_name for role, engine in engines.items() if role in judges]
    chosen = OWN if all(name is None or name.startswith(BUNDLED) for name in named) else PUBLISHED
    for keys in (("prompts",), (PARAMS, "prompts")):
        if document.at(keys) == AUTO:
            document.put(keys, chosen)


def _prompts(document: Document, keys: Keys) -> Prompts:
    """The block `prompts` at `keys`, completed from the file named by `like`, else from the block of the graph."""
    said = document.at(keys)
    if said is None or isinstance(said, str):
        document.put(keys, {} if said is None else {"like": said})
    name = document.mapping(keys).pop("like", None)
    if name is not None:
        with _blamed(document, (*keys, "like")):
            also = (AUTO,) if isinstance(said, str) and len(keys) == 1 else ()
            under = Document.read(said_file(str(name), Path(document.file), also=also))
        document.underlay(keys, under)
    elif len(keys) > 1:
        document.underlay(keys, document, ("prompts",))
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


def load_engines(path: Path, settings: Sequence[str] = ()) -> dict[str, EngineSpec]:
    """The specs in an engines file, by role; `path` may be the name of one that comes with this package, `settings` are
    `engines.ROLE.NAME=VALUE`. Raises `GraphError`."""
    document = Document.read(find_file(path, "engines file"))
    document.values.pop(PARAMS, None)
    for setting in settings:
        set_engine(setting, document)
    return _engines(document, (), engine_specs())


def load_reward_model(path: Path, settings: Sequence[str] = ()) -> RewardSpec:
    """The reward model in a file, which `path` or a bundled name names; `settings` are `engines.reward.NAME=VALUE`. Raises `GraphError`."""
    document = Document.read(find_file(path, "reward model"))
    document.decode((), RewardFile)
    for setting in settings:
        set_engine(setting, document)
    return RewardSpec(document.tagged(("reward",), "backend", engine_specs()), document.tagged(("prompt",), "form", FORMS))


def load_preset(name: Path | str) -> Preset:
    """A preset, by its path or its name; raises `GraphError` for what is wrong in it."""
    return Document.read(find_file(name, "preset")).decode((), Preset)


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
    document = _document(graph)
    params = document.mapping((PARAMS,)) if document.at((PARAMS,)) else {}
    document.mapping(("stages",))
    stages = {name: document.mapping(keys) for name, keys in _below(document).items()}
    roles = [str(stage["engine"]) for stage in stages.values() if "engine" in stage]
    named = dict.fromkeys(str(params.get(name[1:], name)) if name.startswith("$") else name for name in roles)
    return GraphNames(frozenset(params), frozenset(stages), tuple(named), frozenset(str(stage.get("kind")) for stage in stages.values()))
