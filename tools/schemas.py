"""Write the JSON Schemas of the files that a user writes to `graphs/schemas/`, for editors: python tools/schemas.py

Wherever a graph may name a param, its schema allows `$NAME` in place of the value.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import Struct, structs

from pipeline.graph.load import PARAM_PATTERN, PARAMS
from pipeline.graph.plugins import engine_specs, stage_specs
from pipeline.graph.prompts import Prompts
from pipeline.graph.spec import GraphSpec
from pipeline.study.study_file import StudySpec

FOLDER = Path(__file__).parent.parent / "graphs/schemas"
REF = "#/$defs/"
PARAM = {"type": "string", "pattern": f"^{PARAM_PATTERN}$", "description": "The value of this param."}
PROMPTS_FILE = {"type": "string", "description": "A prompts file by name or path."}
GRAPH_PARAMS = {
    "type": "object",
    "description": "Values for the params of graphs on these engines, by the name of the graph.",
    "additionalProperties": {"type": "object"},
}


def schemas() -> dict[str, dict[str, Any]]:
    """The schema of every kind of file, by its name."""
    engines, stages = engine_specs(), stage_specs()
    graph = _components(GraphSpec, *stages.values())
    graph = {name: part if name == "GraphSpec" else _with_params(part) for name, part in graph.items()}
    graph["GraphSpec"]["properties"]["prompts"] = {"anyOf": [PROMPTS_FILE, {"$ref": f"{REF}Prompts"}, {"type": "null"}]}
    graph["GraphSpec"]["properties"]["engines"] = {"type": "string", "description": field_docs(GraphSpec)["engines"]}
    del graph["EngineSpec"]
    graph["StageSpec"] = _by_tag("kind", stages)
    file = {"type": "object", "properties": {PARAMS: GRAPH_PARAMS}, "additionalProperties": {"$ref": f"{REF}EngineSpec"}}
    return {
        "graph": _file("graph", graph["GraphSpec"], graph),
        "engines": _file("engines", file, _components(*engines.values()) | {"EngineSpec": _by_tag("backend", engines)}),
        "prompts": _file("prompts", {"$ref": f"{REF}Prompts"}, _components(Prompts)),
        "study": _file("study", {"$ref": f"{REF}StudySpec", "required": ["title"]}, _study()),
    }


def _study() -> dict[str, dict[str, Any]]:
    """The parts of a study file: of its keys each may be in a part, or in the small form."""
    parts = _components(StudySpec)
    del parts["StudySpec"]["required"]
    keys = parts["StudySpec"]["properties"]
    keys["small"]["$ref"] = keys["parts"]["additionalProperties"]["$ref"] = f"{REF}StudySpec"
    return parts


def _file(name: str, top: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **top,
        "title": f"{name} file",
        "$defs": {name: parts[name] for name in sorted(parts)},
    }


def _components(*kinds: type[Struct]) -> dict[str, dict[str, Any]]:
    """The schemas of these Structs and of those that they hold, by name, each field described."""
    structs_by_name = {kind.__name__: kind for kind in _inner(kinds)}
    _, parts = msgspec.json.schema_components(list(kinds), ref_template=f"{REF}{{name}}")
    for name, part in parts.items():
        for field, said in (field_docs(structs_by_name[name]) if name in structs_by_name else {}).items():
            part["properties"][field] |= {"description": said} if said else {}
    return dict(parts)


def _inner(kinds: Any) -> Iterator[type[Struct]]:
    """The Structs among types, and those within them."""
    for kind in kinds:
        is_struct = isinstance(kind, type) and issubclass(kind, Struct)
        if is_struct:
            yield kind
        yield from _inner([field.type for field in structs.fields(kind)] if is_struct else get_args(kind))


def _with_params(part: dict[str, Any]) -> dict[str, Any]:
    """The schema of a Struct each scalar of which may be that of a param."""
    fields = part.get("properties", {})
    for name, each in fields.items():
        kinds = [each, *each.get("anyOf", ())]
        if any(kind.get("type") not in (None, "array", "object") or len(kind.get("enum", ())) > 1 for kind in kinds):
            outer = {key: each.pop(key) for key in ("description", "default") if key in each}
            fields[name] = {"anyOf": [each, PARAM], **outer}
    return part


def _by_tag(tag: str, kinds: Mapping[str, type[Struct]]) -> dict[str, Any]:
    """The schema of one of several Structs, which its `tag` names."""
    ways = [
        {"if": {"required": [tag], "properties": {tag: {"const": name}}}, "then": {"$ref": f"{REF}{kind.__name__}"}}
        for name, kind in kinds.items()
    ]
    return {"type": "object", "required": [tag], "properties": {tag: {"enum": list(kinds)}}, "allOf": ways}


def field_docs(struct: type[Struct]) -> dict[str, str]:
    """The docstring of each field of a Struct and its bases, by the name that files use; empty without one."""
    said: dict[str, str] = {}
    for base in reversed([each for each in struct.__mro__ if issubclass(each, Struct) and each is not Struct]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
        for field, after in pairwise(body):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    said[name] = " ".join(text.split())
    return {field.encode_name: said.get(field.name, "") for field in structs.fields(struct)}


if __name__ == "__main__":
    for name, schema in schemas().items():
        (FOLDER / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n")
