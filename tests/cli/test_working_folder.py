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


@pytest.mark.parametrize("engines", [pytest.param(SIM, marks=pytest.mark.slow), pytest.param("tiny", marks=pytest.mark.torch)])
def test_a_run_its_grader_and_its_engines_import_nothing_from_there(trapped: Path, engines: str | Path) -> None:
    words = ["run", ROOT / "graphs/speccot.yaml", "--engines", engines, "--input", "problems.jsonl", "--output", "out"]
    words += ["--set", "engines.target.max_num_seqs=2"] if engines == "tiny" else []
    done = subprocess.run([*COMMAND, *map(str, words)], cwd=trapped, capture_output=True, text=True, timeout=HANGS_S)
    assert (done.returncode, [*trapped.parent.glob("mark-*")]) == (0, []), done.stderr
    [row] = pq.read_table(trapped / "out/chains").to_pylist()
    assert row["grading_error"] is None, "a worker compared the answers"
