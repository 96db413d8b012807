"""Plain values into Structs: what a YAML file holds enters, a strictly typed Struct leaves, or everything that is wrong with the values,
each as a `GraphError` with the file, the path in it and what would be right. Errors are collected where one part does not depend on
another, and raised together."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
import msgspec.structs

from pipeline.errors import GraphError, GraphErrors, did_you_mean

MAX_FLAWS = 50
"""Maximum number of flaws in one error."""


class Flaws:
    """The flaws found so far."""

    def __init__(self) -> None:
        self._found: list[GraphError] = []
        self._told: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, error: GraphError, *, whole: bool = False) -> None:
        """Note `error`, or each of them where it is several. `whole`: nothing more is noted at its place, which has no value to judge."""
        found = error.errors if isinstance(error, GraphErrors) else [error]
        self._found += [each for each in found if each.where not in self._told]
        self._told |= {each.where for each in found} if whole else set()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note a `GraphError` of the body and continue after it."""
        try:
            yield
        except GraphError as error:
            self.add(error)

    def check(self, check: Callable[..., object], *arguments: object, **named: object) -> None:
        """Call `check`, and note the `GraphError` that it raises."""
        with self.noted():
            check(*arguments, **named)

    def raise_any(self) -> None:
        """Raise what was found: one flaw as it is, several as `GraphErrors`, nothing where there is none."""
        found = list({str(error): error for error in self._found}.values())[:MAX_FLAWS]
        if len(found) == 1:
            raise found[0]
        if found:
            raise GraphErrors(found)


T = TypeVar("T", bound=msgspec.Struct)


def mapping(value: Any, where: str) -> dict[str, Any]:
    """`value`, which must be a mapping; raises `GraphError` at `where`."""
    if not isinstance(value, dict):
        got = "nothing" if value is None else f"`{type(value).__name__}`"
        raise GraphError(where, f"expected a mapping, got {got}")
    return value


def tagged(raw: Any, tag: str, structs: Mapping[str, type[T]], path: Path, where: str) -> T:
    """`raw` as the one of `structs` that its key `tag` names; raises `GraphError` at `where` in the file `path`."""
    raw = mapping(raw, f"{path}: {where}")
    name = raw.get(tag)
    if not isinstance(name, str) or name not in structs:
        what = f"has no `{tag}`" if name is None else f"unknown {tag} `{name}`"
        raise GraphError(f"{path}: {where}", f"{what}; {did_you_mean(str(name or ''), structs)}")
    return convert(raw, structs[name], path, where)


def convert(raw: dict[str, Any], to: type[T], path: Path, where: str) -> T:
    """The `to` that the values `raw` describe; they are at `where` in the file `path`. Raises `GraphError`, or `GraphErrors`.

    msgspec names the first flaw alone; the value that has it is then left out, and the rest is tried again.
    """
    flaws, left = Flaws(), raw
    dropped: set[tuple[str, ...]] = set()
    while True:
        try:
            found = msgspec.convert(left, to)
            break
        except msgspec.ValidationError as error:
            flaw, keys = _explain(str(error), left, to, path, where)
            if not _left_out(keys, dropped):
                flaws.add(flaw)
            if not keys or keys in dropped or not (left := _without(left, keys)):
                break
            dropped.add(keys)
    flaws.raise_any()
    return found


def _left_out(keys: tuple[str, ...], dropped: Collection[tuple[str, ...]]) -> bool:
    """Whether the value under `keys`, present or missing, was left out before, perhaps under a misspelt name."""
    return any(keys[:-1] == each[:-1] and get_close_matches(keys[-1], [each[-1]]) for each in dropped if keys and each)


def _without(value: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """A copy of `value` without what is under `keys`; empty if nothing is."""
    key, *rest = keys
    if key not in value:
        return {}
    others = {name: each for name, each in value.items() if name != key}
    if not rest:
        return others
    inner = value[key]
    return {**others, key: _without(inner, rest)} if isinstance(inner, dict) and rest[0] in inner else others


def _explain(message: str, raw: Any, to: type[msgspec.Struct], path: Path, where: str) -> tuple[GraphError, tuple[str, ...]]:
    """msgspec's message, with the whole path, the value found there, and the nearest known key; and the keys of what is wrong."""
    what, _, at = message.partition(" - at `$")
    keys = re.findall(r"\.([^.\[]+)", at.rstrip("`"))
    place, struct, parent = raw, to, to
    for key in keys:
        place = place.get(key) if isinstance(place, dict) else place
        parent, struct = struct, _field_struct(struct, key) or struct
    where = f"{path}: {where}{at.rstrip('`')}"
    if unknown := re.match(r"Object contains unknown field `(.*)`", what):
        return unknown_key(where, unknown[1], struct), (*keys, unknown[1])
    if missing := re.match(r"Object missing required field `(.*)`", what):
        return GraphError(where, f"the key `{missing[1]}` is missing"), (*keys, missing[1])
    if keys and what.startswith(("Invalid enum value", "Expected `str`")) and (choices := _choices(parent, keys[-1])):
        return GraphError(where, f"unknown value `{place}`; {did_you_mean(str(place), choices)}"), tuple(keys)
    got = "" if ", got" in what or isinstance(place, dict | list) else f", got {place!r}"
    return GraphError(where, what[0].lower() + what[1:] + got), tuple(keys)


def _choices(struct: type[msgspec.Struct], key: str) -> list[str]:
    """The values that a field of type `Literal` may have, for the message about another one."""
    kinds = (kind for field in msgspec.structs.fields(struct) if field.encode_name == key for kind in (field.type, *get_args(field.type)))
    return [str(choice) for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]


def unknown_key(where: str, key: str, struct: type[msgspec.Struct]) -> GraphError:
    """The error for a `key` that `struct` does not have; it suggests the most similar key that `struct` has."""
    config = struct.__struct_config__
    known = [*struct.__struct_encode_fields__, *([config.tag_field] if config.tag_field else [])]
    return GraphError(where, f"unknown key `{key}`; {did_you_mean(key, known)}", key=key)


def _field_struct(struct: type[msgspec.Struct], key: str) -> type[msgspec.Struct] | None:
    """The Struct that the field `key` of `struct` holds; None where it holds none."""
    for field in msgspec.structs.fields(struct):
        for kind in get_args(field.type) or (field.type,):
            if field.encode_name == key and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                return kind
    return None
