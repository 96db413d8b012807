"""Divides the CPU cores of this process among engines, and words them as facts. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.engine import Fact
from pipeline.errors import GraphError


def share_cores(specs: Mapping[str, Any], cores: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The cores of each role that computes on the CPU, out of `cores`: the `threads` of its spec from its `core` on, counted from 0, else
    some that no other role has; empty, which means any core, where there are not enough.

    Raises `GraphError` for a core that is not here.
    """
    shares: dict[str, tuple[int, ...]] = {}
    for role, spec in specs.items():
        if spec.core is not None:
            shares[role] = tuple(cores[spec.core : spec.core + spec.threads])
            if len(shares[role]) < spec.threads:
                what = f"core {spec.core} with {spec.threads} threads: this process has {len(cores)} CPU cores, counted from 0"
                raise GraphError(f"engine {role!r}", f"{what}; name others, or leave out `core`")
    free = [core for core in cores if not any(core in share for share in shares.values())]
    others = {role: spec.threads for role, spec in specs.items() if role not in shares}
    enough = sum(others.values()) <= len(free)
    for role, threads in others.items():
        shares[role] = tuple(free[:threads]) if enough else ()
        free = free[threads:]
    return shares


def core_facts(role: str, cores: Sequence[int], threads: int) -> dict[str, Fact]:
    """The part of `Engine.facts` about CPU `cores` (empty: any), on which the engine computes with `threads` threads."""
    name = f"CPU core{'s' if len(cores) > 1 else ''} {ranges(cores)}" if cores else f"CPU cores of {role}"
    return {"devices": (name,), "cores": threads}


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers for a person, `0-3, 8` for 0, 1, 2, 3, 8."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    return ", ".join(f"{start}-{end}" if end > start else str(start) for start, end in zip(starts, ends, strict=True))
