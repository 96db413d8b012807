"""A YAML document on its way to typed values: a mapping enters, Structs leave, or the first flaw of it as a `GraphError` with the file, the
line, the path and what would be right.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct, structs

from pipeline.errors import GraphError, boundary, did_you_mean
from pipeline.graph.yaml_file import Keys, Marked, NotYaml, parse, read_yaml

S = TypeVar("S", bound=Struct)
SET = "--set "
"""How the place of a value begins that a setting wrote."""


class Document:
    """The values of a file, among which those of other files and of settings may be put; each knows where it was written."""

    def __init__(self, values: Mapping[str, Any], file: Path | str, place: str = "") -> None:
        self.file = str(file)
        self._place = place or self.file
        with boundary(GraphError, self.file, foreign=NotYaml):
            self.values = Marked.of(values)

    @classmethod
    def read(cls, path: Path) -> "Document":
        """The document in a file; raises `GraphError` where it holds no mapping."""
        return cls(read_yaml(path), path, f"{path}, line 1")

    def at(self, keys: Keys) -> Any:
        """The value at `keys`; None where there is none."""
        value: Any = self.values
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def put(self, keys: Keys, value: Any, place: str = "") -> None:
        """Write `value`, from this `place`, at `keys`, in mappings that are made where there are none; raises `GraphError` where another
        value is in the way."""
        parent = self.values
        for key in map(str, keys[:-1]):
            if parent.get(key) is None:
                parent[key] = Marked()
            parent = parent[key]
            if not isinstance(parent, Marked):
                raise GraphError(place or self.file, f"expected a mapping, got `{type(parent).__name__}`")
        last = str(keys[-1])
        parent[last] = Marked.of(value) if isinstance(value, Mapping) else value
        if place:
            parent.places[last] = place

    def place(self, keys: Keys) -> str:
        """Where the value at `keys` was written: a file with the line, or a setting."""
        value: Any = self.values
        found = self._place
        for key in keys:
            if isinstance(value, Marked):
                found, value = value.places.get(str(key), found), value.get(str(key))
            else:
                value = value[key] if isinstance(value, list) and isinstance(key, int) else None
        return found

    def flaw(self, keys: Keys, what: str, *, key: str | None = None) -> GraphError:
        """The error of the value at `keys`; `key`: of this key of the mapping there."""
        place = self.place(keys if key is None else (*keys, key))
        return GraphError(place if place.startswith(SET) else f"{place}: {_shown(keys)}", what)

    def mapping(self, keys: Keys) -> Marked:
        """The mapping at `keys`; raises `GraphError` where something else is there."""
        value = self.at(keys)
        if not isinstance(value, Marked):
            raise self.flaw(keys, f"expected a mapping, got {'nothing' if value is None else f'`{type(value).__name__}`'}")
        return value

    def decode(self, keys: Keys, to: type[S], given: Mapping[str, Any] = {}) -> S:
        """The `to` that the mapping at `keys` describes, with `given` in place of what it says; raises `GraphError`."""
        raw = {**_plain(self.mapping(keys)), **given}
        try:
            return msgspec.convert(raw, to)
        except msgspec.ValidationError as error:
            at, key, what = _explained(str(error), raw, to)
            raise self.flaw((*keys, *at), what, key=key) from error

    def tagged(self, keys: Keys, tag: str, known: Mapping[str, type[S]]) -> S:
        """The mapping at `keys` as the one of the `known` Structs that its key `tag` names; raises `GraphError`."""
        return self.decode(keys, self.kind(keys, tag, known))

    def kind(self, keys: Keys, tag: str, known: Mapping[str, type[S]]) -> type[S]:
        """The one of the `known` Structs that the key `tag` of the mapping at `keys` names; raises `GraphError`."""
        name = self.mapping(keys).get(tag)
        if isinstance(name, str) and name in known:
            return known[name]
        if name is None:
            raise self.flaw(keys, f"has no `{tag}`; {did_you_mean('', known)}")
        raise self.flaw((*keys, tag), f"unknown {tag} `{name}`; {did_you_mean(str(name), known)}")


def read_setting(setting: str) -> tuple[str, Any]:
    """Name and value of a `NAME=VALUE`; raises `GraphError`."""
    name, equals, text = setting.partition("=")
    if not equals:
        raise GraphError(f"{SET}{setting}", "expected NAME=VALUE")
    try:
        return name, parse(text)
    except NotYaml as error:
        raise GraphError(f"{SET}{setting}", f"{text!r} is not a YAML value") from error


def _plain(value: Any) -> Any:
    """`value` with dictionaries in place of blocks."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _shown(keys: Keys) -> str:
    """A path as errors show it: `$.examples[0].reply`."""
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
    choices = [str(choice) for each in types if get_origin(each) is Literal for choice in get_args(each)]
    if choices and what.startswith(("Invalid enum value", "Expected `str`")):
        return keys, None, f"unknown value `{place}`; {did_you_mean(str(place), choices)}"
    got = "" if ", got" in what or isinstance(place, dict | list) else f", got {place!r}"
    return keys, None, what[0].lower() + what[1:] + got


def _types(kind: Any) -> list[Any]:
    """The types that a field may have, those within others included."""
    inner = () if get_origin(kind) is Literal else get_args(kind)
    return [each for part in inner for each in _types(part)] or [kind]
