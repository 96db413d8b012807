"""`pipeline doctor`: what it prints, at which width, and its exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import pipeline
from tests.support.patience import HANGS_S

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.torch  # each asks torch, in a process of its own


def doctor(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from pipeline.cli.main import main; main()", "doctor", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S, env=os.environ | environment)


def test_roles_and_their_memory_are_described_without_importing_torch() -> None:
    code = (
        "import sys; from pipeline.cli.main import run_command; code = run_command(sys.argv[1:]); sys.exit('torch' in sys.modules or code)"
    )
    command = [sys.executable, "-c", code, "doctor", "graphs/engines/tiny.yaml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S)
    assert done.returncode == 0, done.stderr
    for said in (
        "backend",
        "torch bundled:tiny-draft: could start",
        "memory plan, GiB",
        "steps are passed as token ids",
        "Every role could start.",
    ):
        assert said in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 110


def test_a_role_that_could_not_start_is_exit_code_2_and_json_says_the_same() -> None:
    spoilt = ("--set", "engines.target.model=/no/[bold]folder", "--set", "engines.draft.kv_cache_slots=1")
    done = doctor("graphs/engines/tiny.yaml", *spoilt)
    assert (done.returncode, done.stderr) == (2, "")
    assert "error: no such directory: /no/[bold]folder; name a folder" in done.stdout
    assert "draft and target could not start." in done.stdout
    told = json.loads(doctor("graphs/engines/tiny.yaml", "--json", *spoilt).stdout)
    assert [(role["role"], role["could_start"]) for role in told["roles"]] == [("draft", False), ("target", False)]
    assert told["machine"]["memory_bytes"] > 0
    assert {row["role"] for row in told["memory"]} == {"draft", "target"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere.yaml",), "nowhere.yaml: cannot be read"),
        (("graphs/engines/tiny.yaml", "--set", "engines.darft.core=1"), "did you mean `draft`?"),
    ],
)
def test_a_bad_file_is_one_sentence_and_exit_code_2(arguments: tuple[str, ...], said: str) -> None:
    done = pipeline("doctor", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
