"""The scripts in examples/ run, and their answers are right."""

import runpy
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SCRIPTS = sorted({*(ROOT / "examples").glob("own_*.py")})


@pytest.mark.torch
@pytest.mark.usefixtures("torch_here")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_solves_what_it_shows(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.endswith("100% right\n")
