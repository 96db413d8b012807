"""`pipeline compare RUN...`: the tables that the papers print, from run folders alone."""

from pathlib import Path

import click

from pipeline.analysis.compare import compare as compared
from pipeline.analysis.compare_tables import as_csv, as_json, markdown
from pipeline.analysis.runs import read_run
from pipeline.cli.main import show
from pipeline.plain import harmless

FORMATS = {"markdown": markdown, "csv": as_csv, "json": as_json}


@click.command()
@click.argument("runs", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="RUN...")
@click.option("--baseline", metavar="RUN|GRAPH", help="What speed-ups and gains are over.  [default: graph `target`, or the first run]")
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="markdown", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write there instead of printing.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def compare(runs: tuple[Path, ...], baseline: str | None, form: str, output: Path | None, debug: bool) -> None:
    """Compare the run folders RUN... over the same data. Exit code 2 when they cannot be compared."""
    text = FORMATS[form](compared([read_run(run) for run in runs], baseline))
    if output is None:
        show(text)
    else:
        output.write_text(harmless(text))
