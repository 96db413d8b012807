"""`pipeline report RUN...`: one HTML file to read in a browser."""

from pathlib import Path

import click

from pipeline.cli.located import RunFolder
from pipeline.cli.main import print_line
from pipeline.cli.runs.folder import print_flaws
from pipeline.report.extra import load


@click.command()
@click.argument("runs", type=RunFolder(), nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Output file.  [default: RUN/report.html; for several runs ./report.html]",
)
@click.option("--chains", type=click.IntRange(0, 1000), default=30, show_default=True, help="Number of transcripts per run.")
@click.option("--bins", type=click.IntRange(10, 5000), default=400, show_default=True, help="Number of time bins.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def report(runs: tuple[Path, ...], output: Path | None, chains: int, bins: int, debug: bool) -> None:
    """Write tables, plots and transcripts of RUN..., or the curves of a sweep folder, into one self-contained HTML file.

    An earlier report of that name is overwritten, any other file is not.

    Exit codes: 0 written; 2 a RUN cannot be read, or FILE cannot be written.
    """
    page = load("report")
    place = page.report_path(runs, output)
    print_flaws(runs)
    page.write(place, page.report(runs, page.ReportOptions(chains=chains, bins=bins)))
    print_line(f"report: {place} ({place.stat().st_size / 1e6:.1f} MB); open it in a browser")
