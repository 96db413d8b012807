"""Programs of others that ask a server: lm_eval and inspect_ai score its answers as we grade them, litellm streams what it gets whole."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.grading.answers import same_answer
from tests.support.paths import ROOT, TEST_SET
from tests.support.patience import HANGS_S
from tests.support.runs import rows
from tests.support.serving import serving

PYTHON = Path(sys.prefix) / "clients/bin/python"
PROBLEMS = 20
MISSING = "lm_eval, inspect_ai and litellm are not installed here: `make .venv/clients/ready` does it"

pytestmark = [pytest.mark.clients, pytest.mark.torch, pytest.mark.skipif(not PYTHON.exists(), reason=MISSING)]


def client(name: str, *arguments: object, folder: Path, url: str) -> Any:
    """What the last line says that a client prints; `folder` is where it may write."""
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}  # our `datasets` is not the package of that name
    own = {"HOME": str(folder), "HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1"}
    local = {"LOCAL_BASE_URL": url, "LOCAL_API_KEY": "none"}
    command = [PYTHON, ROOT / "tests/support/clients" / name, *arguments]
    done = subprocess.run([*map(str, command)], cwd=ROOT, env=clean | own | local, capture_output=True, text=True, timeout=HANGS_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def our_score(folder: Path) -> float:
    """The share of a run's answers that we grade as right, of as many problems of the test set."""
    answers = {row["problem"]: row["answer"] for row in pq.read_table(TEST_SET).to_pylist()}
    problems = {row["problem_id"]: row["problem"] for row in rows(folder, "problems")}
    said = {problems[row["problem_id"]]: row["answer"] for row in rows(folder, "chains")}
    right = {problem: same_answer(answer, answers[problem]) for problem, answer in said.items()}
    assert len(right) == PROBLEMS == len(rows(folder, "chains"))
    return sum(right.values()) / PROBLEMS


@pytest.mark.parametrize(("name", "words"), [("harness.py", ("URL", PROBLEMS)), ("inspection.py", (PROBLEMS, "FOLDER"))])
def test_others_score_the_answers_as_we_do(tmp_path: Path, name: str, words: tuple[object, ...]) -> None:
    with serving(folder := tmp_path / "run", engines="tiny", batch_size=PROBLEMS) as server:
        given = {"URL": server.url, "FOLDER": tmp_path / "logs"}
        score = client(name, *(given.get(str(word), word) for word in words), folder=tmp_path, url=server.url)
    assert score == pytest.approx(our_score(folder))
    assert score > 0.5


def test_litellm_streams_what_it_gets_whole(tmp_path: Path) -> None:
    with serving(tmp_path / "run") as server:
        said = client("lite.py", server.url, folder=tmp_path, url=server.url)
    assert said["streamed"] == said["whole"]
    assert "boxed" in said["whole"][1]
    assert said["pieces"] > 2
