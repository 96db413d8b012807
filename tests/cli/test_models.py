"""`--model ROLE=MODEL`: what is chosen, printed and recorded, and what is refused."""

import json
from pathlib import Path

import pytest

from pipeline.store.run_file import RunFile
from tests.support.commands import pipeline
from tests.support.paths import TEST_SET

SMALL = ("--model", "target=bundled:tiny-target", "--model", "draft=bundled:tiny-draft")
PAIR = ("--model", "target=Qwen/QwQ-32B", "--model", "draft=deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")


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
        ((*SMALL, "--engines", "sim-2xh100"), "which loads no model; leave out --model, or --engines"),
    ],
)
def test_what_cannot_be_chosen_is_one_error(arguments: tuple[str, ...], said: str) -> None:
    done = pipeline("graph", "check", "speccot", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_all_that_is_wrong_with_the_models_is_told_at_once() -> None:
    done = pipeline("graph", "check", "speccot", "--model", "target=http://127.0.0.1:1")
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert "must include the path, up to /v1: target=http://127.0.0.1:1/v1" in first
    assert "speccot also needs a model for draft" in second


def test_a_graph_is_planned_for_a_machine_that_this_is_not_and_the_plan_is_an_engines_file(tmp_path: Path) -> None:
    path = tmp_path / "engines.yaml"
    done = pipeline("doctor", "speccot", "--as", "2xH100-80GB", *PAIR, "-o", path)
    assert done.returncode == 0, done.stderr
    for part in (
        "2 x H100-80GB, assumed",
        "GPU 0-1",
        "memory plan, GiB",
        "take turns unless CUDA MPS is running",
        "Every role could start.",
    ):
        assert part in " ".join(done.stdout.split())
    assert f"To run it: pipeline run speccot --engines {path} --input FILE" in done.stdout
    assert "such that these models fit there together" in path.read_text().replace("\n# ", " ")
    again = pipeline("doctor", "speccot", "--engines", path, "--as", "2xH100-80GB", "--json")
    assert again.returncode == 0, again.stderr
    told = json.loads(again.stdout)
    assert told["machine"]["assumed"]
    assert {row["role"]: row["share"] for row in told["memory"]}.keys() == {"target", "draft"}


def test_an_engines_file_is_examined_for_another_machine() -> None:
    assert pipeline("doctor", "qwq-r1_1.5b-2x80gb", "--as", "2xA100-80GB").returncode == 0
    done = pipeline("doctor", "qwq-r1_1.5b-2x80gb", "--as", "1xA100-80GB")
    assert done.returncode == 2
    assert "it needs GPU 1, but this machine has GPU 0" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--as", "2xH10000"), "unknown GPU"),
        (("--as", "1xRTX4090-24GB", "speccot", *PAIR), "do not fit on 1 x RTX4090-24GB of 24.0 GiB with room for one context each"),
        (PAIR, "--model: only with a graph; name it too"),
        (("speccot", "-o", "engines.yaml"), "writes the engines that are chosen for --model; give those too"),
    ],
)
def test_a_plan_that_cannot_be_made_is_one_error(arguments: tuple[str, ...], said: str) -> None:
    done = pipeline("doctor", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.torch
@pytest.mark.usefixtures("torch_here")
def test_a_run_on_named_models_is_resumed_and_examined_on_the_engines_that_were_chosen(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = pipeline("run", "speccot", *SMALL, "--input", TEST_SET, "--limit", "8", "--output", run)
    assert done.returncode == 0, done.stderr
    assert "engines: target bundled:tiny-target (torch, " in done.stderr
    assert pipeline("resume", run, "--limit", "12").returncode == 0
    recorded = json.loads((run / "run.json").read_text())
    assert recorded["totals"]["chains_done"] == 12
    assert RunFile.read(run).engines["target"]["model"] == "bundled:tiny-target"
    examined = pipeline("doctor", run)
    assert examined.returncode == 0, examined.stderr
    assert "torch bundled:tiny-target:" in examined.stdout
    assert "Every role could start." in examined.stdout
