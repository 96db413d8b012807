"""Heaps of things that wait, some of which leave by another way and stay in the heap until they come to its top."""

from collections.abc import Callable
from heapq import heapify
from typing import Any, TypeVar

Entry = TypeVar("Entry", bound=tuple[Any, ...])
FEW = 128
"""A heap with no more entries than this, and two for each thing that waits, is not searched."""


def forget(heap: list[Entry], waiting: int, waits: Callable[[Entry], bool]) -> None:
    """Take out of `heap` what does not wait any more, once that is most of it, where `waiting` things do: it would else stay below ever
    new entries with lower keys until the end of the run."""
    if len(heap) > FEW + 2 * waiting:
        heap[:] = filter(waits, heap)
        heapify(heap)
