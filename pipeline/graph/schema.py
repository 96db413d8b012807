"""JSON Schemas of the files that a user writes, for editors: the Structs of stages and engines enter, the schema of one file leaves.

Wherever a graph may name a param, its schema allows `$NAME` in place of the value.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct, structs

from pipeline.graph.load import PARAM_PATTERN, PARAMS
from pipeline.graph.prompts import Prompts
from pipeline.graph.spec import EngineSpec, GraphSpec, StageSpec

FileName = Literal["graph", "engines", "prompts"]
"""The files that have a schema."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"
REF = "#/$defs/"
PARAM: dict[str, Any] = {"type": "string", "pattern": f"^{PARAM_PATTERN}$", "description": "The value of this param."}
LIKE: dict[str, Any] = {
    "type": "string",
    "description": "A bundled prompts file by name, or a path: its texts apply to the keys that are left out.",
}

GRAPH_PARAMS: dict[str, Any] = {
    "type": "object",
    "description": "Defaults for the params of graphs that run on these engines, by the name of the graph.",
    "additionalProperties": {"type": "object"},
}


def json_schema(file: FileName, stages: Mapping[str, type[StageSpec]], engines: Mapping[str, type[EngineSpec]]) -> dict[str, Any]:
    """The schema of a graph file, an engines file or a prompts file, with these kinds of stages and backends."""
    parts = _parts([GraphSpec, Prompts, *stages.values(), *engines.values()])
    if file == "graph":
        parts["Prompts"]["properties"]["like"] = LIKE
        parts = {name: part if name == "GraphSpec" else _with_params(part) for name, part in parts.items()}
        _allow_names(parts)
    parts["StageSpec"] = _by_tag("kind", stages)
    parts["EngineSpec"] = _by_tag("backend", engines)
    tops: dict[str, dict[str, Any]] = {
        "graph": parts["GraphSpec"],
        "engines": {
            "type": "object",
            "properties": {PARAMS: GRAPH_PARAMS},
            "additionalProperties": {"$ref": f"{REF}EngineSpec"},
        },
        "prompts": parts["Prompts"],
    }
    return _whole(tops[file], f"{file} file", parts)


def struct_schema(kind: type[Struct], title: str) -> dict[str, Any]:
    """The schema of a file that holds the fields of one Struct."""
    parts = _parts([kind])
    return _whole(parts[kind.__name__], title, parts)


def field_docs(struct: type[Struct]) -> dict[str, str]:
    """What is said of each field of a Struct and its base classes, by the name that files use; empty where nothing is."""
    said = _documented(struct)
    return {field.encode_name: said.get(field.name) or _description(field.type) for field in structs.fields(struct)}


def _parts(kinds: Iterable[type[Struct]]) -> dict[str, dict[str, Any]]:
    """The schemas of these Structs and of those that they hold, by name."""
    known = {each.__name__: each for each in _with_inner(kinds)}
    _, parts = msgspec.json.schema_components(list(known.values()), ref_template=f"{REF}{{name}}")
    return {name: _described(part, known.get(name)) for name, part in parts.items()}


def _whole(top: dict[str, Any], title: str, parts: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with those of the `parts` that it leads to."""
    return {"$schema": DIALECT, **top, "title": title, "$defs": {name: parts[name] for name in sorted(_needed(top, parts))}}


def _description(kind: Any) -> str:
    """The description in the `Meta` of an annotated type."""
    return next((meta.description for meta in getattr(kind, "__metadata__", ()) if getattr(meta, "description", None)), "")


def _described(part: dict[str, Any], struct: type[Struct] | None) -> dict[str, Any]:
    """The schema of a Struct, with the descriptions of its fields."""
    if struct is None or "properties" not in part:
        return part
    said = field_docs(struct)
    properties = {name: each | ({"description": said[name]} if said.get(name) else {}) for name, each in part["properties"].items()}
    return part | {"properties": properties}


def _with_params(part: dict[str, Any]) -> dict[str, Any]:
    """The schema of a Struct any of whose values may be that of a param."""
    found = {}
    for name, each in part.get("properties", {}).items():
        described = {key: value for key, value in each.items() if key in ("description", "default")}
        inner = {key: value for key, value in each.items() if key not in described}
        found[name] = each if "enum" in each and len(each["enum"]) == 1 else {"anyOf": [inner, PARAM], **described}
    return part | {"properties": found} if found else part


def _allow_names(parts: dict[str, dict[str, Any]]) -> None:
    """Let prompts be the name of a file wherever a graph has them."""
    for part in parts.values():
        if (prompts := part.get("properties", {}).get("prompts")) is not None:
            part["properties"]["prompts"] = {"anyOf": [LIKE, {"$ref": f"{REF}Prompts"}, {"type": "null"}]} | {
                key: value for key, value in prompts.items() if key == "description"
            }


def _by_tag(tag: str, kinds: Mapping[str, type[Struct]]) -> dict[str, Any]:
    """The schema of one of several Structs, which its `tag` names: an error is told of that one alone."""
    return {
        "type": "object",
        "required": [tag],
        "properties": {tag: {"enum": list(kinds)}},
        "allOf": [
            {"if": {"required": [tag], "properties": {tag: {"const": name}}}, "then": {"$ref": f"{REF}{kind.__name__}"}}
            for name, kind in kinds.items()
        ],
    }


def _needed(schema: Any, parts: Mapping[str, Any]) -> set[str]:
    """The names of all parts that a schema leads to."""
    found: set[str] = set()
    left = [schema]
    while left:
        for name in set(_references(left.pop())) - found:
            found.add(name)
            left.append(parts[name])
    return found


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference.removeprefix(REF)
        schema = list(schema.values())
    if isinstance(schema, list):
        for each in schema:
            yield from _references(each)


def _with_inner(kinds: Iterable[type[Struct]]) -> Iterator[type[Struct]]:
    """These Structs, and those that their fields hold, each once."""
    seen: dict[type[Struct], None] = {}
    left: list[Any] = list(kinds)
    while left:
        kind = left.pop(0)
        if isinstance(kind, type) and issubclass(kind, Struct):
            if kind not in seen:
                seen[kind] = None
                left += [field.type for field in structs.fields(kind)]
        else:
            left += get_args(kind)
    yield from seen


@cache
def _documented(struct: type[Struct]) -> dict[str, str]:
    """The strings after the annotated names of a Struct and its base classes."""
    found: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if base is not Struct and issubclass(base, Struct):
            found |= _attribute_docstrings(base)
    return found


def _attribute_docstrings(kind: type) -> dict[str, str]:
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except (OSError, TypeError, SyntaxError):  # its source is not here
        return {}
    assert isinstance(body, ast.ClassDef)
    return {
        statement.target.id: " ".join(after.value.value.split())
        for statement, after in zip(body.body, body.body[1:], strict=False)
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }
