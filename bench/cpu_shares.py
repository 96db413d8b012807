"""Whose CPU time of this process it is: the driver's of a run on replicas, or that of the replicas in it. For bench/cluster_sim.py.

A timer interrupts the process after every few milliseconds of CPU time; what was spent since the interruption before counts for the code
that it was in. So nothing that is measured is wrapped, and long calls into libraries count in full.
"""

import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EVERY_S = 0.003
REPLICA = "pipeline/cluster/replica_worker.py"
ITS_OWN = (REPLICA, "pipeline/session/chains.py", "pipeline/engines/", "pipeline/runtime/", "pipeline/stages/")
"""Where the tasks of a replica begin."""
WRITING = ("pipeline/store/", "pipeline/grading/", "pipeline/runtime/inline_grader.py")
LOOP = "pipeline/session/loop.py"
TIMERS = "pipeline/runtime/virtual_loop.py"


def owner(frame: FrameType | None) -> str:
    """Whose a stack is: `replica`; `writing` (grades and rows) or `handing` (all else) of the driver; `loop`: between tasks."""
    task = []
    while frame is not None:
        at = frame.f_code.co_filename.rfind("pipeline/")
        file = frame.f_code.co_filename[at:] if at >= 0 else ""
        if file == LOOP:
            break
        if file and file != TIMERS:
            task.append(file)
        frame = frame.f_back
    if not task:
        return "loop"
    # The link to a replica of this event loop runs in the driver's task; with another one the replica would do that elsewhere.
    writes = any(file.startswith(WRITING) for file in task)
    if REPLICA in task or (task[-1].startswith(ITS_OWN) and not writes):
        return "replica"
    return "writing" if writes else "handing"


@contextmanager
def shares() -> Iterator[Counter[str]]:
    """Count CPU seconds by `owner` in the body."""
    found, spent = Counter[str](), time.process_time()

    def interrupted(_number: int, frame: FrameType | None) -> None:
        nonlocal spent
        now = time.process_time()
        found[owner(frame)] += now - spent
        spent = now

    before = signal.signal(signal.SIGPROF, interrupted)
    signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
    try:
        yield found
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
