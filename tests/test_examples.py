"""The scripts in examples/ run, and their answers are right."""

import runpy
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.torch
@pytest.mark.usefixtures("torch_here")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_solves_what_it_shows(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.endswith("100% right\n")


def test_one_s_own_engine_is_short() -> None:
    source = (ROOT / "examples/own_engine.py").read_text()
    assert source.partition("class Generate:")[2].partition("if __name__")[0].count("\n") < 50
