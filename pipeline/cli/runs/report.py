"""`pipeline report RUN...`: one HTML file to read in a browser."""

from pathlib import Path

import click

from pipeline.cli.commands import command, option
from pipeline.cli.located import Located, RunFolder
from pipeline.cli.terminal import print_line
from pipeline.report.extra import load
from pipeline.store.query import check_readable


@command()
@click.argument("runs", type=RunFolder(), nargs=-1, required=True, metavar="RUN...")
@option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Output file.  [default: RUN/report.html; for several runs ./report.html]",
)
@option("--chains", type=click.IntRange(0, 1000), metavar="N", default=30, show_default=True, help="Transcripts per run.")
@option("--bins", type=click.IntRange(10, 5000), metavar="N", default=400, show_default=True, help="Time bins of plots.")
def report(runs: tuple[Located, ...], output: Path | None, chains: int, bins: int) -> None:
    """Write tables, plots and transcripts of RUN..., or the curves of a sweep folder, into one self-contained HTML file.

    A report of that name is overwritten, any other file is not.
    """
    page, folders = load("report"), [run.path for run in runs]
    place = page.report_path(folders, output)
    check_readable(*folders)
    page.write(place, page.report(folders, page.ReportOptions(chains=chains, bins=bins)))
    print_line(f"report: {runs[0].name(place)} ({place.stat().st_size / 1e6:.1f} MB); open it in a browser")
