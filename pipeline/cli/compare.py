"""`pipeline compare RUN...`: the tables that the papers print, from run folders alone."""

from pathlib import Path

import click

from pipeline.analysis.compare import compare as compared
from pipeline.analysis.compare_tables import as_csv, as_json, markdown
from pipeline.analysis.runs import read_runs
from pipeline.errors import UsageError

FORMATS = {"markdown": markdown, "csv": as_csv, "json": as_json}
SUFFIXES = {".md": markdown, ".csv": as_csv, ".json": as_json}


@click.command()
@click.argument("runs", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="RUN...")
@click.option("--baseline", metavar="RUN|GRAPH", help="What speed-ups and gains are over.  [default: graph `target`, or the first run]")
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="markdown", show_default=True, help="What is printed.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Write there too, as its name ends: .md, .csv or .json. May be given several times.",
)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def compare(runs: tuple[Path, ...], baseline: str | None, form: str, output: tuple[Path, ...], debug: bool) -> None:
    """Compare the run folders RUN... over the same data. Exit code 2 when they cannot be compared."""
    for path in output:
        if path.suffix not in SUFFIXES:
            raise UsageError(f"--output {path}: its name must end in {', '.join(SUFFIXES)}")
    comparison = compared(read_runs(runs), baseline)
    for path in output:
        try:
            path.write_text(SUFFIXES[path.suffix](comparison))
        except OSError as error:
            raise UsageError(f"--output {path}: cannot be written: {(error.strerror or str(error)).lower()}") from error
    click.echo(FORMATS[form](comparison), nl=False)
