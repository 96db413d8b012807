"""From a graph file and an engines file to a `GraphSpec`: `--set`, `$params`, strict decoding.

Reads the two files and nothing else. Every flaw is a `GraphError` that names the file, the path in it and the remedy. The caller
says which kinds of stages and which backends there are.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import msgspec.structs

from pipeline.bundled import find_file
from pipeline.errors import GraphError, UsageError, boundary, did_you_mean, nearest
from pipeline.graph.convert import Flaws, convert, mapping, tagged, unknown_key
from pipeline.graph.names import every_stage
from pipeline.graph.prompts import Marks, Prompts
from pipeline.graph.prompts import flaws as flaws_in_prompts
from pipeline.graph.spec import NAME_PATTERN, Count, EngineSpec, GraphSpec, Param, RepeatSpec, SamplingSpec, StageSpec
from pipeline.graph.yaml_file import NotYaml, parse, read_yaml, with_lines
from pipeline.text import storable

T = TypeVar("T", bound=msgspec.Struct)
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
PARAM_PATTERN = r"\$[A-Za-z][A-Za-z0-9_-]*"
"""A value that names a param; other texts may begin with a dollar sign too."""


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values of a paper, for any graph: each of them counts where the graph has such a param or stage."""

    set: dict[str, Param]
    """Values by what `--set` calls them: names of params, and `stages.STAGE.NAME`."""
    samples: Count | None = None
    """Attempts at every problem; null: the paper does not state it."""


@with_lines
def load_preset(name: Path | str) -> Preset:
    """A preset, by its path or its name; raises `GraphError` for what is wrong in it."""
    path = find_file(name, "preset")
    return convert(read_yaml(path), Preset, path, "$")


@with_lines
def load_graph(
    graph: Graph,
    kinds: Kinds,
    backends: Backends,
    *,
    engines: Engines = None,
    settings: Sequence[str] = (),
) -> GraphSpec:
    """The `graph` with its engines bound, `settings` (`NAME=VALUE`, or `preset=FILE`) applied and every `$param` filled in.

    A path may also be the name of a file that comes with this package. Raises `GraphError`, or `GraphErrors` for several flaws.
    """
    if isinstance(graph, Mapping):
        path, raw = Path("graph"), dict(graph)
    else:
        path = find_file(graph, "graph")
        raw = read_yaml(path)
    flaws = Flaws()
    names = {field.name for field in msgspec.structs.fields(GraphSpec)}
    for key in sorted(raw.keys() - names, key=str):
        flaws.add(unknown_key(str(path), str(key), GraphSpec))
        value = raw.pop(key)
        if (meant := nearest(str(key), names)) is not None:  # taken for it, so that it is not told to be missing as well
            raw.setdefault(meant, value)
    raw["params"] = dict(mapping(raw.get("params") or {}, f"{path}: $.params"))
    roles, defaults, roles_file = _read_engines(raw, path, engines)
    inline = roles_file == path
    with flaws.noted():
        raw["stages"] = _copied(mapping(raw.get("stages"), f"{path}: $.stages"))
    if not isinstance(raw.get("stages"), dict):
        flaws.raise_any()
    flaws.check(_check_names, raw["params"], f"{path}: $.params", "a param")
    flaws.check(_check_names, roles, f"{roles_file}: {_role_path('', inline).rstrip('.')}", "a role")
    if isinstance(raw.get("name"), str):
        flaws.check(_check_names, [raw["name"]], f"{path}: $.name", "a graph")
    named = set(_named([raw["stages"], raw.get("sampling"), raw.get("prompts"), roles if inline else None]))
    for name in sorted(raw["params"].keys() - named):
        flaws.add(GraphError(f"{path}: $.params.{name}", f"this param is unused; write `${name}` where it belongs, or drop it"))
    with flaws.noted():
        raw["params"] |= _engines_params(defaults, raw, roles_file)
    for setting in settings:
        flaws.check(_apply, setting, raw["params"], roles, path, raw["stages"])
    for name, value in raw["params"].items():
        if isinstance(value, float) and not math.isfinite(value):
            flaws.add(GraphError(f"{path}: $.params.{name}", f"is {value}; expected a finite number"))
    filled = _filled(raw, roles if inline else {}, path, flaws)
    return _decoded({**raw, **filled}, filled["roles"] if inline else roles, roles_file, kinds, backends, path, flaws)


def _filled(raw: Mapping[str, Any], roles: Mapping[str, Any], path: Path, flaws: Flaws) -> dict[str, Any]:
    """The parts of a graph that may name params, filled in."""
    params = _Params(raw["params"], path, flaws)
    return {
        "roles": params.fill(roles, "$.engines"),
        "stages": params.fill(raw["stages"], "$.stages"),
        "sampling": params.fill(raw.get("sampling") or {}, "$.sampling"),
        "prompts": params.fill(raw.get("prompts"), "$.prompts"),
    }


def _decoded(
    raw: dict[str, Any], roles: Mapping[str, Any], roles_file: Path, kinds: Kinds, backends: Backends, path: Path, flaws: Flaws
) -> GraphSpec:
    """The spec of a graph whose params are filled in; what is wrong with it is told with the `flaws` that were found before."""
    engines: dict[str, EngineSpec] = {}
    for role, each in roles.items():
        with flaws.noted():
            engines[role] = _engine(each, backends, roles_file, _role_path(role, roles_file == path))
    said, stages = raw.pop("prompts"), raw.pop("stages")
    spec, texts = GraphSpec(name="", engines={}), Prompts()
    with flaws.noted():
        known = {key: each for key, each in raw.items() if key != "roles"}
        spec = convert({**known, "engines": {}}, GraphSpec, path, "$")
    whole = False
    with flaws.noted():
        prompts = _prompts(said, {}, path, "$.prompts")
        texts = _checked_prompts(prompts, path, "$.prompts")
        stages, whole = _with_prompts(stages, prompts, texts.thought, path, "$.stages"), True
    if not whole:
        stages = _without_prompts(stages)  # what is wrong with them was noted
    with flaws.noted():
        sampling = raw["sampling"] if isinstance(raw["sampling"], dict) else {}  # that it is none was noted with the other keys
        decoded = _stages(_with_sampling(stages, sampling, kinds), kinds, path, "$.stages")
    if flaws:  # so that the compiler will not look at the names
        _check_names_in(stages, roles, f"{path}: $.stages", flaws)
    flaws.raise_any()
    return msgspec.structs.replace(spec, engines=engines, prompts=texts, stages=decoded)


def _apply(setting: str, params: dict[str, Any], roles: dict[str, Any], path: Path, stages: dict[str, Any]) -> None:
    """Apply one of the `settings` of `load_graph`."""
    if setting.startswith(PRESET) and "preset" not in params:
        _apply_preset(load_preset(setting.removeprefix(PRESET)), params, stages)
    else:
        apply_setting(setting, params, roles, path, stages)


@with_lines
def load_engines(path: Path, backends: Backends, settings: Sequence[str] = ()) -> dict[str, EngineSpec]:
    """The specs in an engines file, by role; `path` may be the name of one that comes with this package, `settings` are
    `engines.ROLE.NAME=VALUE`. Raises `GraphError`, or `GraphErrors` for several flaws."""
    path = find_file(path, "engines file")
    flaws, (roles, _) = Flaws(), _roles_and_params(read_yaml(path), path, inline=False)
    flaws.check(_check_names, roles, f"{path}: $", "a role")
    for setting in settings:
        flaws.check(apply_setting, setting, {}, roles, path)
    engines: dict[str, EngineSpec] = {}
    for role, spec in roles.items():
        with flaws.noted():
            engines[role] = _engine(spec, backends, path, f"$.{role}")
    flaws.raise_any()
    return engines


@with_lines
def load_prompts(path: Path) -> Prompts:
    """The texts of a prompts file, alone; raises `GraphError`."""
    return _checked_prompts(read_yaml(path), path, "$")


@with_lines
def load_struct(path: Path, to: type[T]) -> T:
    """The one `to` that a YAML file describes, such as the recipe of a data set; raises `GraphError`."""
    return convert(read_yaml(path), to, path, "$")


def digest(spec: GraphSpec) -> str:
    """Fingerprint of a graph with all its params filled in, 32 hexadecimal digits; equal graphs have equal ones."""
    return hashlib.blake2b(msgspec.json.encode(spec, order="deterministic"), digest_size=16).hexdigest()


def _check_names(names: Iterable[str], where: str, of: str) -> None:
    for name in names:
        if not re.fullmatch(NAME_PATTERN, name):
            raise GraphError(
                where, f"{name!r} is not a valid name of {of}; expected lower-case letters, digits, - and _, beginning with a letter"
            )


def _read_engines(raw: dict[str, Any], path: Path, override: Engines) -> tuple[dict[str, Any], Any, Path]:
    """The engines by role, not decoded yet and copied so that settings can be applied; what the file that names them says of params; and
    that file."""
    engines = raw.get("engines") if override is None else None
    if override is None and engines is None:
        raise GraphError(f"{path}: $.engines", "is missing; name an engines file here, or give one with --engines")
    if isinstance(override, Mapping):
        return *_roles_and_params(override, Path("--engines"), inline=False), Path("--engines")
    if isinstance(engines, dict):
        return *_roles_and_params(engines, path, inline=True), path
    file = _engines_file(path, str(engines)) if override is None else find_file(override, "engines file")
    return *_roles_and_params(read_yaml(file), file, inline=False), file


def _roles_and_params(content: Mapping[str, Any], file: Path, *, inline: bool) -> tuple[dict[str, Any], Any]:
    """What an engines file says about each role, copied, and about the params of graphs; a graph with `inline` engines has its own."""
    roles = {role: spec for role, spec in content.items() if inline or role != PARAMS}
    found = {role: dict(mapping(spec, f"{file}: {_role_path(role, inline)}")) for role, spec in roles.items()}
    return found, {} if inline else content.get(PARAMS) or {}


def _engines_params(said: Any, graph: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The values that an engines file has for the params of a `graph`; raises `GraphError` for one that it does not have."""
    said, place = mapping(said, f"{file}: $.{PARAMS}"), f"{file}: $.{PARAMS}"
    for name, values in said.items():
        if not isinstance(values, dict):
            raise GraphError(f"{place}.{name}", f"expected the params of a graph named `{name}`, such as scot: {{adapter: selection}}")
    found: dict[str, Any] = said.get(str(graph.get("name")), {})
    for param in found.keys() - graph["params"].keys():
        raise GraphError(f"{place}.{graph['name']}.{param}", f"the graph has no such param; {did_you_mean(param, graph['params'])}")
    return found


def _engines_file(path: Path, name: str) -> Path:
    """The engines file that the graph at `path` names: a path from its folder on, or a bundled one."""
    with boundary(GraphError, f"{path}: $.engines", foreign=UsageError):
        file = find_file(name, "engines file", beside=path.parent)
    if file.exists() and not file.is_file():
        raise GraphError(f"{path}: $.engines", f"{file} is not a regular file")  # it might never end
    return file


def _role_path(role: str, inline: bool) -> str:
    """The place of `role` in the file that names it: the graph file itself (`inline`) or an engines file."""
    return f"$.engines.{role}" if inline else f"$.{role}"


def apply_setting(setting: str, params: dict[str, Any], roles: dict[str, Any], path: Path, stages: dict[str, Any] | None = None) -> None:
    """Write the value of a `NAME=VALUE` into `params`, of an `engines.ROLE.NAME=VALUE` into `roles`, where `*` stands for all roles, or
    of a `stages.STAGE.NAME=VALUE` into `stages`.

    Raises `GraphError` where there is no such param, role or stage; `path` is the graph that it names then.
    """
    name, equals, text = setting.partition("=")
    if not equals:
        raise GraphError(f"--set {setting}", "expected NAME=VALUE")
    try:
        value = parse(text)
    except NotYaml as error:
        raise GraphError(f"--set {setting}", f"{text!r} is not a YAML value") from error
    if name.startswith("engines."):
        _, role, key = [*name.split(".", 2), "", ""][:3]
        if role not in (*roles, "*") or not key:
            raise GraphError(f"--set {setting}", f"expected engines.ROLE.NAME=VALUE; {did_you_mean(role, roles)}")
        for each in roles if role == "*" else [role]:
            _write(roles[each], key, value, f"--set {setting}")
    elif name.startswith("stages.") and stages is not None:
        _, stage, key = [*name.split(".", 2), "", ""][:3]
        known = dict(every_stage(stages))
        if stage not in known or not key:
            raise GraphError(f"--set {setting}", f"expected stages.STAGE.NAME=VALUE; {did_you_mean(stage, known)}")
        _write(known[stage], key, value, f"--set {setting}")
    elif name not in params:
        raise GraphError(f"--set {setting}", f"{path} has no param `{name}`; {did_you_mean(name, params)}")
    else:
        params[name] = value


def _apply_preset(preset: Preset, params: dict[str, Any], stages: dict[str, Any]) -> None:
    """Write the values of `preset` that there are params and stages for."""
    known = dict(every_stage(stages))
    for name, value in preset.set.items():
        _, stage, key = [*name.split(".", 2), "", ""][:3]
        if name in params:
            params[name] = value
        elif name.startswith("stages.") and stage in known:
            _write(known[stage], key, value, name)


def _write(target: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Write `value` into `target` under `key`, whose dots separate the keys of mappings within mappings."""
    *parents, key = key.split(".")
    for parent in parents:
        target[parent] = dict(mapping(target.get(parent, {}), where))
        target = target[parent]
    target[key] = value


def _copied(value: Any) -> Any:
    """A copy of what a YAML file holds, mappings within mappings included."""
    return {key: _copied(each) for key, each in value.items()} if isinstance(value, dict) else value


def _with_sampling(stages: Mapping[str, Any], sampling: Mapping[str, Any], kinds: Kinds) -> dict[str, Any]:
    """`stages` in which each that samples text has the keys of `sampling` that it does not name itself."""
    found = _copied(stages)
    for _, stage in every_stage(found):
        kind = kinds.get(str(stage.get("kind")))
        if kind is not None and issubclass(kind, SamplingSpec):
            stage |= {key: value for key, value in sampling.items() if key not in stage and value is not None}
    return dict(found)


def _named(value: Any) -> Iterator[str]:
    """The params that `value` names, those in mappings and lists within it included."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _named(each)
    elif isinstance(value, str) and re.fullmatch(PARAM_PATTERN, value):
        yield value[1:]


class _Params:
    """Fills `$name` values in."""

    def __init__(self, params: Mapping[str, Any], path: Path, flaws: Flaws) -> None:
        """`flaws`: where params that are not there are noted."""
        self._params, self._path, self._flaws = params, path, flaws

    def fill(self, value: Any, where: str) -> Any:
        """`value` with every `$name` in it replaced, in a copy; `where` is its place in the file."""
        if isinstance(value, dict):
            return {key: self.fill(child, f"{where}.{key}") for key, child in value.items()}
        if isinstance(value, list):
            return [self.fill(child, f"{where}[{i}]") for i, child in enumerate(value)]
        if not (isinstance(value, str) and re.fullmatch(PARAM_PATTERN, value)):
            return value
        name = value[1:]
        if name not in self._params:
            what = f"no param `{value}`; {did_you_mean(name, self._params)}"
            self._flaws.add(GraphError(f"{self._path}: {where}", what), whole=True)
        return self._params.get(name)


def _prompts(value: Any, under: Mapping[str, Any], path: Path, where: str) -> dict[str, Any]:
    """The keys of a block `prompts`, with those of the prompts file that it is `like`, else of `under`, where it says nothing."""
    if isinstance(value, str):
        value = {"like": value}
    said = {} if value is None else mapping(value, f"{path}: {where}")
    like = said.get("like")
    if like is not None:
        with boundary(GraphError, f"{path}: {where}.like", foreign=UsageError):
            file = _prompts_file(str(like), path)
        under = read_yaml(file)
        _checked_prompts(under, file, "$")
    return _merged(under, {key: each for key, each in said.items() if key != "like"})


def _prompts_file(name: str, graph: Path) -> Path:
    """The prompts file that `name` refers to: from a graph, a file next to it or a bundled one; from `--set`, also one in the working
    folder."""
    file = find_file(name, "prompts file", beside=graph.parent)
    return Path(name) if not file.exists() and Path(name).exists() else file


def anywhere(setting: str, graph: Path) -> str:
    """`setting` with an absolute path where it names a preset or a prompts file in the working folder, so that it means the same in
    any other."""
    name, _, text = setting.partition("=")
    with suppress(UsageError):
        if setting.startswith(PRESET):
            file = find_file(text, "preset")
        elif name.rpartition(".")[2] in ("prompts", "like"):
            file = _prompts_file(text, graph)
        else:
            return setting
        if file == Path(text):
            return f"{name}={storable(str(file.absolute()))}"
    return setting


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`under` with the values of `over`, mappings within them likewise."""
    nested = {key: _merged(under[key], each) for key, each in over.items() if isinstance(each, dict) and isinstance(under.get(key), dict)}
    return {**under, **over, **nested}


def _without_prompts(stages: Mapping[str, Any]) -> dict[str, Any]:
    """`stages` without prompts of their own."""
    found = _copied(stages)
    for _, stage in every_stage(found):
        stage.pop("prompts", None)
    return dict(found)


def _with_prompts(stages: Mapping[str, Any], under: Mapping[str, Any], marks: Marks, path: Path, where: str) -> dict[str, Any]:
    """`stages` in which the prompts of each that has its own are whole: those of the graph, `under`, where they say nothing.

    Raises `GraphError` where they have other `marks` of a thought than the graph: steps go from one stage to the next.
    """
    found = dict(stages)
    for name, stage in stages.items():
        if not isinstance(stage, dict):
            continue
        place, said = f"{where}.{name}", dict(stage)
        if said.get("prompts") is not None:
            said["prompts"] = _prompts(said["prompts"], under, path, f"{place}.prompts")
            checked = _checked_prompts(said["prompts"], path, f"{place}.prompts")
            if checked.thought != marks:
                raise GraphError(
                    f"{path}: {place}.prompts.thought",
                    "all stages of a graph share one pair of reasoning tags; set it in the graph's `prompts`",
                )
        if isinstance(said.get("stages"), dict):
            said["stages"] = _with_prompts(said["stages"], under, marks, path, f"{place}.stages")
        found[name] = said
    return found


def _checked_prompts(raw: dict[str, Any], path: Path, where: str) -> Prompts:
    prompts, flaws = convert(raw, Prompts, path, where), Flaws()
    for key, what in flaws_in_prompts(prompts):
        flaws.add(GraphError(f"{path}: {where}.{key}", what))
    flaws.raise_any()
    return prompts


def _stages(raw: dict[str, Any], kinds: Kinds, path: Path, where: str) -> dict[str, StageSpec]:
    if not raw:
        raise GraphError(f"{path}: {where}", "holds no stage")
    flaws, found = Flaws(), dict[str, StageSpec]()
    flaws.check(_check_names, raw, f"{path}: {where}", "a stage")
    for name, stage in raw.items():
        with flaws.noted():
            found[name] = _stage(stage, kinds, path, f"{where}.{name}")
    flaws.raise_any()
    return found


def _check_names_in(stages: Mapping[str, Any], roles: Mapping[str, Any], where: str, flaws: Flaws) -> None:
    """Note every stage and every engine that the `stages` of one block name and that is not there, whatever else is wrong with them."""
    for name, stage in stages.items():
        if not isinstance(stage, dict):
            continue
        place, others = f"{where}.{name}", stages.keys() - {name}
        after = stage.get("after") or ()
        for other in [after] if isinstance(after, str) else after if isinstance(after, list) else ():
            if isinstance(other, str) and other not in stages:
                flaws.add(GraphError(f"{place}.after", f"no stage `{other}` in this block; {did_you_mean(other, others)}"))
        judge = when.partition(".")[0] if isinstance(when := stage.get("when"), str) and "." in when else name
        if judge not in stages:
            flaws.add(GraphError(f"{place}.when", f"no stage `{judge}` in this block; {did_you_mean(judge, others)}"))
        engine = stage.get("engine")
        if isinstance(engine, str) and engine not in roles:
            flaws.add(GraphError(f"{place}.engine", f"no engine named `{engine}`; {did_you_mean(engine, roles)}"))
        if isinstance(stage.get("stages"), dict):
            _check_names_in(stage["stages"], roles, f"{place}.stages", flaws)


def _stage(raw: Any, kinds: Kinds, path: Path, where: str) -> StageSpec:
    raw = mapping(raw, f"{path}: {where}")
    kind = raw.get("kind")
    if kind is None:
        raise GraphError(f"{path}: {where}", f"has no `kind`; {did_you_mean('', kinds)}")
    if not isinstance(kind, str) or kind not in kinds:
        raise GraphError(f"{path}: {where}.kind", f"unknown kind `{kind}`; {did_you_mean(str(kind), kinds)}")
    if kinds[kind] is not RepeatSpec:
        return convert(raw, kinds[kind], path, where)
    flaws, body = Flaws(), dict[str, StageSpec]()
    with flaws.noted():
        body = _stages(mapping(raw.get("stages"), f"{path}: {where}.stages"), kinds, path, f"{where}.stages")
    with flaws.noted():
        loop = convert({**raw, "stages": {}}, RepeatSpec, path, where)
    flaws.raise_any()
    return msgspec.structs.replace(loop, stages=body)


def _engine(raw: Any, backends: Backends, path: Path, where: str) -> EngineSpec:
    return tagged(raw, "backend", backends, path, where).located(path.parent)
