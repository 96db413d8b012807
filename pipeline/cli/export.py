"""`pipeline export RUN -o FILE`: the answers of a run as JSON lines, CSV or Parquet."""

import sys
from functools import partial
from pathlib import Path

import click

from pipeline.cli.folder import print_flaws
from pipeline.cli.main import print_line
from pipeline.errors import RunFolderError, boundary
from pipeline.export.answers import answer_rows
from pipeline.export.answers_file import form_of, write_answers, write_json_lines
from pipeline.export.output import check_output
from pipeline.trace.read import check_folder


@click.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, allow_dash=True),
    required=True,
    metavar="FILE",
    help="Output file: .jsonl, .csv (optionally .gz) or .parquet; - for JSON lines on stdout.",
)
@click.option("--thoughts", is_flag=True, help="Include the thought behind each answer.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def export(run: Path, output: Path, thoughts: bool, force: bool, debug: bool) -> None:
    """Export the answers of the run folder RUN, one row for each problem, in the order of the input.

    A row has all input columns, the answer and whether it is correct; with several samples also their votes, and the answer is the
    majority's. Input columns with conflicting names get the prefix input_.
    """
    check_folder(run)
    print_flaws([run])
    rows = partial(answer_rows, run, thoughts=thoughts)
    if str(output) == "-":
        write_json_lines(sys.stdout.buffer, rows())
        return
    form_of(output)
    check_output(output, force)
    with boundary(RunFolderError, str(output), foreign=OSError):
        count = write_answers(output, rows)
    print_line(f"{output}: {count:,} problems")
