"""Findings about CPU cores: named ones that are not there, that two engines name, and too few for all."""

from collections.abc import Iterator, Mapping, Sequence

from pipeline.engine import Finding
from pipeline.engines.cores import Wish


def core_findings(wishes: Mapping[str, Wish], cores: Sequence[int]) -> Iterator[Finding]:
    """What is wrong with the cores that engines on the CPU want, `cores` being those this process may use."""
    taken: dict[int, str] = {}
    for role, wish in wishes.items():
        named = [] if wish.first is None else list(range(wish.first, wish.first + wish.threads))
        if absent := [core for core in named if core not in cores]:
            what = f"core {absent[0]} is not among those this process may use"
            yield Finding(role=role, what=what, remedy=f"name some of {ranges(cores)}", fatal=True)
        if both := [core for core in named if core in taken]:
            what = f"core {both[0]} is that of {taken[both[0]]} as well: they slow each other down"
            yield Finding(role=role, what=what, remedy="name other cores, or none", fatal=False)
        taken |= dict.fromkeys(named, role)
    wanted = sum(wish.threads for wish in wishes.values())
    if wanted > len(cores):
        what = f"the engines want {wanted} cores together, but {len(cores)} are there: they slow each other down"
        yield Finding(role=[*wishes][-1], what=what, remedy=f"keep the sum of threads at {len(cores)} or less", fatal=False)


def ranges(numbers: Sequence[int]) -> str:
    """`0-3, 8` for 0, 1, 2, 3, 8."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    return ", ".join(f"{start}-{end}" if end > start else str(start) for start, end in zip(starts, ends, strict=True))
