"""The worker process: loads one model, then computes what arrives on its socket until the socket closes.

Started by `pipeline.engines.torch.backend` as `python -m pipeline.engines.torch_worker FD`. It ignores interrupts (the main
process closes it), and ends at once when the main process is gone.
"""

import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from pipeline.engines.process.parent import Line
from pipeline.engines.process.wire import Abort, Failed, Forget, Forgotten, Ready, Report, Setup, Submit

if TYPE_CHECKING:
    from pipeline.engines.torch.jobs import Job
    from pipeline.engines.torch.loop import Loop

_REPORT_EVERY_S = 0.25
"""Counters are sent at least this often while anything is computed."""


class Desk:
    """Passes messages on to the loop, and what it finished back."""

    def __init__(self, line: Line, loop: "Loop", eos: frozenset[int], decode: Callable[[Sequence[int]], str]) -> None:
        from pipeline.engines.torch.jobs import Job, Stops

        self._line, self._loop = line, loop
        self._stops = lru_cache(maxsize=64)(lambda strings, ids: Stops(strings, ids, eos, decode))
        self._job: Callable[[Submit, Stops], Job] = lambda submit, stops: Job(
            submit.number, submit.request, stops, decode, loop.max_model_len
        )

    def serve(self) -> None:
        """Never returns: the process ends with the socket."""
        reported_s = 0.0
        while True:
            aborted = [self._take(message) for message in self._line.receive(wait=self._loop.idle)]
            finished = [] if self._loop.idle else self._loop.step()
            if finished or any(aborted) or self._loop.busy_s - reported_s > _REPORT_EVERY_S:
                reported_s = self._loop.busy_s
                self._report(finished)

    def _take(self, message: object) -> bool:
        """Whether it was an abort, after which the main process wants to know the counters."""
        if isinstance(message, Submit):
            request = message.request
            self._loop.add(self._job(message, self._stops(request.stop, request.stop_ids)))
        elif isinstance(message, Abort):
            self._loop.abort(message.number)
        elif isinstance(message, Forget):
            self._loop.slots.reset_prefix_cache()
            self._line.send(Forgotten())
        return isinstance(message, Abort)

    def _report(self, finished: list["Job"]) -> None:
        done = [(job.number, job.completion()) for job in finished]
        self._line.send(Report(self._loop.statistics(), done))


def main() -> None:
    """Entry point of the process; its argument is the socket's file descriptor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = Line(socket.socket(fileno=int(sys.argv[1])))
    setup = line.first()
    assert isinstance(setup, Setup)
    from pipeline.engines.torch.model import CannotLoad, load  # seconds: torch and transformers

    try:
        loaded = load(setup)
    except CannotLoad as refusal:
        line.send(Failed(str(refusal)))
        return
    line.send(Ready(loaded.loop.max_model_len, loaded.vocab_size, loaded.facts))
    gc.collect()
    gc.freeze()
    import torch

    with torch.inference_mode():
        Desk(line, loaded.loop, loaded.eos, loaded.decode).serve()


if __name__ == "__main__":
    try:
        main()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
