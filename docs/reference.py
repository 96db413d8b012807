"""Pages of the reference, made from the code when the documentation is built: commands, files, tables of the run folder, Python API.

Run by mkdocs (`gen-files`); prints nothing, writes pages of the build alone.
"""

from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click
import mkdocs_gen_files
from msgspec import NODEFAULT, Meta, Struct, structs

import pipeline
from pipeline.cli.main import COMMANDS, cli
from pipeline.data.recipe import Recipe
from pipeline.graph.loader import Preset
from pipeline.graph.plugins import engine_specs, stage_specs
from pipeline.graph.prompts import ChoosePrompt, Example, Marks, Prompts, Question
from pipeline.graph.schema import field_docs
from pipeline.graph.spec import GraphSpec, Sampling, UntilSpec
from pipeline.trace.columns import schema_of
from pipeline.trace.conform import ROWS

GENERATED = "<!-- Generated from the code by docs/reference.py. -->\n\n"


def commands() -> str:
    """Every command with its options, as `--help` prints them."""
    parts = ["# Commands\n\n`pipeline COMMAND --help` prints the same.\n"]
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        parts += list(_command(command, f"pipeline {name}", 2))
    return "\n".join(parts)


def _command(command: click.Command, path: str, level: int) -> Iterator[str]:
    yield f"{'#' * level} {path}\n"
    context = click.Context(command, info_name=path, max_content_width=100, terminal_width=100)
    yield f"```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _command(inner, f"{path} {name}", level + 1)


def graph_files() -> str:
    """The keys of graph files, prompts files and presets."""
    parts = ["# Graph files\n", _intro("graph"), _table(GraphSpec), "## Stages\n"]
    for kind, spec in stage_specs().items():
        parts += [f"### {kind}\n", _doc(spec), _table(spec)]
    parts += ["## until\n", _doc(UntilSpec), _table(UntilSpec), "## sampling\n", _doc(Sampling), _table(Sampling)]
    parts += ["## prompts\n", _doc(Prompts), _table(Prompts)]
    for title, struct in (("thought", Marks), ("examples", Example), ("choose, choose_thought", ChoosePrompt), ("score", Question)):
        parts += [f"### {title}\n", _doc(struct), _table(struct)]
    parts += ["## Presets\n", _doc(Preset), _table(Preset), "## Recipes of data sets\n", _doc(Recipe), _table(Recipe)]
    return "\n".join(parts)


def engines_files() -> str:
    """The keys of engines files, by backend."""
    parts = ["# Engines files\n", _intro("engines"), "An engines file maps each role to the engine that plays it.\n"]
    for backend, spec in engine_specs().items():
        parts += [f"## {backend}\n", _doc(spec), _table(spec)]
        for name, inner in _inner(spec).items():
            parts += [f"### {backend}: {name}\n", _doc(inner), _table(inner)]
    return "\n".join(parts)


def run_folder() -> str:
    """The tables of a run folder, with their columns."""
    parts = ["# The run folder\n", RUN_FOLDER]
    for table, row in ROWS.items():
        said = field_docs(row)
        lines = ["| column | type | unit | meaning |", "|---|---|---|---|"]
        for field in schema_of(row):
            metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
            kind = f"{field.type}{' or null' if field.nullable else ''}"
            lines.append(f"| `{field.name}` | {_cell(kind)} | {metadata.get('unit', '')} | {_cell(said[field.name])} |")
        parts += [f"## {table}\n", _doc(row), "\n".join(lines), ""]
    return "\n".join(parts)


RUN_FOLDER = """`run.json` says what was run: graph and engines with every field, versions, machine, sessions, totals. The tables are Parquet files,
`TABLE/part-*.parquet`. While a run goes on, and after it was killed, its last rows are in write-ahead files, `TABLE/wal-*.arrows`, which
are Arrow IPC streams: `pyarrow.ipc.open_stream(path)` reads one up to its last whole batch. All commands of this package read both, and
`pipeline export RUN --table steps -o steps.parquet` writes one file of them at any moment, for DuckDB, pandas or a spreadsheet.

Rows are in the order in which they came, not in that of the input; `input_row` is the row of the input, from 1.
"""


def api() -> str:
    """The names of the package, documented by themselves."""
    parts = ["# Python API\n", "```python\nimport pipeline\n```\n"]
    for name in pipeline.__all__:
        module = getattr(pipeline, name).__module__
        parts.append(f"::: {module}.{name}\n")
    return "\n".join(parts)


def _intro(file: str) -> str:
    return f"`pipeline schema {file}` prints this as a JSON Schema, for editors.\n"


def _doc(struct: type) -> str:
    return f"{(struct.__doc__ or '').strip()}\n"


def _table(struct: type[Struct]) -> str:
    """The keys of a Struct as a table."""
    said, hints = field_docs(struct), get_type_hints(struct, include_extras=True)
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for field in structs.fields(struct):
        default = "required" if field.required else f"`{_default(field)}`"
        lines.append(f"| `{field.encode_name}` | {_cell(_type(hints[field.name]))} | {default} | {_cell(said[field.encode_name])} |")
    return "\n".join(lines) + "\n"


def _default(field: structs.FieldInfo) -> str:
    value = field.default if field.default is not NODEFAULT else field.default_factory()
    text = "null" if value is None else "()" if value == () else str(value)
    return text if len(text) <= 40 and not isinstance(value, Struct) else "..."


def _type(hint: Any) -> str:
    """A type in the words of a YAML file, with its bounds."""
    if get_origin(hint) is Annotated:
        inner, *metas = get_args(hint)
        return ", ".join([_type(inner), *(bound for meta in metas if isinstance(meta, Meta) for bound in _bounds(meta))])
    if get_origin(hint) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(hint))
    if get_origin(hint) is UnionType or str(get_origin(hint)) == "typing.Union":
        return " or ".join(_type(arm) for arm in get_args(hint))
    if get_origin(hint) in (tuple, list):
        return f"list of {_type(get_args(hint)[0])}"
    if get_origin(hint) in (dict, Mapping):
        return f"mapping of {_type(get_args(hint)[1])}"
    names = {str: "text", int: "integer", float: "number", bool: "true or false", NoneType: "null"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def _bounds(meta: Meta) -> Iterator[str]:
    for sign, bound in ((">=", meta.ge), (">", meta.gt), ("<=", meta.le), ("<", meta.lt)):
        if bound is not None:
            yield f"{sign} {bound:g}"


def _inner(spec: type[Struct]) -> dict[str, type[Struct]]:
    """The Structs that fields of a Struct hold, by the names of the fields."""
    found: dict[str, type[Struct]] = {}
    for field in structs.fields(spec):
        for kind in (field.type, *get_args(field.type)):
            if isinstance(kind, type) and issubclass(kind, Struct):
                found[field.encode_name] = kind
    return found


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


for page, make in (
    ("commands", commands),
    ("graph", graph_files),
    ("engines", engines_files),
    ("run-folder", run_folder),
    ("api", api),
):
    with mkdocs_gen_files.open(f"reference/{page}.md", "w") as file:
        file.write(GENERATED + make())
