"""`pipeline export RUN -o FILE`: the answers of a run as JSON lines, CSV or Parquet, a table of its trace, or training data."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from pipeline.cli.located import RunFolder, problems_of
from pipeline.cli.main import print_line, print_page
from pipeline.cli.runs.folder import print_flaws
from pipeline.cli.terminal.places import LocalPath
from pipeline.errors import RunFolderError, UsageError, boundary
from pipeline.export.answers import answer_rows
from pipeline.export.answers_file import form_of, write_answers, write_batches
from pipeline.export.output import check_output
from pipeline.trace.columns import schema_of
from pipeline.trace.conform import ROWS
from pipeline.trace.read import check_folder, read_whole
from pipeline.training.held_out import HeldOutProblems
from pipeline.training.labels import SOURCES
from pipeline.training.write import FORMATS, Wanted, write_training_data


@click.command()
@click.argument("runs", type=RunFolder(), nargs=-1, required=True, metavar="RUN")
@click.option(
    "-o",
    "--output",
    type=LocalPath(allow_dash=True),
    required=True,
    metavar="FILE",
    help="Output file: .jsonl, .csv (optionally .gz) or .parquet; - for JSON lines on stdout.",
)
@click.option("--table", type=click.Choice(list(ROWS)), help="Export this table of the run folder instead of the answers.")
@click.option("--thoughts", is_flag=True, help="Include the thought behind each answer.")
@click.option("--format", type=click.Choice(FORMATS), help="Export training data of this format, of one RUN or several.")
@click.option("--tokens", is_flag=True, help="Training data: token ids instead of text.")
@click.option("--correct", is_flag=True, help="Training data: only chains whose answer is right.")
@click.option(
    "--validation",
    type=click.FloatRange(0.0, 1.0, max_open=True),
    default=0.1,
    show_default=True,
    help="Training data: share of the problems in the validation split.",
)
@click.option(
    "--test-set", "test_sets", multiple=True, metavar="INPUT", help="Training data: refuse runs with a problem of these inputs. Repeatable."
)
@click.option(
    "--completion",
    type=click.Choice(["thought", "response"]),
    default="thought",
    show_default=True,
    help="sft: the completion, the thought or the thought and the answer.",
)
@click.option("--engine", metavar="ROLE", help="sft: role of the model to be trained.  [default: draft, or the only role]")
@click.option(
    "--model", metavar="MODEL", help="sft: model to be trained, if it was no engine of the run: folder, hub name or bundled:NAME."
)
@click.option(
    "--labels",
    type=click.Choice(SOURCES),
    help="selection: what decides which options are right.  [default: answers for thoughts; rewards, or else verdicts, for steps]",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def export(runs: tuple[Path, ...], output: Path, table: str | None, thoughts: bool, force: bool, debug: bool, **training: Any) -> None:
    """Export the answers of the run folder RUN, one row for each problem, in the order of the input.

    A row has all input columns, the answer and whether it is correct; with several samples also their votes, and the answer is the
    majority's. Input columns with conflicting names get the prefix input_.

    --table exports a table of the trace, rows of write-ahead files included: also of a run that goes on, for programs that read Parquet.

    --format exports training data: sft has what the chains wrote, as prompt and completion; selection has every verification that is
    answered with one token, with all right options; preference has every rejected draft beside the step written instead. A row says which
    run it comes from, and its split, which the problem's text decides.
    """
    for run in runs:
        check_folder(run)
    print_flaws(runs)
    if training["format"] is not None:
        _export_training_data(runs, output, force, "--table" if table else "--thoughts" if thoughts else None, training)
        return
    _check_unused(training)
    if len(runs) > 1:
        raise UsageError(f"{runs[1]}: one run at a time; several are for --format")
    _export_run(runs[0], output, table, thoughts, force)


def _export_run(run: Path, output: Path, table: str | None, thoughts: bool, force: bool) -> None:
    if table is not None:
        _export_table(run, table, output, thoughts, force)
        return
    rows = answer_rows(run, thoughts=thoughts)
    if str(output) == "-":
        for row in rows:
            print_page(msgspec.json.encode(row, enc_hook=str))
        return
    form_of(output)
    check_output(output, force)
    with boundary(RunFolderError, str(output), foreign=OSError):
        count = write_answers(output, rows)
    print_line(f"{output}: {count:,} problems")


def _export_table(run: Path, table: str, output: Path, thoughts: bool, force: bool) -> None:
    if thoughts or str(output) == "-":
        raise UsageError(f"--table: does not go with {'--thoughts' if thoughts else '-o -'}; name a file")
    form_of(output)
    check_output(output, force)
    row = ROWS[table]
    with boundary(RunFolderError, str(output), foreign=OSError):
        count = write_batches(output, schema_of(row), read_whole(run, row, table))
    print_line(f"{output}: {count:,} rows")


FOR_ONE_FORMAT = {"completion": "sft", "engine": "sft", "model": "sft", "labels": "selection"}
"""Options of training data that only one format has."""


def _given(name: str) -> bool:
    """Whether an option of the command that runs was given."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _check_unused(training: Iterable[str]) -> None:
    """Raise `UsageError` for an option of training data where none is asked for."""
    for name in training:
        if _given(name):
            option = name.removesuffix("s").replace("_", "-") if name == "test_sets" else name
            forms = FOR_ONE_FORMAT.get(name, f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
            raise UsageError(f"--{option}: is for training data; add --format {forms}")


def _export_training_data(runs: Sequence[Path], output: Path, force: bool, other: str | None, training: dict[str, Any]) -> None:
    if other is not None or str(output) == "-":
        raise UsageError(f"--format: does not go with {other or '-o -'}; " + ("drop one of them" if other else "name a file"))
    for name, form in FOR_ONE_FORMAT.items():
        if _given(name) and form != training["format"]:
            raise UsageError(f"--{name}: is for --format {form}, not {training['format']}")
    if training["engine"] and training["model"]:
        raise UsageError("--engine and --model: each names the model to be trained; drop one of them")
    form_of(output)
    check_output(output, force)
    held_out = HeldOutProblems({name: problems_of(name) for name in training.pop("test_sets")})
    written = write_training_data(output, runs, Wanted(**training), held_out)
    rows = ", ".join(f"{count:,} {split}" for split, count in sorted(written.rows.items()))
    print_line(f"{output}: {sum(written.rows.values()):,} rows ({rows}) of {written.problems:,} problems")
    for why, count in written.left_out.items():
        print_line(f"left out: {count:,} {why}")
