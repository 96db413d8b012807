"""The wheel, installed into an environment of its own that sees no checkout: it brings all files, the commands of README and help run."""

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

from tests.support.pages import Page, newcomers_folder
from tests.support.paths import ROOT
from tests.support.patience import HANGS_S

README = Page.read(ROOT / "README.md")
BUNDLED = {"Qwen/QwQ-32B": "bundled:tiny-target", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": "bundled:tiny-draft"}
"""What plays the roles where the models of README.md cannot be had."""
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
WHERE = "import pipeline; print(pipeline.__file__)"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing but the wheel is installed; packages that it needs are those of the environment that runs the tests, without its own links to
    a checkout, as a line of a `.pth` file adds a folder and does not read the `.pth` files in it."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "clean")
    pip = [sys.executable, "-m", "pip", "--python", folder / "clean/bin/python", "install", "-qq", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--disable-pip-version-check", wheel], check=True)
    (site(folder / "clean") / "needed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder / "clean"


def site(environment: Path) -> Path:
    """Where the packages of the environment are."""
    (found,) = environment.glob("lib/python*/site-packages")
    return found


def installed(environment: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A program of the environment, run in `folder` without the network."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    known |= {"PATH": f"{environment / 'bin'}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANGS_S, env=known)


@pytest.mark.torch
def test_the_commands_of_the_readme_run_where_only_the_wheel_is_installed(environment: Path, tmp_path: Path) -> None:
    script = "\n".join(["set -e", f'python -c "{WHERE}"', *README.commands(), "pipeline --version"])
    for theirs, ours in BUNDLED.items():
        script = script.replace(theirs, ours)
    assert "--model" in script
    done = installed(environment, newcomers_folder(tmp_path), "bash", "-c", script)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.startswith(str(environment))
    assert done.stdout.endswith(f"version {VERSION}\n")
    assert (tmp_path / "answers.csv").exists()


def test_the_example_in_the_help_is_that_of_the_readme(environment: Path, tmp_path: Path) -> None:
    example = installed(environment, tmp_path, "pipeline", "--help").stdout.partition("Example:\n")[2].partition("\n\n")[0]
    shown = [line.strip() for line in example.splitlines()]
    assert any("pipeline run speccot" in line for line in shown)
    assert shown == [line for line in README.commands() if line in shown]


def test_commands_of_a_wheel_find_what_is_bundled(environment: Path, tmp_path: Path) -> None:
    """One after the other in one process."""
    (tmp_path / "problems.csv").write_text("problem\nWhat is 1 + 1?\n")
    (tmp_path / "mine.yaml").write_text((ROOT / "graphs/specreason.yaml").read_text())
    problems = ("--input", "problems.csv", "--engines", "sim-instant")
    commands = {
        ("graph", "check", "speccot"): "torch bundled:tiny-target",
        ("doctor",): "installed: python",
        ("list", "data"): "gsm8k",
        ("prepare", "arith"): "data/arith.parquet: 500 problems",
        ("run", "speccot", *problems, "--output", "run"): "1 of 1 solved",
        ("sweep", "mine.yaml", *problems, "--batch-size", "1", "--output", "sweep"): "2/2 ",
    }
    code = f"from pipeline.cli.main import run_command\nassert [run_command(words) for words in {[*map(list, commands)]}] == [0] * 6"
    done = installed(environment, tmp_path, "python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert [words for words in commands.values() if words not in done.stdout + done.stderr] == []


def test_a_wheel_says_what_it_is_and_brings_the_models(environment: Path) -> None:
    here, there = (
        {path.relative_to(root) for path in (root / "pipeline/models").rglob("*") if path.is_file()} for root in (ROOT, site(environment))
    )
    assert here == there
    (about,) = site(environment).glob("speculative_pipeline-*.dist-info")
    metadata = (about / "METADATA").read_text()
    assert "\nName: speculative-pipeline\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "URL" not in metadata.partition("\n\n")[0]
    assert (about / "licenses/LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert (site(environment) / "pipeline/py.typed").exists()
