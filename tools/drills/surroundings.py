"""What is around a run is struck: its input changes, a second run wants its folder, nobody takes what it prints, its disk is full."""

import os
import random
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import structs

from drills.command import Command, carried_out
from drills.signals import started
from drills.toll import Ground, Said, Toll, card, over, sentence, summed, toll

Change = Callable[[bytes], bytes]
"""Changes the content of a file of one problem a line."""


def cut(content: bytes) -> bytes:
    """The last third of the rows is gone."""
    lines = content.splitlines(keepends=True)
    return b"".join(lines[: 2 * len(lines) // 3])


def appended(content: bytes) -> bytes:
    """Rows are there twice."""
    return content * 2


def edited(content: bytes) -> bytes:
    """Every problem is another one."""
    return content.replace(b"Problem", b"Question")


def reversed_(content: bytes) -> bytes:
    """The rows have another order."""
    return b"".join(reversed(content.splitlines(keepends=True)))


CHANGES: tuple[Change, ...] = (cut, appended, edited, reversed_)


def input_changed(change: Change, ground: Ground, folder: Path, strikes: int, luck: random.Random, longest_s: float) -> Toll:
    """The input changes at a random moment of the run, which has read it."""
    fault = f"input {change.__name__.rstrip('_')} while the run goes on"
    return summed([_changed(fault, change, ground, folder / f"{change.__name__}-{i}", luck, longest_s) for i in range(strikes)])


def _changed(fault: str, change: Change, ground: Ground, folder: Path, luck: random.Random, longest_s: float) -> Toll:
    folder.mkdir(parents=True)
    place = ground.begin.index("--input") + 1
    content, problems = Path(ground.begin[place]).read_bytes(), folder / "problems.jsonl"
    problems.write_bytes(content)
    own = structs.replace(ground, begin=(*ground.begin[:place], str(problems), *ground.begin[place + 1 :]))
    run, log = folder / "run", folder / "log"
    command, _ = started(own, run, log, wait=True)
    command.process.join(luck.uniform(0, longest_s))
    problems.write_bytes(change(content))
    return toll(fault, own, run, log, faults=1, wrong_ends=int(command.wait() != 0))


def same_output(ground: Ground, folder: Path, strikes: int, rivals: int = 3) -> Toll:
    """Several runs begin at the same moment with the same `--output`: one is carried out, the others are refused."""
    tolls = []
    for i in range(strikes):
        run = folder / f"same-{i}"
        logs = [folder / f"same-{i}-{rival}.log" for rival in range(rivals)]
        folder.mkdir(parents=True, exist_ok=True)
        commands = [Command([*ground.begin, "--output", str(run)], log) for log in logs]
        codes = [command.wait() for command in commands]
        told = sum(bool(sentence(log)) for log in logs)
        wrong = int(sorted(codes) != [0] + [2] * (rivals - 1) or told != rivals - 1)
        tolls.append(toll("several runs with one --output", ground, run, logs[0], faults=rivals - 1, wrong_ends=wrong))
    return summed(tolls)


def same_name(ground: Ground, folder: Path, strikes: int, rivals: int = 3) -> Toll:
    """Several runs begin at the same moment without `--output`: each has a folder of its own."""
    tolls = []
    for i in range(strikes):
        (place := folder / f"name-{i}").mkdir(parents=True)
        logs = [place / f"{rival}.log" for rival in range(rivals)]
        codes = [command.wait() for command in [Command([*ground.begin], log, cwd=place) for log in logs]]
        runs = sorted((place / "runs").iterdir())
        wrong = int(any(codes) or len(runs) != rivals)
        fault = "several runs with one default name"
        found = summed([toll(fault, ground, run, log, faults=1) for run, log in zip(runs, logs, strict=False)])
        tolls.append(structs.replace(found, wrong_ends=wrong))
    return summed(tolls)


def mute(ground: Ground, folder: Path) -> Toll:
    """Nobody takes what a run prints: its standard output is closed, full (it says so by its exit code), or read by nobody."""
    folder.mkdir(parents=True)
    full = _judged(ground, folder, "full", _begun(ground, folder, "full", "/dev/full"), code=1)
    tolls = [_judged(ground, folder, "closed", _begun(ground, folder, "closed", None)), full]
    os.mkfifo(pipe := folder / "fifo")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # so that it can be opened for writing
    command = _begun(ground, folder, "unread", str(pipe))
    while not (folder / "unread").exists() and not command.over:  # before its start it would wait for a reader
        command.process.join(0.05)
    os.close(reader)
    return summed([*tolls, _judged(ground, folder, "unread", command)])


def _begun(ground: Ground, folder: Path, name: str, stdout: str | None) -> Command:
    return Command([*ground.begin, "--output", str(folder / name)], folder / f"{name}.log", stdout=stdout)


def _judged(ground: Ground, folder: Path, name: str, command: Command, code: int = 0) -> Toll:
    wrong = command.wait() != code
    return toll("standard output that nobody takes", ground, folder / name, folder / f"{name}.log", wrong_ends=int(wrong))


GOES_ON = 3
"""How often a run is taken up with more room."""


class CannotMount(Exception):
    """Only root can make a small file system, and not in every container."""


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[None]:
    """At `place` is a file system of `size` bytes; raises `CannotMount`."""
    place.mkdir(parents=True)
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, text=True)
    if made.returncode:
        raise CannotMount(made.stderr.strip())
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def enlarge(place: Path, size: int = 256 << 20) -> None:
    """Give the file system at `place` so many bytes."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(place)], check=True)


def full(ground: Ground, folder: Path, sizes: Sequence[int]) -> Toll:
    """A run on a disk of each of the `sizes` in bytes, which is enlarged when the run could not go on."""
    return summed([_filled(ground, folder / f"disk-{size}", size) for size in sizes])


def _filled(ground: Ground, place: Path, size: int) -> Toll:
    log, run = place.with_suffix(".log"), place / "run"
    with small_disk(place, size):
        code = carried_out(ground.command(run), log)
        was_full = code != 0
        wrong = int(was_full and (code not in (1, 2) or "no space left on device" not in sentence(log)))
        said = over(run) if was_full else Said()
        enlarge(place)
        for _ in range(GOES_ON if was_full else 0):
            code = carried_out(ground.command(run), log)
            if code == 0:
                break
        wrong += code != 0
        if not card(run):
            raise RuntimeError(f"no run could be begun on a disk of {size} bytes, see {log}")
        found = toll("disk full, then enlarged", ground, run, log, faults=int(was_full), said=said, wrong_ends=wrong)
        return found
