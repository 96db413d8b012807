"""From values to Structs: mappings of YAML files enter, typed values leave, or their first flaw as a `GraphError` with the file, the line,
the path and what would be right."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct, structs

from pipeline.errors import GraphError, did_you_mean
from pipeline.graph.files import OPTION, FileMapping
from pipeline.graph.prompts import Prompts
from pipeline.graph.spec import NAME_PATTERN, EngineSpec, GraphSpec, RepeatSpec, Sampling, SamplingSpec, StageSpec

S = TypeVar("S", bound=Struct)
Keys = tuple[str | int, ...]
"""A path in values: keys of mappings and indexes of lists."""
Kinds = Mapping[str, type[StageSpec]]
Backends = dict[str, type[EngineSpec]]


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
