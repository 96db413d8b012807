"""The documentation is built without a warning, its commands exist with the options that it gives them, and its notebooks run."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import nbformat
import pytest

from pipeline.cli.main import cli
from tests.support.paths import ROOT

PAGES = sorted((ROOT / "docs/pages").rglob("*.md"))
QUIET = {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
"""Of what the next versions of the packages will be."""
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
book = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(book, timeout=300, kernel_name="python3").execute()
nbformat.write(book, sys.argv[2])
"""
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def commands(page: Path) -> Iterator[str]:
    """The `pipeline` commands in the code blocks of a page, each on one line."""
    for block in re.findall(r"^ *```[^\n]*\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip().startswith("pipeline ") and "..." not in line:
                yield line.strip().partition("   #")[0]


ALL = [(page.relative_to(ROOT).as_posix(), line) for page in PAGES for line in commands(page)]


@pytest.mark.parametrize(("page", "line"), ALL, ids=lambda value: value)
def test_commands_are_understood(page: str, line: str) -> None:
    _, name, *arguments = shlex.split(line, comments=True)
    context = click.Context(cli, info_name="pipeline")
    command = cli.get_command(context, name)
    assert command is not None, name
    if isinstance(command, click.Group):
        inner = command.get_command(context, arguments[0])
        assert inner is not None
        command, arguments = inner, arguments[1:]
    command.make_context(name, arguments)


def test_there_are_commands() -> None:
    assert len(ALL) > 20


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "-f",
        str(ROOT / "docs/mkdocs.yml"),
        "-d",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env={**os.environ, **QUIET})
    assert (done.returncode, done.stderr) == (0, "")
    for page in (
        "index",
        "reference/commands",
        "reference/graph",
        "reference/engines",
        "reference/training",
        "reference/run-folder",
        "reference/api",
    ):
        assert (tmp_path / f"site/{page}.html").stat().st_size > 5000, page


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(notebook: Path, tmp_path: Path) -> None:
    """In a process of its own: a kernel that this one started would be waited for, and its time counted, in a later test."""
    done = subprocess.run([sys.executable, "-c", EXECUTE, notebook, tmp_path / "done.ipynb"], cwd=ROOT, timeout=300)
    assert done.returncode == 0
    book = nbformat.read(tmp_path / "done.ipynb", as_version=4)
    assert all(cell.get("outputs") or cell.cell_type == "markdown" or place < 2 for place, cell in enumerate(book.cells))
