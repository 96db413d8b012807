"""`pipeline view [FOLDER]`: the runs of a folder as pages for a browser on this machine."""

import webbrowser
from importlib import import_module
from pathlib import Path

import click

from pipeline.cli.commands import command, option
from pipeline.cli.located import LocalPath
from pipeline.cli.terminal import print_line
from pipeline.errors import MissingExtra
from pipeline.report.extra import PACKAGES

PORT = 8642


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
