"""No module of the user's working folder is imported, whatever its name: by the command, its workers, or what those start."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.paths import ROOT, SIM
from tests.support.patience import HANGS_S

COMMAND = [sys.executable, "-P", "-c", "from pipeline.cli.main import main; main()"]
"""What the console script does: its `sys.path` does not begin with the working folder either."""
NAMES = ("json", "random", "sympy", "math_verify", "torch", "tokenizers", "transformers", "numpy", "msgspec", "pipeline", "vllm")


@pytest.fixture
def trapped(tmp_path: Path) -> Path:
    """A working folder with a module or a package of every one of `NAMES` that leaves a mark when it is imported."""
    folder = tmp_path / "work"
    trap = f"import pathlib\npathlib.Path({str(tmp_path)!r}, 'mark-' + __name__).touch()\nraise ImportError('foreign code')\n"
    for number, name in enumerate(NAMES):
        place = folder / f"{name}.py" if number % 2 else folder / name / "__init__.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(trap)
    (folder / "problems.jsonl").write_text(json.dumps({"problem": "1 + 1?", "answer": "\\sqrt{x}"}) + "\n")
    return folder


def marks(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.glob("mark-*"))


def run(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], cwd=folder, capture_output=True, text=True, timeout=HANGS_S)


def grades(folder: Path) -> list[tuple[bool | None, str | None]]:
    return [(row["correct"], row["grading_error"]) for row in pq.read_table(folder / "out/chains").to_pylist()]


@pytest.mark.slow
def test_a_simulated_run_and_its_grader_import_nothing_from_there(trapped: Path) -> None:
    done = run(trapped, "run", ROOT / "graphs/speccot.yaml", "--engines", SIM, "--input", "problems.jsonl", "--output", "out")
    assert (done.returncode, marks(trapped)) == (0, []), done.stderr
    assert grades(trapped) == [(False, None)], "a worker compared them"


@pytest.mark.torch
def test_an_engine_in_a_process_of_its_own_imports_nothing_from_there(trapped: Path) -> None:
    options = ("--input", "problems.jsonl", "--engines", "tiny", "--output", "out", "--set", "engines.target.max_num_seqs=2")
    done = run(trapped, "run", ROOT / "graphs/speccot.yaml", *options)
    assert (done.returncode, marks(trapped)) == (0, []), done.stderr
    assert [each[1] for each in grades(trapped)] == [None]
