"""A command that is given what nobody means, and the one thing that must hold of it."""

import io
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from pipeline.cli.main import run_command

OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What no output may hold."""


class Outcome(NamedTuple):
    """What a command did."""

    code: int
    stdout: str
    stderr: str


def command(*arguments: str | Path) -> Outcome:
    """Carry a command out in this process and hold it to its promise: exit code 0, 2 or 3, no traceback, nothing a terminal obeys."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run_command([str(argument) for argument in arguments])
    done = Outcome(code, out.getvalue(), err.getvalue())
    assert done.code in (0, 2, 3), done
    assert "Traceback" not in done.stderr, done
    assert not OBEYED.search(done.stdout + done.stderr), done
    assert done.code in (0, 3) or done.stderr, done
    return done
