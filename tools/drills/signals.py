"""The process is struck: killed or stopped at random moments, again and again, or suspended."""

import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from threading import Event

from drills.command import Command
from drills.toll import Ground, Said, Toll, card, over, summed, toll


def killed(
    ground: Ground, folder: Path, strikes: int, luck: random.Random, longest_s: float, number: signal.Signals = signal.SIGKILL
) -> Toll:
    """Runs that are hit at random moments, one after the other in folders under `folder`, until there were so many strikes."""
    fault, tolls = f"{number.name} at random moments", list[Toll]()
    while (left := strikes - sum(each.faults for each in tolls)) > 0:
        tolls.append(_killed_until_done(fault, ground, folder / f"{number.name}-{len(tolls)}", left, luck, longest_s, number))
    return summed(tolls)


def _killed_until_done(
    fault: str, ground: Ground, folder: Path, strikes: int, luck: random.Random, longest_s: float, number: signal.Signals
) -> Toll:
    """Start a run and hit it at random moments, at most `strikes` times, going on after each; then let it end.

    A third of the moments are up to `longest_s` after the process began, the others after its chains could start, or rows were written.
    """
    struck, wrong, resume_s, said, log = 0, 0, list[float](), Said(), folder.with_suffix(".log")
    folder.parent.mkdir(parents=True, exist_ok=True)
    while True:
        last, moment = struck == strikes, luck.choice(("at once", "with chains", "with rows"))
        command, took_s = started(ground, folder, log, wait=last or moment != "at once")
        resume_s += [took_s] if took_s else []
        if not last:
            size = rows_bytes(folder)
            while moment == "with rows" and not command.over and rows_bytes(folder) == size:
                time.sleep(0.002)
            command.process.join(luck.uniform(0, longest_s))
            struck += not command.over
            command.strike(number)
        code = command.wait()
        if last or code == 0:
            wrong += code != 0
            return toll(fault, ground, folder, log, faults=struck, said=said, wrong_ends=wrong, resume_s=tuple(resume_s))
        wrong += code not in ENDS[number]
        said = over(folder) | said


ENDS = {
    signal.SIGKILL: (-signal.SIGKILL,),
    signal.SIGTERM: (130, -signal.SIGTERM, 128 + signal.SIGTERM),
    signal.SIGINT: (130, -signal.SIGINT),
}
"""The exit codes of commands that were hit; the negative ones where they had not begun to listen."""


def started(ground: Ground, folder: Path, log: Path, *, wait: bool) -> tuple[Command, float | None]:
    """A command at work on the run, if `wait` one whose chains can start; of one that goes on the seconds that this took."""
    before, began = len(card(folder).get("sessions", [])), time.monotonic()
    command = Command(ground.command(folder), log)
    while wait and not command.over and len(card(folder).get("sessions", [])) == before:
        time.sleep(0.002)
    return command, time.monotonic() - began if wait and before else None


def rows_bytes(run: Path) -> int:
    """Bytes of all tables; other ones when rows were written."""
    size = 0
    for path in run.glob("*/*.*"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def suspended(ground: Ground, gate: Event, folder: Path, strikes: int, luck: random.Random, pause_s: float) -> Toll:
    """Runs that are suspended for `pause_s` while their calls are on the way: longer than the engines' `timeout_s`.

    The servers, whose answers wait for `gate`, stand still meanwhile, as those of the same terminal do.
    """
    tolls = []
    for place in range(strikes):
        run, log = folder / f"suspended-{place}", folder / f"suspended-{place}.log"
        command, _ = started(ground, run, log, wait=True)
        command.process.join(luck.uniform(0.2, 0.6))
        struck = not command.over
        gate.clear()
        command.strike(signal.SIGSTOP)
        time.sleep(pause_s)
        command.strike(signal.SIGCONT)
        command.process.join(0.2)
        gate.set()
        wrong = command.wait() != 0
        tolls.append(toll("suspended for longer than timeout_s", ground, run, log, faults=int(struck), wrong_ends=int(wrong)))
    return summed(tolls)
