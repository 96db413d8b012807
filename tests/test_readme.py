"""The README: short, and what it shows is so. Its commands are run by `tests/test_wheel.py`."""

import re
from pathlib import Path

import pytest

from tests.support.commands import pipeline
from tests.support.pages import Page
from tests.support.paths import ROOT

README = Page.read(ROOT / "README.md")
SHOWN = "run speccot --input datasets/arith/test.parquet --limit 30 --quiet"


def test_it_is_short() -> None:
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
