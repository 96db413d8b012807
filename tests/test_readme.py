"""The README's commands do what it says, as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import HANGS_S

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = [text for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL) if not language]
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith(".venv/bin/pipeline ")]
ENTRY = [sys.executable, "-c", "from pipeline.cli.main import main; main()"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data set of one's own and nothing else."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = tmp_path_factory.mktemp("newcomer")
    questions = ["Tom has 3 pens. Tom buys 4. Tom loses 2. How many pens has Tom now?", "What is the weather like?"]
    pq.write_table(pa.table({"question": questions}), place / "data.parquet")
    return place


@pytest.mark.torch
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_runs(folder: Path, command: str) -> None:
    done = subprocess.run([*ENTRY, *command.split()[1:]], cwd=folder, capture_output=True, text=True, timeout=HANGS_S, env=os.environ)
    assert done.returncode == 0, done.stderr


@pytest.mark.torch
def test_the_python_of_the_readme_runs(folder: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=HANGS_S)
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()[:2]] == [["problem_id", "answer"], ["0", "1", "5"]]


def test_there_are_commands_and_both_make_targets() -> None:
    assert len(COMMANDS) == README.count("\n.venv/bin/pipeline ") >= 9, "none is missed between blocks of other languages"
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README) + re.findall(r"^\[\w+\]: (.+)$", README, re.MULTILINE)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_no_text_installs_the_project_of_another_that_is_called_pipeline() -> None:
    folders = [path for folder in ("pipeline", "graphs", "bench", "tools") for path in (ROOT / folder).rglob("*")]
    texts = [path for path in folders if path.suffix in (".py", ".md", ".yaml")]
    texts += [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    stranger = re.compile(r"(?<![\w./-])pipeline\[\w|pip install \S*\bpipeline\b(?<!speculative-pipeline)")
    assert [str(path.relative_to(ROOT)) for path in texts if stranger.search(path.read_text())] == []
