"""A limit on the address space (`ulimit -v`): one sentence, and no library that ends the process in its own way."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli.terminal.limits import TO_RUN, TO_START
from tests.support.paths import ROOT, SIM

COMMAND = 'ulimit -v "$1"; shift; exec "$0" -c "from pipeline.cli.main import main; main()" "$@"'


def limited(limit: int, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Carry a command out that may have `limit` bytes."""
    words = ["bash", "-c", COMMAND, sys.executable, str(limit >> 10), *map(str, arguments)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("doctor", TO_START), ("resume", TO_RUN), ("report", TO_RUN), ("compare", TO_RUN)])
def test_a_limit_that_is_too_low_is_named(name: str, least: int) -> None:
    done = limited(least - (1 << 20), name, "speccot")
    mib = least >> 20
    limits = f"the limit on memory (`ulimit -v`) is {mib - 1} MiB, and this command needs at least {mib} MiB"
    assert (done.returncode, done.stderr) == (1, f"error: {limits}; raise it, or limit a container instead\n")


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1300 << 20, 1700 << 20])
def test_a_run_ends_well_or_in_a_sentence(tmp_path: Path, limit: int) -> None:
    """Arrow's own allocator took most of 1.5 GiB at once."""
    (tmp_path / "problems.csv").write_text("problem\n" + "1 + 1?\n" * 20)
    done = limited(limit, "run", "speccot", "--engines", SIM, "--input", tmp_path / "problems.csv", "--output", tmp_path / "out")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert json.loads((tmp_path / "out/run.json").read_text())["status"] == "finished"
