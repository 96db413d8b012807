"""The worker process of `grader`: reads `[kind, answer, reference]`, a JSON array a line, and replies with a `Ruling` as JSON, the name of
an error, or that after `BROKEN` where there is no such grader or it cannot be imported.

Started as `python -m pipeline.grading.worker FD LIMIT_S MEMORY_BYTES NICE`; FD is its end of the socket. The only module that
loads `expressions`, and with it math-verify and sympy; it replies `ready` once they are loaded. It ignores interrupts, has a
limit on its memory, and is killed by the system itself when a question takes longer than LIMIT_S of computing: neither a
busy machine nor code that never checks for signals changes that. It ends when the other side closes the socket.
"""

import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import msgspec

from pipeline.grading.answers import BROKEN, Kind, Ruling
from pipeline.grading.expressions import equal
from pipeline.grading.forms import Leaf, same_form
from pipeline.graph.plugins import GRADER_KINDS, load_grader
from pipeline.system.worker_process import leave_signals


def main() -> None:
    """Entry point of the process: limit its resources, load math-verify and answer questions until the socket is closed."""
    leave_signals()
    channel = socket.socket(fileno=int(sys.argv[1]))
    limit_s, memory, nice = float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    with suppress(OSError):
        os.nice(nice)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # what libraries print must not fill a pipe that nobody reads
        os.dup2(nowhere, stream)
    limit_memory(memory)
    serve(equal, limit_s, channel.makefile("r", encoding="utf-8"), lambda said: channel.sendall(f"{said}\n".encode()))


def limit_memory(most: int) -> None:
    """Limit this process to `most` bytes of address space, or to its present limit if that is lower, and write no core file; as far as the
    system can: macOS refuses a limit on address space."""
    for limit, size in ((resource.RLIMIT_AS, most), (resource.RLIMIT_CORE, 0)):
        with suppress(OSError, ValueError):
            _, hard = resource.getrlimit(limit)
            size = size if hard == resource.RLIM_INFINITY else min(size, hard)
            resource.setrlimit(limit, (size, size))


def serve(leaf: Leaf, limit_s: float, questions: Iterable[str], say: Callable[[str], Any]) -> None:
    """Answer every one of `questions` through `say`; a question that computes for more than `limit_s` seconds ends the process."""
    say("ready")
    for line in questions:
        kind, answer, reference = json.loads(line)
        try:
            grade = _rule(kind, leaf)
        except Exception as error:  # not installed here, or its import fails
            say(f"{BROKEN}{type(error).__name__}")
            continue
        signal.setitimer(signal.ITIMER_PROF, limit_s)  # the default action of its signal ends the process
        try:
            said = msgspec.json.encode(grade(answer, reference)).decode()
        except Exception as error:  # too deep for the parser, too large for the memory, ...
            said = type(error).__name__
        signal.setitimer(signal.ITIMER_PROF, 0)
        say(said)


def _rule(kind: Kind, leaf: Leaf) -> Callable[[str, str], Ruling]:
    """What grades answers of this `kind`."""
    if kind in GRADER_KINDS:
        return lambda answer, reference: same_form(answer, reference, leaf)
    same = load_grader(kind)
    return lambda answer, reference: Ruling(bool(same(answer, reference)), f"the grader {kind}")


if __name__ == "__main__":
    main()
