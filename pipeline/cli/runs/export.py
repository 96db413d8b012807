"""`pipeline export RUN -o FILE`: the answers of a run as JSON lines, CSV or Parquet."""

from functools import partial
from pathlib import Path

import click
import msgspec

from pipeline.cli.located import RunFolder
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


@click.command()
@click.argument("run", type=RunFolder(), metavar="RUN")
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
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def export(run: Path, output: Path, table: str | None, thoughts: bool, force: bool, debug: bool) -> None:
    """Export the answers of the run folder RUN, one row for each problem, in the order of the input.

    A row has all input columns, the answer and whether it is correct; with several samples also their votes, and the answer is the
    majority's. Input columns with conflicting names get the prefix input_.

    --table exports a table of the trace, rows of write-ahead files included: also of a run that goes on, for programs that read Parquet.
    """
    check_folder(run)
    print_flaws([run])
    if table is not None:
        _export_table(run, table, output, thoughts, force)
        return
    rows = partial(answer_rows, run, thoughts=thoughts)
    if str(output) == "-":
        for row in rows():
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
