"""`pipeline init` and `pipeline graph schema`: files of one's own to begin with, and what editors know about them."""

from pathlib import Path
from typing import Any, cast, get_args

import click
import msgspec

from pipeline.bundled import find_file
from pipeline.cli.commands import command, option
from pipeline.cli.located import LocalPath
from pipeline.cli.terminal import print_line, print_page
from pipeline.errors import UsageError, reason
from pipeline.graph.plugins import engine_specs, stage_specs
from pipeline.graph.schema import FileName, json_schema, struct_schema
from pipeline.sweep.study_file import StudySpec
from pipeline.training.lora.config import CONFIGS, Task

GRAPH, ENGINES, PROBLEMS = "graph.yaml", "engines.yaml", "problems.csv"
TRAINING: dict[str, Task] = {"training-draft": "draft", "training-select": "select"}
STUDY = "study"
SCHEMAS = (*get_args(FileName), *TRAINING, STUDY)
"""Files that have a schema."""
EXAMPLE = """\
problem,answer
Zoe has 9 pens. Zoe collects 2. Zoe buys 2 packs of 5. How many pens has Zoe now?,21
Anna has 10 figs. Anna loses 5. Anna finds 9. Anna sells 7. How many figs has Anna now?,7
"""
"""Problems of the kind that the bundled models know."""
HINT = "# yaml-language-server: $schema={schema}\n"


@command()
@click.argument("file", type=click.Choice(SCHEMAS), metavar="FILE")
@option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Output file.  [default: stdout]")
def schema(file: str, output: Path | None) -> None:
    """Print the JSON Schema of a kind of file, for editors. FILE: graph, engines, prompts, preset, training-draft,
    training-select or study.

    The schema includes stages and engines of installed packages.
    """
    text = _schema(file)
    if output is None:
        print_page(text)
        return
    _write(output, text)
    print_line(str(output))


@command()
@click.argument("folder", type=LocalPath(), default=Path(), metavar="[FOLDER]")
@option("--graph", default="speccot", show_default=True, metavar="NAME", help="Bundled graph to start from.")
@option("--engines", default="tiny", show_default=True, metavar="NAME", help="Bundled engines file to start from.")
def init(folder: Path, graph: str, engines: str) -> None:
    """Write a graph, an engines file and two example problems into FOLDER, to be edited. Existing files are not overwritten."""
    sources = {GRAPH: find_file(graph, "graph"), ENGINES: find_file(engines, "engines file")}
    texts = {name: path.read_text() for name, path in sources.items()}
    texts[GRAPH] = _with_engines(texts[GRAPH], ENGINES)
    files = {f"schemas/{name}.json": _schema(name) for name in ("graph", "engines")}
    files |= {name: _with_schema(text, f"schemas/{Path(name).stem}.json") for name, text in texts.items()}
    files[PROBLEMS] = EXAMPLE
    if there := [name for name in files if (folder / name).exists()]:
        raise UsageError(f"{folder / there[0]}: file exists; choose another folder")
    for name, text in files.items():
        _write(folder / name, text)
        print_line(str(folder / name))
    print_line(f"next: pipeline run {folder / GRAPH} --input {folder / PROBLEMS} --output {folder / 'runs/first'}")


def schema_of(file: str) -> dict[str, Any]:
    """The schema of one kind of file, by its name in `SCHEMAS`."""
    if file == STUDY:
        return struct_schema(StudySpec, "study file")
    if file in TRAINING:
        return struct_schema(CONFIGS[TRAINING[file]], f"{file} file")
    return json_schema(cast(FileName, file), stage_specs(), engine_specs())


def _schema(file: str) -> str:
    return msgspec.json.format(msgspec.json.encode(schema_of(file)), indent=2).decode() + "\n"


def _with_engines(text: str, engines: str) -> str:
    """The text of a graph that names this engines file."""
    lines = [f"engines: {engines}" if line.startswith("engines:") else line for line in text.splitlines()]
    return "\n".join(lines) + "\n"


def _with_schema(text: str, schema: str) -> str:
    """The text of a YAML file whose first line tells editors its schema."""
    rest = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("# yaml-language-server:"))
    return HINT.format(schema=schema) + rest


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise UsageError(f"{path}: not writable: {reason(error)}") from error
