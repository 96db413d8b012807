"""The process that runs points for `side_by_side`, started as `python -m pipeline.sweep.point_worker FD`; FD is its end of the socket.

It reads the pickled sweep, then one pickled point after the other, and answers each with its `Point`, or with the `Failure` that ended it.
It ignores interrupts, and ends when the other side closes the socket or is gone.
"""

import pickle
import socket
import sys
from functools import partial

from msgspec import structs

from pipeline.analysis.points import Point
from pipeline.data.many_files import open_files
from pipeline.engines.process.worker import end_with_main_process
from pipeline.errors import InputChanged, PipelineError
from pipeline.session.loop import in_loop, rare_collection
from pipeline.session.observer import Observer
from pipeline.sweep.plan import PlannedPoint
from pipeline.sweep.side_by_side import LENGTH_BYTES, Failure
from pipeline.sweep.sweep import Prepared, SweepRunner, run_options
from pipeline.system.worker_process import leave_signals


def main() -> None:
    """Entry point of the process."""
    leave_signals()
    channel = socket.socket(fileno=int(sys.argv[1]))
    end_with_main_process(channel.fileno())
    messages = channel.makefile("rb")
    prepared = pickle.load(messages)
    with rare_collection():
        while True:
            try:
                planned = pickle.load(messages)
            except EOFError:
                return
            answer = pickle.dumps(outcome(prepared, planned))
            channel.sendall(len(answer).to_bytes(LENGTH_BYTES) + answer)


def outcome(prepared: Prepared, planned: PlannedPoint) -> Point | Failure:
    """Run one point, whose engines are simulated; the point, or why there is none."""
    found: list[Point] = []
    try:
        runner = SweepRunner(reopened(prepared), Observer(), lambda planned, point: found.append(point))
        in_loop(partial(runner.run, [planned]), virtual=True)
    except PipelineError as error:
        return Failure(type(error), error.args, error.__dict__)
    return found[0]


def reopened(prepared: Prepared) -> Prepared:
    """`prepared` with its problems read in this process: what `Problems` notes of its rows means nothing in another one."""
    options = prepared.options
    problems = open_files((options.input,), options.columns, run_options(options, prepared.systems[0], prepared.folder).part)
    if problems.check() != prepared.fingerprint:
        raise InputChanged(str(options.input), "it has changed since the sweep began")
    return structs.replace(prepared, problems=problems)


if __name__ == "__main__":
    main()
