"""The memory that an engine takes of a device: weights, what it needs beside them, and the contexts that fit into the rest.

Every backend, the planner of `--model` and `pipeline doctor` ask here. Sizes are bytes. Pure.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from pipeline.engine import Finding, MemoryRow
from pipeline.engines.model_card import GUESSED
from pipeline.system.machine import Gpu, Machine, gib

CONTEXT_BYTES = 1 << 29
"""CUDA context and communication buffers of one engine on a GPU, outside of its share: assumed."""


class Need(Struct, frozen=True, kw_only=True):
    """The memory that an engine takes of each of its devices. None: not known."""

    weights_bytes: int | None
    weights_source: str
    """Where their size was learnt."""
    overhead_bytes: int
    """Activations, graphs, workspaces and processes: assumed."""
    token_bytes: int | None
    """One token's keys and values."""
    context: int | None
    """Tokens of the longest sequence."""

    @property
    def fixed_bytes(self) -> int:
        """All but the cache."""
        return (self.weights_bytes or 0) + self.overhead_bytes

    @property
    def context_bytes(self) -> int | None:
        """A whole context in the cache."""
        return None if self.token_bytes is None or self.context is None else self.token_bytes * self.context

    def row(self, role: str, device: Gpu | Machine, *, share: float | None = None, cache_bytes: int | None = None) -> MemoryRow:
        """The row of a memory plan: of an engine that may use this `share` of a device its cache is what the rest leaves, unless its size
        is given."""
        share_bytes = None if share is None or device.memory_bytes is None else int(device.memory_bytes * share)
        if cache_bytes is None and share_bytes is not None and self.weights_bytes is not None:
            cache_bytes = share_bytes - self.fixed_bytes
        tokens = None if cache_bytes is None or not self.token_bytes else max(0, cache_bytes) // self.token_bytes
        return MemoryRow(
            role=role,
            device=f"GPU {device.index}" if isinstance(device, Gpu) else "CPU",
            total_bytes=device.memory_bytes,
            free_bytes=device.free_bytes if isinstance(device, Gpu) else device.free_memory_bytes,
            share=share,
            share_bytes=share_bytes,
            weights_bytes=self.weights_bytes,
            weights_source=self.weights_source,
            overhead_bytes=self.overhead_bytes,
            cache_bytes=cache_bytes,
            cache_tokens=tokens,
            sequences=None if tokens is None or self.context is None else tokens / self.context,
        )


def shortages(rows: Iterable[tuple[MemoryRow, int]], remedy: str) -> Iterator[Finding]:
    """A finding for each engine that takes more of its device than is free, of `rows` with the bytes that each takes when it starts.

    Engines start in this order, so that those before one take their part first.
    """
    taken: dict[str, dict[str, int]] = {}
    for row, wanted in rows:
        before = taken.setdefault(row.device, {})
        left = None if row.free_bytes is None else row.free_bytes - sum(before.values())
        if row.free_bytes is not None and left is not None and wanted > left:
            place = "main memory" if row.device == "CPU" else row.device
            what = f"it needs {gib(wanted)} of {place}, {gib(row.weights_bytes or 0)} of weights ({row.weights_source}) among them"
            what += f", but {gib(row.free_bytes)} are free"
            if before:
                what += f", and {' and '.join(before)} before it need{'' if len(before) > 1 else 's'} {gib(sum(before.values()))}"
            yield Finding(role=row.role, what=what, remedy=remedy, fatal=row.weights_source != GUESSED)
        before[row.role] = wanted
