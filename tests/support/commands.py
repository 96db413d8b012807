"""The `pipeline` command: carried out in this process, or in one of its own."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from subprocess import CompletedProcess

from pipeline.cli.main import run_command
from tests.support.paths import ROOT, TEST_SET
from tests.support.patience import HANGS_S

OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What no output may hold."""
COMMAND = [sys.executable, "-c", "from pipeline.cli.main import main; main()"]


def pipeline(*arguments: str | Path, cwd: Path = ROOT) -> CompletedProcess[str]:
    """Carry a command out in this process: its exit code and what it printed.

    What `main` adds, a process that ends with this code whatever its streams do, `spawned` shows.
    """
    words = [str(argument) for argument in arguments]
    out, error = StringIO(), StringIO()
    with chdir(cwd), redirect_stdout(out), redirect_stderr(error):
        code = run_command(words)
    return CompletedProcess(words, code, out.getvalue(), error.getvalue())


def command(*arguments: str | Path) -> CompletedProcess[str]:
    """Carry a command out that is given what nobody means, and hold it to its promise: exit code 0, 2 or 3, no traceback, nothing a
    terminal obeys."""
    done = pipeline(*arguments, cwd=Path())
    assert done.returncode in (0, 2, 3), done
    assert "Traceback" not in done.stderr, done
    assert not OBEYED.search(done.stdout + done.stderr), done
    assert done.returncode in (0, 3) or done.stderr, done
    return done


def spawned(*arguments: str | Path, cwd: Path = ROOT) -> CompletedProcess[str]:
    """Carry a command out in a process of its own."""
    return subprocess.run([*COMMAND, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=HANGS_S)


@contextmanager
def running(out: Path, *arguments: str, graph: str = "speccot") -> Iterator[subprocess.Popen[str]]:
    """A run that has begun: its engines are open and its chains live."""
    with begun("run", f"graphs/{graph}.yaml", "--input", TEST_SET, "--output", out, *arguments) as process:
        yield process


@contextmanager
def begun(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A command that carries out or resumes a run, once engines or replicas are there."""
    process = subprocess.Popen([*COMMAND, *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        starting = {"engine draft: ready", "engine target: ready"}
        for line in process.stderr:
            starting.discard(line.partition(" after ")[0])
            if not starting or " replicas" in line:
                break
        else:
            raise AssertionError("the command ended before its engines were ready")
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
