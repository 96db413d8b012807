"""The file system is struck: it is full, and later larger."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from drills.command import carried_out
from drills.toll import Ground, Said, Toll, card, over, sentence, summed, toll

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
