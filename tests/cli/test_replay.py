"""`--engines replay:RUN` on the command line: what is said, what is counted, and the exit codes."""

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.support.commands import pipeline

SPECREASON, SIM = "graphs/specreason.yaml", "graphs/engines/sim-2xh100.yaml"


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("input") / "problems.jsonl"
    path.write_text("".join(json.dumps({"problem_id": f"p{i}", "problem": f"What is {i} + {i}?"}) + "\n" for i in range(8)))
    return path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, problems: Path) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "run"
    done = pipeline("run", SPECREASON, "--engines", SIM, "--input", problems, "--seed", "7", "--output", folder)
    assert done.returncode == 0, done.stderr
    return folder


def replay(recorded: Path, problems: Path, out: Path, *options: str) -> CompletedProcess[str]:
    return pipeline("run", SPECREASON, "--engines", f"replay:{recorded}", "--input", problems, "--output", out, *options)


def test_a_recorded_run_is_run_again(recorded: Path, problems: Path, tmp_path: Path) -> None:
    done = replay(recorded, problems, tmp_path / "out", "--seed", "7", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["done"] == 8
    assert "never generated" not in done.stderr
    card = json.loads((tmp_path / "out/run.json").read_text())
    assert card["options"]["engines"] == f"replay:{recorded}"
    assert {engine["run"] for engine in card["engines"].values()} == {str(recorded)}


def test_what_was_never_generated_is_counted(recorded: Path, problems: Path, tmp_path: Path) -> None:
    done = replay(recorded, problems, tmp_path / "out", "--seed", "7", "--set", "threshold=9", "--set", "method=expected")
    assert done.returncode == 3
    assert "8 of 8 chains: 8 NeverGenerated; " in done.stdout
    assert "replay: 8 of 8 chains needed text that was never generated, first at stage fallback 8" in done.stderr.splitlines()
    grouped = pipeline("show", tmp_path / "out", "--failed")
    assert "8 x NeverGenerated (in fallback): needs text that was never generated: the recorded run made no such call" in grouped.stdout


def test_check_says_what_is_replayed(recorded: Path) -> None:
    done = pipeline("graph", "check", SPECREASON, "--engines", f"replay:{recorded}")
    assert done.returncode == 0
    assert "draft: replay DeepSeek-R1-Distill-Qwen-1.5B" in done.stdout
    missing = pipeline("graph", "check", SPECREASON, "--engines", "replay:nothing/there")
    assert missing.returncode == 2
    assert missing.stderr.startswith("error: ")
    assert "nothing/there/run.json: cannot be read: no such file or directory; expected a run folder" in missing.stderr
