"""Figures of the docs are those of their results files, and pages are as their scripts wrote them."""

import re
from functools import cache
from pathlib import Path

import pytest
from click import ClickException
from msgspec import structs

from bench import figures, runs, sharing
from bench.gpu import page as gpu_page
from pipeline.options import RunOptions
from pipeline.run.run import run
from tests.support.paths import ROOT, SIM
from tests.support.runs import write_problems

UNITS = r"(?:%|s|us|ms|MB|MiB|GiB|times|points|minutes|tokens/s|problems/s|requests/s)"
FIGURE = re.compile(rf"(?<![\w@=<>.-])\d[\d.,]*\s?{UNITS}(?![\w/])")
DOCS = [path.relative_to(ROOT).as_posix() for path in figures.docs()]
NOT_YET = {"throughput"}
"""Scripts that take hours and have no results so far."""


@cache
def pages() -> dict[Path, str]:
    """What the pages should be, which takes seconds to make."""
    return figures.pages()


def typed_in(text: str, sentences: bool = True) -> list[str]:
    """Lines with measured figures outside of the markers: of tables, and of sentences; aims and code blocks are none."""
    text = re.sub(r"```.*?```", "", figures.BLOCK.sub("", text), flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith("Aim")]
    return [line for line in lines if re.search(r"^\|.*\| *\d", line) or (sentences and FIGURE.search(line))]


@pytest.mark.parametrize("name", DOCS)
def test_docs_have_what_the_results_files_have_and_no_figure_is_typed_in(name: str) -> None:
    text = (ROOT / name).read_text()
    assert figures.rendered(text) == text, "`python -m bench.figures` writes it"
    assert text.count("<!-- figures:") == len(figures.BLOCK.findall(text)), "a marker is not closed"
    assert typed_in(text, sentences=not name.startswith("docs/")) == []  # a guide says what is set, such as limits


def test_every_results_file_is_declared_and_every_table_shown() -> None:
    written = {path.stem for path in pages()}
    shown = {name for doc in DOCS for name in figures.BLOCK.findall((ROOT / doc).read_text())}
    views = gpu_page.VIEWS.keys() | sharing.VIEWS.keys()
    measured = figures.SCRIPTS.keys() - NOT_YET
    assert {path.stem for path in (ROOT / figures.RESULTS).iterdir()} == measured | {f"gpu-{part}" for part in gpu_page.PARTS}
    assert shown | written == measured | views


def test_pages_are_as_their_scripts_wrote_them() -> None:
    for path, page in pages().items():
        assert path.read_text() == page, "`python -m bench.figures` writes it"


def test_what_is_recorded_is_written_into_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["servers.py"])
    (tmp_path / figures.RESULTS).mkdir(parents=True)
    (readme := tmp_path / "README.md").write_text("The start.\n\n<!-- figures: servers -->\ntyped in: 2 s\n<!-- /figures -->\n\nThe end.\n")
    figures.render(tmp_path)
    assert "Not measured yet: `python -m bench.servers`" in readme.read_text()
    figures.Recording("servers", tmp_path).write("servers", {"cells": [], "commands": {"vllm": [2.0, 1.0]}})
    assert re.search(
        r"`python -m bench.servers.*` at no commit.*vllm 2.0 s and 1.0 s.\n<!-- /figures -->\n\nThe end", readme.read_text(), re.DOTALL
    )
    readme.write_text("<!-- figures: nonsense -->\n<!-- /figures -->\n")
    with pytest.raises(ClickException, match="figures: nonsense: no such table"):
        figures.render(tmp_path)


@pytest.mark.slow
def test_no_figure_is_made_of_a_run_with_failed_chains(tmp_path: Path) -> None:
    problems = write_problems(tmp_path, 2, (b'{"problem_id": "lost"}',))
    options = RunOptions(graph=ROOT / "graphs/target.yaml", engines=SIM, input=(str(problems),), output=tmp_path / "run")
    with pytest.raises(ClickException, match="run: 1 chains failed; no figure is made of such a run"):
        runs.whole(run(options))
    assert runs.whole(run(structs.replace(options, limit=2, output=tmp_path / "whole"))).done == 2
