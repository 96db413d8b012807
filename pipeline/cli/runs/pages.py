"""`pipeline report RUN...` and `pipeline view [FOLDER]`: runs as one HTML file, or as pages for a browser on this machine."""

import webbrowser
from importlib import import_module
from pathlib import Path

import click

from pipeline.cli.commands import command, option
from pipeline.cli.located import LocalPath, Located, RunFolder
from pipeline.cli.terminal import print_line
from pipeline.errors import MissingExtra
from pipeline.report.extra import PACKAGES, load
from pipeline.store.query import check_readable

PORT = 8642


@command()
@click.argument("runs", type=RunFolder(), nargs=-1, required=True, metavar="RUN...")
@option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Output file.  [default: RUN/report.html; for several runs, or one at a URL, ./report.html]",
)
@option("--chains", type=click.IntRange(0, 1000), metavar="N", default=30, show_default=True, help="Transcripts per run.")
@option("--bins", type=click.IntRange(10, 5000), metavar="N", default=400, show_default=True, help="Time bins of plots.")
def report(runs: tuple[Located, ...], output: Path | None, chains: int, bins: int) -> None:
    """Write tables, plots and transcripts of RUN..., or the curves of a sweep folder, into one self-contained HTML file.

    A report of that name is overwritten, any other file is not.
    """
    page, folders = load("report"), [run.path for run in runs]
    place = page.report_path(folders, output or (Path(page.NAME) if runs[0].url else None))
    check_readable(*folders)
    page.write(place, page.report(folders, page.ReportOptions(chains=chains, bins=bins)))
    print_line(f"report: {place} ({place.stat().st_size / 1e6:.1f} MB); open it in a browser")


@command()
@click.argument("folder", type=LocalPath(), default=Path("runs"), metavar="[FOLDER]")
@option(
    "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, metavar="PORT", help="Port on 127.0.0.1; 0: any free one."
)
@option("--open", "opens", is_flag=True, help="Open the page in the browser.")
def view(folder: Path, port: int, opens: bool) -> None:
    """Show the runs in FOLDER (default: runs), also running ones, as pages for a browser: a list, a run with its chains, a chain by step.

    The pages are for this machine alone, are served until Ctrl-C, and change nothing.
    """

    def opened(url: str) -> None:
        print_line(f"view: {folder} at {url} (Ctrl-C ends it)")
        if opens:
            webbrowser.open(url)

    try:
        server = import_module("pipeline.view.app")
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package in ("starlette", "uvicorn"):
            raise MissingExtra("view", package, "serve") from error
        if package in PACKAGES:
            raise MissingExtra("view", package, "report") from error
        raise
    server.serve_view(folder, port, opened)
