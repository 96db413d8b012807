"""The parts of pages that are made when the documentation is built: the reference from the code.

A page names them between `<!-- generated: NAME -->` and `<!-- /generated -->`; what it has there is for readers of the checkout. Run by
mkdocs (`gen-files`); prints nothing, writes pages of the build alone.
"""

import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click
import mkdocs_gen_files
from msgspec import NODEFAULT, Meta, Struct, structs

import pipeline
from pipeline.api import RunKeywords
from pipeline.cli.main import cli
from pipeline.graph.load import Preset
from pipeline.graph.plugins import engine_specs, stage_specs
from pipeline.graph.prompts import ChoosePrompt, Marks, Prompts, Question
from pipeline.graph.spec import CallSpec, EngineSpec, GraphSpec, RestartableSpec, Sampling, SamplingSpec, StageSpec, UntilSpec
from pipeline.options import ABOUT
from pipeline.store.query import DERIVED
from pipeline.store.rows import ROWS, schema_of
from pipeline.training.config import CONFIGS, LoraSpec, TrainConfig
from pipeline.training.examples import Origin, SelectionRow, SftRow

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

from schemas import field_docs

MARK = re.compile(r"<!-- generated: (\w+) -->.*?<!-- /generated -->", re.DOTALL)
ROOT = Path(__file__).parent.parent


def commands() -> str:
    """Every command with its options, as `--help` prints them."""
    return "\n".join(_inner_commands(cli, "pipeline", 2))


def _command(command: click.Command, path: str, level: int) -> Iterator[str]:
    yield f"{'#' * level} {path}\n"
    context = click.Context(command, info_name=path, max_content_width=100, terminal_width=100)
    yield f"```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        yield from _inner_commands(command, path, level + 1)


def _inner_commands(group: click.Group, path: str, level: int) -> Iterator[str]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield from _command(command, f"{path} {name}", level)


def graph_files() -> str:
    """The keys of graph files, prompts files and presets."""
    parts = [_table(GraphSpec), "## Stages\n", "Every stage has these keys:\n", _table(StageSpec)]
    parts += ["Stages that call an engine, all but `gate`, `vote` and `repeat`, also have these:\n", _table(CallSpec, StageSpec)]
    parts += ["Stages that write text, `generate`, `draft` and `answer`, also have the keys of [sampling](#sampling).\n"]
    for kind, spec in stage_specs().items():
        parts += [f"### {kind}\n", _doc(spec), _table(spec, StageSpec, CallSpec, SamplingSpec)]
    parts += ["## until\n", _doc(UntilSpec), _table(UntilSpec), "## sampling\n", _doc(Sampling), _table(Sampling)]
    parts += ["## prompts\n", _doc(Prompts), _table(Prompts)]
    for title, struct in (("thought", Marks), ("choose, choose_thought", ChoosePrompt), ("score", Question)):
        parts += [f"### {title}\n", _doc(struct), _table(struct)]
    parts += ["## Presets\n", _doc(Preset), _table(Preset)]
    return "\n".join(parts)


def engines_files() -> str:
    """The keys of engines files, by backend."""
    parts = ["Every engine has these keys; a backend that lists one again has another default.\n", _table(EngineSpec)]
    parts += ["Those that this package starts, `vllm`, `torch` and `sim`, also have:\n", _table(RestartableSpec, EngineSpec)]
    for backend, spec in engine_specs().items():
        parts += [f"## {backend}\n", _doc(spec), _table(spec, EngineSpec, RestartableSpec)]
        for name, inner in _inner(spec).items():
            parts += [f"### {backend}: {name}\n", _doc(inner), _table(inner)]
    return "\n".join(parts)


def training_files() -> str:
    """The keys of training files, and the columns of training data."""
    parts = ["Both trainings have these keys:\n", _table(TrainConfig)]
    for task, config in CONFIGS.items():
        parts += [f"## {task}\n", _doc(config), _table(config, TrainConfig)]
    parts += ["## lora\n", _doc(LoraSpec), _table(LoraSpec), "## Columns of training data\n"]
    parts += ["Every row has these columns:\n", _table(Origin)]
    for row in (SftRow, SelectionRow):
        parts += [f"### {row.__name__}\n", _doc(row), _table(row, Origin)]
    return "\n".join(parts)


def run_folder() -> str:
    """The tables of a run folder, with their columns."""
    parts: list[str] = []
    for table, row in ROWS.items():
        said = field_docs(row)
        lines = ["| column | type | unit | meaning |", "|---|---|---|---|"]
        for field in schema_of(row):
            metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
            kind = f"{field.type}{' or null' if field.nullable else ''}"
            lines.append(f"| `{field.name}` | {_cell(kind)} | {metadata.get('unit', '')} | {_cell(said[field.name])} |")
        if table == "chains":
            lines += [f"| `{name}` | {kind.lower()}, in queries | | {meaning} |" for name, (kind, _, meaning) in DERIVED.items()]
        parts += [f"### {table}\n", _doc(row), "\n".join(lines), ""]
    return "\n".join(parts)


def api() -> str:
    """The names of the package, documented by themselves."""
    names = sorted(pipeline.__all__, key=lambda name: isinstance(getattr(pipeline, name), type))  # functions first
    members = (f"::: {getattr(pipeline, name).__module__}.{name}\n" for name in names)
    others = (f"::: pipeline.api.{name}\n" for name in ("GraphKeywords", "RunKeywords"))
    known = {name: about for name, about in ABOUT.items() if name in RunKeywords.__annotations__}
    rows = (f"| `{name}` | {about.group} | {_cell(about.help)} |" for name, about in known.items())
    table = ["## Options of a run\n", "| keyword | | meaning |", "|---|---|---|", *rows, ""]
    return "\n".join(["```python\nimport pipeline\n```\n", *members, *others, *table])


def own_engine() -> str:
    """The example of an engine of one's own."""
    return f"```python\n{(ROOT / 'examples/own_engine.py').read_text()}```\n"


def _doc(struct: type) -> str:
    return f"{inspect.cleandoc(struct.__doc__ or '')}\n"


def _table(struct: type[Struct], *under: type[Struct]) -> str:
    """The keys of a Struct as a table, without those that it has unchanged from one of the Structs `under` it."""
    known = {row for each in under if issubclass(struct, each) for row in _rows(each)}
    lines = ["| key | type | default | meaning |", "|---|---|---|---|", *(row for row in _rows(struct) if row not in known)]
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""


def _rows(struct: type[Struct]) -> Iterator[str]:
    said, hints = field_docs(struct), get_type_hints(struct, include_extras=True)
    for field in structs.fields(struct):
        default = "required" if field.required else f"`{_default(field)}`"
        yield f"| `{field.encode_name}` | {_cell(_type(hints[field.name]))} | {default} | {_cell(said[field.encode_name])} |"


def _default(field: structs.FieldInfo) -> str:
    value = field.default if field.default is not NODEFAULT else field.default_factory()
    text = "null" if value is None else "()" if value == () else json.dumps(value)[1:-1] if isinstance(value, str) else str(value)
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
            yield f"{sign} {bound:,}" if isinstance(bound, int) else f"{sign} {bound:g}"


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


PARTS = {
    "api": api,
    "commands": commands,
    "engines": engines_files,
    "graph": graph_files,
    "own_engine": own_engine,
    "run_folder": run_folder,
    "training": training_files,
}
PAGES = ROOT / "docs/pages"
for path in PAGES.rglob("*.md"):
    page = path.read_text()
    if MARK.search(page):
        with mkdocs_gen_files.open(path.relative_to(PAGES).as_posix(), "w") as written:
            written.write(MARK.sub(lambda mark: PARTS[mark[1]](), page))
