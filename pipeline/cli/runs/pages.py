"""`pipeline view [RUN|DIR]`: runs as pages for a browser on this machine, or as one HTML file."""

import webbrowser
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click

from pipeline.cli.commands import check_output, command, option, overwrite_option
from pipeline.cli.located import Located, RunFolder
from pipeline.cli.terminal import print_line
from pipeline.errors import MissingExtra, UsageError
from pipeline.files import whole_file
from pipeline.store.query import check_readable

PORT = 8642
PACKAGES = ("latex2mathml", "starlette", "uvicorn")
"""Those of the extra `view`."""


@command()
@click.argument("runs", type=RunFolder(), nargs=-1, metavar="[RUN|DIR]...")
@option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write one HTML file that needs no server.")
@overwrite_option
@option(
    "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, metavar="PORT", help="Port on 127.0.0.1; 0: any free one."
)
@option("--open", "opens", is_flag=True, help="Open the page in the browser.")
def view(runs: tuple[Located, ...], output: Path | None, overwrite: bool, port: int, opens: bool) -> None:
    """Show RUN, or the runs in DIR (default: runs), in a browser, also while they go on.

    With -o the page of RUN, of several runs with their comparison, or of a sweep becomes a file. Otherwise pages are served to this machine
    alone until Ctrl-C. Nothing in RUN or DIR changes.
    """
    runs = runs or (Located(Path("runs")),)
    folders = [run.path for run in runs]
    if output is not None:
        check_output(output, overwrite)
        check_readable(*folders)
        write_page(folders, output)
        print_line(f"page: {output} ({output.stat().st_size / 1e6:.1f} MB); open it in a browser")
        return
    if len(runs) > 1:
        raise UsageError("several runs are compared in a file: add -o FILE, or name one folder")

    def opened(url: str) -> None:
        print_line(f"view: {runs[0]} at {url} (Ctrl-C ends it)")
        if opens:
            webbrowser.open(url)

    load("pages").serve_view(folders[0], port, opened)


def write_page(folders: Sequence[Path], output: Path) -> None:
    """Write the page of runs, or of a sweep, over any file of that name; raises as `load`, and `OSError`."""
    text = load("report").report(folders)
    with whole_file(output) as file:
        file.write(text.encode(errors="backslashreplace"))


def load(name: str) -> ModuleType:
    """Import the module `pipeline.show.NAME`; raises `MissingExtra` where a package of the extra `view` is missing."""
    try:
        return import_module(f"pipeline.show.{name}")
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in PACKAGES:
            raise
        raise MissingExtra("view", package, "view") from error
