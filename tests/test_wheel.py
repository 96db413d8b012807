"""The wheel, installed into an environment of its own that sees no checkout: the commands of README.md run there."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.support.pages import Page, newcomers_folder, run_page
from tests.support.paths import ROOT

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
    (site,) = (folder / "clean").glob("lib/python*/site-packages")
    (site / "needed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder / "clean"


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
