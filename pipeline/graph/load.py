"""From a graph file and an engines file to a plan: what belongs to the graph is put into one document, decoded, checked, compiled.

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

from pipeline.errors import GraphError, did_you_mean
from pipeline.graph.bundled import find_file, model_name
from pipeline.graph.compiler import compile_graph
from pipeline.graph.document import SET, Document, FileMapping, Keys, parse, read_setting, written
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import engine_specs, stage_specs
from pipeline.graph.prompts import Prompts, flaws
from pipeline.graph.rewards import RewardFile, RewardSpec
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

Kinds = Mapping[str, type[StageSpec]]
Backends = dict[str, type[EngineSpec]]
Graph = Path | Mapping[str, Any]
"""The path of a graph file, or the mapping that such a file would hold."""
Engines = Path | Mapping[str, Any] | None
"""The path of an engines file, or the mapping that such a file would hold; None: what the graph says under `engines`."""

PRESET = "preset="
"""How a setting begins that applies a preset."""
PARAMS = "params"
"""The key of an engines file that is no role: values for the params of graphs that run on it, by the name of the graph."""
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
    document = _document(graph)
    given = list(_read(settings, _names(document)))
    inline = engines is None and isinstance(document.at(("engines",)), dict)
    if not inline:
        _bind_engines(document, engines)
    _set_params(document, given)
    used: set[Any] = set()
    for part in ("stages", "sampling", "prompts", *(["engines"] if inline else [])):
        used |= _fill(document, document.values, part, (part,)) if part in document.values else set()
    if unused := [name for name in document.mapping((PARAMS,)) if name not in used]:
        raise document.flaw((PARAMS, unused[0]), f"this param is unused; write `${unused[0]}` where it belongs, or drop it")
    _set(document, given, "stages.STAGE.NAME", _stages(document))
    _fill_rewards(document)
    _set(document, given, ROLE, {role: ("engines", role) for role in document.mapping(("engines",))})
    found = _decoded(document, stage_specs(), engine_specs() | (OPEN if isinstance(engines, Mapping) else {}))
    for keys, what in flaws_in(found.stages, found.engines):
        raise document.flaw(("stages", *keys), what)
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
    document = _document(parse(source, "source"))
    stages = [document.mapping(keys) for keys in _stages(document).values()]
    judges = {str(stage.get("kind")): FunctionJudgeSpec for stage in stages if stage.keys() <= {*FunctionJudgeSpec.__struct_fields__}}
    return compile_graph(_decoded(document, {**judges, **stage_specs()}, engine_specs() | OPEN))


def _document(graph: Graph) -> Document:
    """The document of a graph, which has params; raises `GraphError` where its keys or its name are wrong."""
    document = Document.read(find_file(graph, "graph")) if isinstance(graph, Path) else Document(graph, "graph")
    spec = document.decode((), GraphSpec, {"engines": {}, "prompts": {}, "sampling": {}, "stages": {}})
    _check_name(document, ("name",), spec.name, "a graph")
    if document.at((PARAMS,)) is None:
        document.put((PARAMS,), {})
    return document


def _bind_engines(document: Document, override: Engines) -> None:
    """Put the engines of a file by role into the `document` of a graph, and their values for its params."""
    if isinstance(override, Mapping):
        found = Document(override, "--engines")
    elif override is not None:
        found = Document.read(find_file(override, "engines file"))
    elif document.at(("engines",)) is None:
        raise document.flaw(("engines",), "is missing; name an engines file here, or give one with --engines")
    else:
        found = document.named(("engines",), "engines file")
    name, known = str(document.at(("name",))), document.mapping((PARAMS,))
    for of in found.mapping((PARAMS,)) if found.at((PARAMS,)) else ():
        values = found.mapping((PARAMS, of))
        for param in values if of == name else ():
            if param not in known:
                raise found.flaw((PARAMS, of, param), f"the graph has no such param; {did_you_mean(param, known)}")
            document.graft((PARAMS, param), found, (PARAMS, of, param))
    found.values.pop(PARAMS, None)
    document.graft(("engines",), found)


def _read(settings: Iterable[str], known: "GraphNames | None" = None) -> Iterator[Setting]:
    """The values of `settings`, and of their presets where the graph has the name (`known`)."""
    for text in settings:
        if known is not None and text.startswith(PRESET):
            preset = Document.read(find_file(text.removeprefix(PRESET), "preset"))
            of_graph = (item for item in preset.decode((), Preset).set.items() if known.has(item[0]))
            yield from (Setting(name, value, preset.place(("set", name))) for name, value in of_graph)
        else:
            yield Setting(*read_setting(text), f"{SET}{text}")


def _set_params(document: Document, settings: Iterable[Setting]) -> None:
    """Write the values of params; raises `GraphError` for one that the graph does not have."""
    params = document.mapping((PARAMS,))
    for each in settings:
        if each.name in params:
            document.put((PARAMS, each.name), each.value, each.place)
        elif not each.name.startswith(("stages.", "engines.")):
            raise GraphError(each.place, f"{document.file} has no param `{each.name}`; {did_you_mean(each.name, params)}")


def _set(document: Document, settings: Iterable[Setting], form: str, known: Mapping[str, Keys]) -> None:
    """Write the values of settings of this `form`, PART.WHAT.NAME, into the mapping that is `known` by what, or into all for `*`."""
    for each in settings:
        part, named, key = [*each.name.split(".", 2), "", ""][:3]
        if part != form.partition(".")[0]:
            continue
        if not key or not known.keys() >= {named} - {"*"}:
            raise GraphError(each.place, f"expected {form}=VALUE; {did_you_mean(named, known)}")
        for keys in known.values() if named == "*" else [known[named]]:
            document.put((*keys, *key.split(".")), each.value, each.place)


def _stages(document: Document, keys: Keys = ("stages",)) -> dict[str, Keys]:
    """The path by name of every stage at `keys` that is a mapping, also in loops."""
    found: dict[str, Keys] = {}
    stages = document.at(keys)
    for name in [name for name, stage in stages.items() if isinstance(stage, dict)] if isinstance(stages, dict) else ():
        found |= {name: (*keys, name), **_stages(document, (*keys, name, "stages"))}
    return found


def _fill(document: Document, inside: Any, key: Any, keys: Keys) -> set[str]:
    """Put the value of each param at `key` of the mapping or list `inside`, or within what is there, whose path is `keys`; their names."""
    value, params = inside[key], document.mapping((PARAMS,))
    if isinstance(value, dict | list):
        below = [*value] if isinstance(value, dict) else range(len(value))
        return set[str]().union(*(_fill(document, value, each, (*keys, each)) for each in below))
    if not (isinstance(value, str) and re.fullmatch(PARAM_PATTERN, value)):
        return set()
    if (name := value[1:]) not in params:
        raise document.flaw(keys, f"no param `{value}`; {did_you_mean(name, params)}")
    found = inside[key] = params[name]
    if isinstance(found, dict | list) or (isinstance(found, float) and not math.isfinite(found)):
        raise document.flaw((PARAMS, name), f"expected a text, a finite number, a boolean or null, got {found}")
    if isinstance(inside, FileMapping):
        inside.places[key] = document.place((PARAMS, name))
    return {name}


def _fill_rewards(document: Document) -> None:
    """Write into each stage what the file of its reward model says: how it is asked and, where the graph's engines have no such role, what
    serves it."""
    for keys in _stages(document).values():
        stage = document.mapping(keys)
        if not isinstance(stage.get("prm"), str):
            continue
        file, role = document.named((*keys, "prm"), "reward model"), ("engines", str(stage.get("engine")))
        file.decode((), RewardFile)
        if stage.get("prompt") is None:
            document.graft((*keys, "prompt"), file, ("prompt",))
        if document.at(role) is None:
            document.graft(role, file, ("reward",))
        served, own = (model_name(str(of.at((*at, "model")) or "")) for of, at in ((document, role), (file, ("reward",))))
        if served and own and served != own:
            what = f"serves `{served}`, not the reward model `{own}` of `prm: {stage['prm']}`"
            raise document.flaw(role, f"{what}; leave this role out, or set `prm` to the file of its model")


def _decoded(document: Document, kinds: Kinds, backends: Backends) -> GraphSpec:
    """The spec of a graph that is filled in, whose rules nobody has checked; raises `GraphError`."""
    _check_names(document, (PARAMS,), "a param")
    engines = _engines(document, ("engines",), backends)
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


def _check_names(document: Document, keys: Keys, of: str) -> None:
    """Raise `GraphError` where the mapping at `keys` has a name that nothing may have."""
    for name in document.mapping(keys):
        _check_name(document, (*keys, name), name, of)


def _engines(document: Document, keys: Keys, backends: Backends) -> dict[str, EngineSpec]:
    """The engines at `keys`, by role."""
    _check_names(document, keys, "a role")
    return {role: document.tagged((*keys, role), "backend", backends) for role in document.mapping(keys)}


def _block(document: Document, keys: Keys, kinds: Kinds, prompts: Prompts) -> dict[str, StageSpec]:
    """The stages at `keys` of a graph with these `prompts`."""
    if not document.mapping(keys):
        raise document.flaw(keys, "holds no stage")
    _check_names(document, keys, "a stage")
    return {name: _stage(document, (*keys, name), kinds, prompts) for name in document.mapping(keys)}


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


def _prompts(document: Document, keys: Keys) -> Prompts:
    """The prompts at `keys`: the file that is named there, or a block; a stage's block takes what it leaves out from that of the graph."""
    if isinstance(document.at(keys), str):
        document.graft(keys, document.named(keys, "prompts file"))
        return _checked_prompts(document, keys)
    if document.at(keys) is None:
        document.put(keys, {})
    if len(keys) > 1:
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


def load_engines(path: Path, settings: Sequence[str] = ()) -> dict[str, EngineSpec]:
    """The specs in an engines file, by role; `path` may be the name of one that comes with this package, `settings` are
    `engines.ROLE.NAME=VALUE`. Raises `GraphError`."""
    document = Document.read(find_file(path, "engines file"))
    document.values.pop(PARAMS, None)
    _set(document, _read(settings), ROLE, {role: (role,) for role in document.values})
    return _engines(document, (), engine_specs())


def load_reward_model(path: Path, settings: Sequence[str] = ()) -> RewardSpec:
    """The reward model in a file, which `path` or a bundled name names; `settings` are `engines.reward.NAME=VALUE`. Raises `GraphError`."""
    document = Document.read(find_file(path, "reward model"))
    prompt = document.decode((), RewardFile).prompt
    _set(document, _read(settings), ROLE, {role: (role,) for role in document.values})
    return RewardSpec(document.tagged(("reward",), "backend", engine_specs()), prompt)


def load_preset(name: Path | str) -> Preset:
    """A preset, by its path or its name; raises `GraphError` for what is wrong in it."""
    return Document.read(find_file(name, "preset")).decode((), Preset)


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
    document = _document(graph)
    document.mapping(("stages",))
    return _names(document)


def _names(document: Document) -> GraphNames:
    params, stages = document.mapping((PARAMS,)), {name: document.mapping(keys) for name, keys in _stages(document).items()}
    roles = [str(stage["engine"]) for stage in stages.values() if "engine" in stage]
    named = dict.fromkeys(str(params.get(name[1:], name)) if name.startswith("$") else name for name in roles)
    return GraphNames(frozenset(params), frozenset(stages), tuple(named))
