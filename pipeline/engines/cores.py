"""Divides CPU cores among engines, checks the cores that specs name, and words both as facts. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pipeline.engine import Fact, Finding


class CoreRequest(NamedTuple):
    """What an engine's spec says about CPU cores."""

    first: int | None
    """Number of the first core that the engine names; None where it names none."""
    threads: int
    """How many cores it wants."""
    on_cpu: bool
    """True if it computes on the CPU, or may."""


def share_cores(core_requests: Mapping[str, CoreRequest], cores: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The cores of each role, out of `cores`: those it names, else some that no other role has; empty, which means any core, where
    there are not enough."""
    shares = {
        role: tuple(range(request.first, request.first + request.threads))
        for role, request in core_requests.items()
        if request.first is not None
    }
    free = [core for core in cores if not any(core in share for share in shares.values())]
    others = {role: request.threads for role, request in core_requests.items() if role not in shares and request.on_cpu}
    enough = sum(others.values()) <= len(free)
    for role, threads in others.items():
        shares[role] = tuple(free[:threads]) if enough else ()
        free = free[threads:]
    return {role: shares.get(role, ()) for role in core_requests}


def core_facts(role: str, cores: Sequence[int], threads: int) -> dict[str, Fact]:
    """The part of `Engine.facts` about CPU `cores` (empty: any), on which the engine computes with `threads` threads."""
    name = f"CPU core{'s' if len(cores) > 1 else ''} {ranges(cores)}" if cores else f"CPU cores of {role}"
    return {"devices": (name,), "cores": threads}


def core_findings(core_requests: Mapping[str, CoreRequest], cores: Sequence[int]) -> Iterator[Finding]:
    """The flaws of the cores that engines on the CPU want; `cores` are those that this process may use."""
    taken: dict[int, str] = {}
    for role, request in core_requests.items():
        named = [] if request.first is None else list(range(request.first, request.first + request.threads))
        if absent := [core for core in named if core not in cores]:
            what = f"core {absent[0]} is not available to this process"
            yield Finding(role=role, what=what, remedy=f"name some of {ranges(cores)}", fatal=True)
        if both := [core for core in named if core in taken]:
            what = f"core {both[0]} is also used by {taken[both[0]]}: they slow each other down"
            yield Finding(role=role, what=what, remedy="choose other cores, or none", fatal=False)
        taken |= dict.fromkeys(named, role)
    wanted = sum(request.threads for request in core_requests.values())
    if wanted > len(cores):
        what = f"the engines want {wanted} cores together, but {len(cores)} are there: they slow each other down"
        yield Finding(role=[*core_requests][-1], what=what, remedy=f"keep the sum of threads at {len(cores)} or less", fatal=False)


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers for a person, `0-3, 8` for 0, 1, 2, 3, 8."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    return ", ".join(f"{start}-{end}" if end > start else str(start) for start, end in zip(starts, ends, strict=True))
