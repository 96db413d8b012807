"""The wheel, installed into an environment of its own that sees no checkout: it brings all files, README's commands run."""

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.pages import Page, newcomers_folder, run_page
from tests.support.paths import ROOT
from tests.support.patience import HANGS_S

README = Page.read(ROOT / "README.md")
BUNDLED = {"Qwen/QwQ-32B": "bundled:tiny-target", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": "bundled:tiny-draft"}
"""What plays the roles where the models of README.md cannot be had."""
WHERE = "import pipeline; print(pipeline.__file__)"


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


def installed(environment: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command that was installed, run in `folder`."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [environment / "bin/pipeline", *arguments], cwd=folder, capture_output=True, text=True, timeout=HANGS_S, env=known
    )


@pytest.mark.slow
@pytest.mark.torch
def test_the_commands_of_the_readme_run_where_only_the_wheel_is_installed(environment: Path, tmp_path: Path) -> None:
    script = "\n".join([f'python -c "{WHERE}"', *README.commands(), "pipeline --version"])
    for theirs, ours in BUNDLED.items():
        script = script.replace(theirs, ours)
    assert "--model" in script
    done = run_page(Page(README.path, f"```sh\n{script}\n```\n"), newcomers_folder(tmp_path, environment))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.startswith(str(environment))
    assert (tmp_path / "folder/answers.csv").exists()


@pytest.mark.slow
def test_a_wheel_has_all_models_and_adapters(environment: Path) -> None:
    ours, theirs = (
        {path.relative_to(root) for path in (root / "pipeline/models").rglob("*") if path.is_file()} for root in (ROOT, site(environment))
    )
    assert ours == theirs
    assert {path.name for path in theirs} >= {"model.safetensors", "adapter_config.json", "adapter_model.safetensors"}


@pytest.mark.slow
def test_a_wheel_runs_a_bundled_graph_on_bundled_engines(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "problems.jsonl").write_text('{"problem": "What is 1 + 1?", "answer": "2"}\n')
    options = ("--input", "problems.jsonl", "--output", "out")
    done = installed(environment, tmp_path, "run", "speccot", "--engines", "sim-instant", *options)
    assert done.returncode == 0, done.stderr
    assert pq.read_table(tmp_path / "out/chains").num_rows == 1
    resumed = installed(environment, tmp_path, "resume", "out")
    assert "there is nothing to resume" in resumed.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (("graph", "check", "speccot"), "torch bundled:tiny-target"),
        (("graph", "check", "speccot", "--engines", "sim-2xh100"), "sim "),
        (("doctor", "sim-2xh100"), "Every role could start."),
        (("graph", "show", "specreason"), "specreason"),
        (("list", "data"), "gsm8k"),
        (("prepare", "arith"), "data/arith.parquet: 500 problems"),
    ],
    ids=str,
)
def test_commands_of_a_wheel_find_what_is_bundled(environment: Path, tmp_path: Path, arguments: tuple[str, ...], printed: str) -> None:
    done = installed(environment, tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


@pytest.mark.slow
def test_a_wheel_sweeps_a_graph_of_ones_own_against_the_bundled_target(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "problems.csv").write_text("problem\nWhat is 1 + 1?\n")
    (tmp_path / "mine.yaml").write_text((ROOT / "graphs/specreason.yaml").read_text())
    options = ("--input", "problems.csv", "--batch-size", "1", "--engines", "sim-instant", "--output", "out")
    done = installed(environment, tmp_path, "sweep", "mine.yaml", *options)
    assert done.returncode == 0, done.stderr
    assert "2 of 2 points" in done.stderr


@pytest.mark.slow
def test_a_wheel_says_what_it_is(environment: Path, tmp_path: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert installed(environment, tmp_path, "--version").stdout.endswith(f"version {version}\n")
    (about,) = site(environment).glob("speculative_pipeline-*.dist-info")
    metadata = (about / "METADATA").read_text()
    assert "\nName: speculative-pipeline\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "URL" not in metadata.partition("\n\n")[0]
    assert (about / "licenses/LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert (site(environment) / "pipeline/py.typed").exists()
