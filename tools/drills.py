"""Faults injected into runs, and what they leave: a run is killed again and again, taken up each time, and compared.

What is looked at in the end is a `Toll`: did every chain end, once, with the answer of an undisturbed run? Tests ask for
a few faults, `bench/reliability.py` for many.
"""

import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pyarrow.parquet as pq
from msgspec import Struct

from pipeline.cli.main import main
from pipeline.trace.run_file import RunFile


class Toll(Struct, frozen=True, kw_only=True):
    """What faults did to a run. All but `faults` and the chains should be 0."""

    fault: str
    faults: int
    """How often the fault struck."""
    chains: int
    """Of the undisturbed run."""
    lost: int
    """Chains of it that the disturbed run does not hold."""
    doubled: int
    """Rows more than chains, and steps that are there twice."""
    changed: int
    """Chains that say something else."""
    sessions: int
    resume_s: tuple[float, ...] = ()
    """Real seconds from the start of a process that goes on until its chains could start."""
    rewritten_bytes: int
    """What going on wrote of rows that were there already."""


COUNTS = ("faults", "chains", "lost", "doubled", "changed", "sessions", "rewritten_bytes")


def chains(run: Path) -> list[dict[str, Any]]:
    """Rows of the table."""
    rows: list[dict[str, Any]] = pq.read_table(run / "chains", columns=["chain_id", "answer_text", "stop_reason"]).to_pylist()
    return rows


def toll(fault: str, faults: int, disturbed: Path, undisturbed: Path, resume_s: tuple[float, ...] = ()) -> Toll:
    """Compare two finished runs of the same graph, input and seed."""
    ours, theirs = chains(disturbed), {row["chain_id"]: row for row in chains(undisturbed)}
    found = {row["chain_id"]: row for row in ours}
    return Toll(
        fault=fault,
        faults=faults,
        chains=len(theirs),
        lost=len(theirs.keys() - found.keys()),
        doubled=len(ours) - len(found) + _doubled_steps(disturbed),
        changed=sum(found[chain] != row for chain, row in theirs.items() if chain in found),
        sessions=sessions(disturbed),
        resume_s=resume_s,
        rewritten_bytes=sum(session.rewritten_bytes for session in RunFile.read(disturbed).sessions),
    )


def _doubled_steps(run: Path) -> int:
    steps = pq.read_table(run / "steps", columns=["chain_id", "step_index"]).to_pylist()
    return sum(count - 1 for count in Counter((row["chain_id"], row["step_index"]) for row in steps).values())


class Command:
    """The command `pipeline` in a process of its own; modules are loaded already, so that it begins in milliseconds."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["pipeline.cli.run", "pipeline.engines.sim.engine", "pipeline.runtime.virtual_clock"])
        self.process = context.Process(target=_main, args=(arguments, str(log)))
        self.process.start()

    @property
    def over(self) -> bool:
        """Has it ended?"""
        return not self.process.is_alive()

    def strike(self, number: int) -> None:
        """Send the signal to the command alone; it does not matter when it has ended already."""
        with suppress(ProcessLookupError):
            assert self.process.pid
            os.kill(self.process.pid, number)

    def children(self) -> list[psutil.Process]:
        """Its engines and graders."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def close(self) -> int:
        """Leave nothing behind, also of a command that could not end its workers; the exit code."""
        for child in self.children():
            with suppress(psutil.NoSuchProcess):
                child.kill()
        self.process.kill()
        self.process.join()
        return self.process.exitcode or 0


def _main(arguments: list[str], log: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.argv = ["pipeline", *arguments]
    main()


def campaign(
    fault: str, begin: Callable[[Path], list[str]], folder: Path, undisturbed: Path, strikes: int, longest_s: float, number: int
) -> Toll:
    """Runs that are struck, one after the other in folders under `folder`, until there were so many strikes; their sums."""
    luck, tolls = random.Random(0), list[Toll]()
    while (left := strikes - sum(each.faults for each in tolls)) > 0:
        out = folder / f"{len(tolls)}"
        struck, resume_s = struck_until_done(begin(out), out, left, luck, longest_s, number)
        tolls.append(toll(fault, struck, out, undisturbed, resume_s))
    counts = {name: sum(getattr(each, name) for each in tolls) for name in COUNTS}
    return Toll(fault=fault, resume_s=tuple(second for each in tolls for second in each.resume_s), **counts)


def struck_until_done(
    begin: list[str], folder: Path, strikes: int, luck: random.Random, longest_s: float, number: int = signal.SIGKILL
) -> tuple[int, tuple[float, ...]]:
    """Start a run and hit it at random moments, at most `strikes` times, going on after each; then let it end.

    Half of the moments are up to `longest_s` after the process began, the others after its chains could start. How often it was
    hit before it was done, and the real seconds that each session that went on took until its chains could start.
    """
    struck, resume_s = 0, []
    while True:
        before, began, last = sessions(folder), time.monotonic(), struck == strikes
        resumes = (folder / "run.json").exists()
        command = Command(["resume", str(folder)] if resumes else begin, folder.with_suffix(".log"))
        try:
            if last or luck.random() < 0.5:
                while not command.over and sessions(folder) == before:
                    time.sleep(0.002)
                if resumes and sessions(folder) > before:
                    resume_s.append(time.monotonic() - began)
            if not last:
                command.process.join(luck.uniform(0, longest_s))
                struck += not command.over
                command.strike(number)
            command.process.join()
        finally:
            code = command.close()
        if last or code == 0:
            return struck, tuple(resume_s)


def sessions(run: Path) -> int:
    """How many processes have worked on the run so far."""
    try:
        return len(msgspec.json.decode((run / "run.json").read_bytes())["sessions"])
    except FileNotFoundError:
        return 0


def copied(whole: Path, folder: Path) -> Path:
    """A copy of a run folder to be broken."""
    shutil.copytree(whole, folder)
    return folder
