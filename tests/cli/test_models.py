"""`--model ROLE=MODEL`: what is chosen, printed and recorded, and what is refused."""

import json
from pathlib import Path

import pytest

from pipeline.store.run_file import RunFile
from tests.support.commands import pipeline
from tests.support.paths import TEST_SET

SMALL = ("--model", "target=bundled:tiny-target", "--model", "draft=bundled:tiny-draft")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_the_engines_that_are_chosen_are_told_in_one_line() -> None:
    done = pipeline("graph", "check", "speccot", *SMALL)
    assert done.returncode == 0, done.stderr
    first = done.stderr.splitlines()[0]
    assert first.startswith("engines: target bundled:tiny-target (")
    assert first.endswith("; prompts: default")
    assert "● target  torch" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "target"), "--model target: expected ROLE=VALUE, such as target=Qwen/QwQ-32B"),
        (("--model", "target=bundled:tiny-target"), "speccot also needs a model for draft; add --model draft=NAME, or give --engines"),
        ((*SMALL, "--model", "judge=bundled:tiny-draft"), "speccot has no role `judge`"),
        (("--model", "target=bundled:tiny", "--model", "draft=bundled:tiny-draft"), "no bundled model is named 'tiny'"),
        ((*SMALL, "--engines", "sim-2xh100"), "change a model of the file by --set engines.ROLE.model=NAME"),
    ],
)
def test_what_cannot_be_chosen_is_one_error(arguments: tuple[str, ...], said: str) -> None:
    done = pipeline("graph", "check", "speccot", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.torch
@pytest.mark.usefixtures("torch_here")
def test_a_run_on_named_models_is_resumed_on_the_engines_that_were_chosen(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = pipeline("run", "speccot", *SMALL, "--input", TEST_SET, "--limit", "8", "--output", run)
    assert done.returncode == 0, done.stderr
    assert "engines: target bundled:tiny-target (torch, " in done.stderr
    assert pipeline("resume", run, "--limit", "12").returncode == 0
    recorded = json.loads((run / "run.json").read_text())
    assert recorded["totals"]["chains_done"] == 12
    assert RunFile.read(run).engines["target"]["model"] == "bundled:tiny-target"
