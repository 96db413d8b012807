"""The command `pipeline` in a process of its own, that begins in milliseconds because its modules are loaded already."""

import multiprocessing
import os
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from pipeline.cli.main import main

ROOT = Path(__file__).parent.parent.parent
PACKAGES = (str(ROOT / "tests/support/packages"), str(ROOT))
"""For `sys.path`: engines that fail, or vary."""
PRELOADED = [
    "pipeline.cli.run",
    "pipeline.cli.solve",
    "pipeline.engines.sim.engine",
    "pipeline.engines.openai.engine",
    "pipeline.runtime.virtual_loop",
]
LONGEST_S = 300.0
"""No command takes longer; one that does is killed, and has ended wrongly."""


class Command:
    """A command that goes on; `log` gets what it prints."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.process = context.Process(target=_main, args=(arguments, str(log.absolute())))
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

    def wait(self) -> int:
        """Wait for its end, and leave nothing behind, also of a command that could not end its workers; the exit code."""
        self.process.join(LONGEST_S)
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                child.kill()
        self.process.kill()
        self.process.join()
        return self.process.exitcode or 0


def _main(arguments: list[str], log: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.path[:0] = PACKAGES
    sys.argv = ["pipeline", *arguments]
    main()
