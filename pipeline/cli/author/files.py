"""`pipeline graph schema`: what editors know about the files of this package."""

from pathlib import Path
from typing import Any, cast, get_args

import click
import msgspec

from pipeline.cli.commands import command, option
from pipeline.cli.terminal import print_line, print_page
from pipeline.errors import UsageError, reason
from pipeline.graph.plugins import engine_specs, stage_specs
from pipeline.graph.schema import FileName, json_schema, struct_schema
from pipeline.sweep.study_file import StudySpec
from pipeline.training.lora.config import CONFIGS, Task

TRAINING: dict[str, Task] = {"training-draft": "draft", "training-select": "select"}
STUDY = "study"
SCHEMAS = (*get_args(FileName), *TRAINING, STUDY)
"""Files that have a schema."""


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


def schema_of(file: str) -> dict[str, Any]:
    """The schema of one kind of file, by its name in `SCHEMAS`."""
    if file == STUDY:
        return struct_schema(StudySpec, "study file")
    if file in TRAINING:
        return struct_schema(CONFIGS[TRAINING[file]], f"{file} file")
    return json_schema(cast(FileName, file), stage_specs(), engine_specs())


def _schema(file: str) -> str:
    return msgspec.json.format(msgspec.json.encode(schema_of(file)), indent=2).decode() + "\n"


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise UsageError(f"{path}: not writable: {reason(error)}") from error
