"""The documentation: its commands and programs run, its links lead somewhere, its site is built without a warning, its examples run.

How the blocks of a page are run: `tests/support/pages.py`. The commands of the README are run by `tests/test_wheel.py`.
"""

import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import nbformat
import pytest

from pipeline.cli.main import cli
from tests.support.commands import pipeline
from tests.support.pages import Page, newcomers_folder, run_page
from tests.support.paths import ROOT

SITE = ROOT / "docs/pages"
PAGES = [Page.read(path) for path in sorted(SITE.rglob("*.md"))]
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(page.path for page in PAGES), *ROOT.glob("bench/*.md"), *ROOT.glob("graphs/*.md")]
QUIET = {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
"""Of what the next versions of the packages will be."""
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
SCRIPTS = sorted((ROOT / "examples").glob("own_*.py"))
README = Page.read(ROOT / "README.md")
SHOWN = "run speccot --input datasets/arith/test.parquet --limit 30 --quiet"
COMMANDS = [(page.name, line) for page in PAGES for line in page.commands()]


def found(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that these words name, and the words after its name."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words:
        inner = command.get_command(click.Context(command), words[0])
        assert inner is not None, words[0]
        command, words = inner, words[1:]
    return command, words


def test_commands_are_understood() -> None:
    wrong = []
    for page, line in COMMANDS:
        command, words = found(shlex.split(line, comments=True)[1:])
        try:
            command.make_context(line, words)
        except click.ClickException as error:
            wrong.append((page, line, error.message))
    assert wrong == []
    assert len(COMMANDS) > 40


def test_options_that_sentences_name_exist() -> None:
    wrong = []
    for text in TEXTS:
        for said in re.findall(r"`pipeline ([a-z][^`\n]*)`", text.read_text()):
            command, words = found([word for word in said.split() if not word.startswith("-")][:1] + said.split()[1:])
            known = {name for param in command.params for name in param.opts} | {"-h", "--help"}
            wrong += [(text.name, said, word) for word in words if re.match(r"-{1,2}[a-z]", word) and word not in known]
    assert wrong == []


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.parametrize("page", [page for page in PAGES if page.is_run], ids=lambda page: page.name)
@pytest.mark.usefixtures("torch_here")
def test_what_a_page_shows_runs(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.syspath_prepend(tmp_path)
    assert run_page(page, newcomers_folder(tmp_path)) > 0


def test_every_link_leads_somewhere() -> None:
    """On a page of the site, to another of its pages."""
    wrong = []
    for text in TEXTS:
        prose = re.sub(r"```.*?```", "", text.read_text(), flags=re.DOTALL)
        links = [link for link in re.findall(r"\]\(([^)#\s]+)", prose) if "://" not in link and not link.startswith("mailto:")]
        on_site = text.is_relative_to(SITE)
        for link in links:
            there = (text.parent / link).resolve()
            if not there.exists() or (on_site and not there.is_relative_to(SITE)):
                wrong.append((text.name, link))
    assert wrong == []


def test_extras_that_are_named_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"(?:speculative-pipeline|\.)\[([\w,]+)\]", "".join(path.read_text() for path in TEXTS))
    assert {extra for names in named for extra in names.split(",")} - {"dev"} <= extras.keys()
    assert named


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    options = ["--strict", "--quiet", "-f", str(ROOT / "docs/mkdocs.yml"), "-d", str(tmp_path / "site")]
    command = [sys.executable, "-m", "mkdocs", "build", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env={**os.environ, **QUIET})
    assert (done.returncode, done.stderr) == (0, "")
    for page in PAGES:
        assert (tmp_path / "site" / page.path.relative_to(SITE).with_suffix(".html")).stat().st_size > 5000, page.name


@pytest.mark.torch
@pytest.mark.usefixtures("torch_here")
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(notebook: Path) -> None:
    """Cell by cell, in this process; a cell of a real kernel: `tests/test_api.py`."""
    names: dict[str, object] = {}
    cells = [cell.source for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]
    for source in cells:
        exec(source, names)
    assert len(cells) > 1


@pytest.mark.torch
@pytest.mark.usefixtures("torch_here")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_solves_what_it_shows(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.endswith("100% right\n")


# The README: short, and what it shows is so.


def test_the_readme_is_short() -> None:
    assert len(README.text.splitlines()) <= 100


@pytest.mark.torch
@pytest.mark.usefixtures("torch_here")
def test_the_answer_is_one_that_show_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shown,) = [block.body for block in README.blocks if block.language == "text"]
    (problem,) = re.findall(r"`(arith-test-\d+)`", README.text)
    monkeypatch.setenv("COLUMNS", "140")
    done = pipeline(*SHOWN.split(), "--output", tmp_path / "shown")
    assert done.returncode == 0, done.stderr
    assert without_measures(shown) in without_measures(pipeline("show", tmp_path / "shown", problem, "--candidates").stdout)


def without_measures(text: str) -> str:
    """What `show` prints, without times and shares, which differ from machine to machine, and without the blanks at line ends."""
    return "\n".join(re.sub(r"\d[\d.,e-]*( m?s\b| ?%)", "N", line).rstrip() for line in text.splitlines())


def test_make_has_the_targets_that_it_names() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = re.findall(r"\bmake (\w+)", README.text)
    assert "run" in named
    assert [target for target in named if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_no_text_installs_the_project_of_another_that_is_called_pipeline() -> None:
    folders = [path for folder in ("pipeline", "graphs", "bench", "tools") for path in (ROOT / folder).rglob("*")]
    texts = [path for path in folders if path.suffix in (".py", ".md", ".yaml")]
    texts += [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    stranger = re.compile(r"(?<![\w./-])pipeline\[\w|pip install \S*\bpipeline\b(?<!speculative-pipeline)")
    assert [str(path.relative_to(ROOT)) for path in texts if stranger.search(path.read_text())] == []
