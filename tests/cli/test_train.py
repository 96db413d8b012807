"""`pipeline train`: help without heavy packages, errors in one sentence with their exit codes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import pipeline
from tests.support.paths import ROOT
from tests.support.patience import HANGS_S
from tests.support.training_data import write_config

HEAVY = {"torch", "transformers", "trl", "peft", "accelerate", "datasets"}


@pytest.mark.slow
def test_help_loads_no_heavy_package() -> None:
    words = ["train", "select", "--help"]
    code = f"import sys\nfrom pipeline.cli.main import run_command\nrun_command({words!r})\nprint('\\n', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S)
    said, _, modules = done.stdout.rpartition("\n ")
    assert "Usage: " in said
    assert {name.partition(".")[0] for name in modules.split()}.isdisjoint(HEAVY)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("model=bundled:tiny-tarket", "model: bundled:tiny-tarket: no bundled model is named 'tiny-tarket' (did you mean `tiny-target`?)"),
        ("data=[none.jsonl]", "none.jsonl: no such file"),
        ("max_length=5000", "max_length: is 5,000, and bundled:tiny-target was made for 4,096 tokens"),
        ("output=docs", "docs: already exists; add --resume to continue, or choose another folder with --output"),
    ],
)
def test_what_does_not_fit_is_said_before_the_model_is_loaded(tmp_path: Path, setting: str, says: str) -> None:
    (tmp_path / "data.jsonl").write_text("{}\n")
    config = write_config(tmp_path / "train.yaml", model="bundled:tiny-target", data=[str(tmp_path / "data.jsonl")], output="out")
    done = pipeline("train", "select", config, "--set", setting)
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr
