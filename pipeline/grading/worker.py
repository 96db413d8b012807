"""The worker process of `grader`: reads `[kind, answer, reference]`, a JSON array a line, and replies with a `Grade` as JSON.

Started as `python -m pipeline.grading.worker FD LIMIT_S NICE`; FD is its end of the socket. The only module that loads `expressions`, and
with it math-verify and sympy. It ignores interrupts, has a limit on its memory, and is killed by the system itself when a question takes
more than LIMIT_S of computing: neither a busy machine nor code that never checks for signals changes that. It ends when the other side
closes the socket.
"""

import json
import os
import resource
import signal
import socket
import sys
from contextlib import suppress

import msgspec

from pipeline.grading.answers import Grade, Kind
from pipeline.grading.expressions import equal
from pipeline.grading.forms import same_form
from pipeline.grading.plugins import GRADER_KINDS, load_grader
from pipeline.system.worker_process import leave_signals

MEMORY_BYTES = 4 << 30
"""Most address space of a worker."""


def main() -> None:
    """Limit the resources of the process and answer questions until the socket is closed."""
    leave_signals()
    channel, limit_s = socket.socket(fileno=int(sys.argv[1])), float(sys.argv[2])
    with suppress(OSError):
        os.nice(int(sys.argv[3]))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # output of libraries must not fill a pipe that nobody reads
        os.dup2(nowhere, stream)
    for limit, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CORE, 0)):
        with suppress(OSError, ValueError):  # macOS refuses a limit on address space
            hard = resource.getrlimit(limit)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(limit, (most, most))
    for line in channel.makefile("rb"):
        channel.sendall(msgspec.json.encode(_grade(limit_s, *json.loads(line))) + b"\n")


def _grade(limit_s: float, kind: Kind, answer: str, reference: str) -> Grade:
    """The grade; a comparison that computes for more than `limit_s` seconds ends the process."""
    try:
        same = None if kind in GRADER_KINDS else load_grader(kind)
    except Exception as error:  # not installed here, or its import fails
        return Grade(None, why=f"the grader {kind!r} cannot be loaded: {type(error).__name__}")
    signal.setitimer(signal.ITIMER_PROF, limit_s)  # the default action of its signal ends the process
    try:
        return Grade(bool(same(answer, reference) if same else same_form(answer, reference, equal)))
    except (Exception, SystemExit) as error:  # too deep for the parser, too large for the memory, ...
        return Grade(False, why=f"the comparison ended with {type(error).__name__}")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main()
