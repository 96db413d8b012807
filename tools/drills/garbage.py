"""The run folder is struck: its files are copied, swapped, deleted, cut, emptied, flipped, or come from another run.

What must come of it: the folder is refused with a sentence and keeps what it holds, or everything is there once.
"""

import random
import shutil
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

from drills.command import carried_out
from drills.toll import Ground, Toll, sentence, summed, toll, tracebacks
from pipeline.store.folder import LOCK

Damage = Callable[[Path, Path, random.Random], None]
"""Breaks the run in the first folder, with what it needs of a run in the second one."""
SOUND, REFUSED = (0, 3), (1, 2)
"""Exit codes."""


def copied(run: Path, other: Path, luck: random.Random) -> None:
    """A file is there again, under the next number."""
    path = luck.choice(_files(run))
    shutil.copy(path, _next(path))


def swapped(run: Path, other: Path, luck: random.Random) -> None:
    """A file of one table has the place of one of another table, which has its place."""
    kinds = [[path for path in _files(run) if path.name.startswith(kind)] for kind in ("part-", "wal-")]
    one, two = luck.sample(luck.choice([paths for paths in kinds if len(paths) > 1]), 2)
    between = one.with_suffix(".between")
    one.rename(between)
    two.rename(one)
    between.rename(two)


def added(run: Path, other: Path, luck: random.Random) -> None:
    """A file of another run is there, under the next number."""
    path = luck.choice(_files(other))
    shutil.copy(path, _next(run / path.relative_to(other)))


def replaced(run: Path, other: Path, luck: random.Random) -> None:
    """A file of another run has the place of this one's."""
    path = luck.choice([path for path in _files(run) if (other / path.relative_to(run)).exists()])
    shutil.copy(other / path.relative_to(run), path)


def deleted(run: Path, other: Path, luck: random.Random) -> None:
    """A file is gone."""
    luck.choice(_files(run)).unlink()


def emptied(run: Path, other: Path, luck: random.Random) -> None:
    """A file has no bytes."""
    luck.choice(_files(run)).write_bytes(b"")


def cut(run: Path, other: Path, luck: random.Random) -> None:
    """A file ends anywhere."""
    path = luck.choice(_files(run))
    path.write_bytes(path.read_bytes()[: luck.randrange(1, path.stat().st_size)])


def flipped(run: Path, other: Path, luck: random.Random) -> None:
    """A byte anywhere in a file is another one."""
    path = luck.choice(_files(run))
    content = bytearray(path.read_bytes())
    content[luck.randrange(len(content))] ^= 1 + luck.randrange(255)
    path.write_bytes(content)


def littered(run: Path, other: Path, luck: random.Random) -> None:
    """Files that no run wrote lie about."""
    (run / "notes.txt").write_text("mine")
    (luck.choice(_files(run)).parent / "part-00007.parquet.tmp").write_bytes(b"PAR1")


DAMAGES: tuple[Damage, ...] = (copied, swapped, added, replaced, deleted, emptied, cut, flipped, littered)


def damaged(damage: Damage, ground: Ground, folder: Path, run: Path, other: Path, strikes: int, luck: random.Random) -> Toll:
    """Copies of the half-done `run`, each damaged once and taken up; `other` is a half-done run of the same command."""
    return summed([_taken_up(damage, ground, folder / f"{damage.__name__}-{i}", run, other, luck) for i in range(strikes)])


def _taken_up(damage: Damage, ground: Ground, folder: Path, run: Path, other: Path, luck: random.Random) -> Toll:
    shutil.copytree(run, folder)
    damage(folder, other, luck)
    log, before = folder.with_suffix(".log"), _contents(folder)
    code, fault = carried_out(ground.command(folder), log), f"garbage in the run folder: {damage.__name__}"
    if code in REFUSED:
        wrong = int(not sentence(log) or not _kept(before, _contents(folder)))
        return Toll(fault=fault, engines=ground.engines, faults=1, tracebacks=tracebacks(log), wrong_ends=wrong, refused=1)
    wrong = int(code not in SOUND)
    if code == SOUND[1]:
        carried_out([*ground.command(folder), "--retry-failed"], log)
    return toll(fault, ground, folder, log, wrong_ends=wrong)


def _files(run: Path) -> list[Path]:
    """The parts and write-ahead files of all tables."""
    return sorted([*run.glob("*/part-*.parquet"), *run.glob("*/wal-*.arrows")])


def _next(path: Path) -> Path:
    """The path of the next file of its kind in its table."""
    kind, _, _ = path.name.partition("-")
    numbers = [int(each.name.partition("-")[2][:5]) for each in path.parent.glob("*-[0-9]*")]
    return path.with_name(f"{kind}-{max(numbers) + 1:05}{path.suffix}")


def _contents(run: Path) -> dict[str, bytes]:
    """A digest of every file but the lock."""
    paths = (path for path in run.rglob("*") if path.is_file() and path.name != LOCK)
    return {str(path.relative_to(run)): blake2b(path.read_bytes()).digest() for path in paths}


def _kept(before: dict[str, bytes], after: dict[str, bytes]) -> bool:
    """True if every file is as it was, or damage was found in a page that is read at the end alone: then the run went on, and there are
    more parts than before."""
    gone = {name for name, digest in before.items() if after.get(name) != digest}
    return not gone or any(name.endswith(".parquet") for name in after.keys() - before.keys())
