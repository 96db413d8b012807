"""Keeps track of which tokens each slot of the KV cache holds, and with which adapter they were computed: longest-prefix match,
placement, eviction. No tensors here.

A slot holds the keys and values of one token sequence. Sequences run in the lowest free slots, so that they lie close together
and attention reads them as one view, without gathering; prefixes that are only kept make way for them. The moves between slots
that this takes are returned as copies for the caller to carry out.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEAST_COPY = 16
"""A prefix that is shorter than this is computed again rather than copied."""
_BLOCK = 512
_PRIMARY = 1 << 60
_BUSY = 1 << 62


class Copy(NamedTuple):
    """The first `tokens` positions of slot `source` go to slot `target`."""

    source: int
    target: int
    tokens: int


class SlotPlace(NamedTuple):
    """Where a sequence runs, how many of its first tokens are already there, and the copies that make it so, in order."""

    slot: int
    cached: int
    copies: list[Copy]


class SlotTable:
    """The tokens of every slot, which sequence runs in it, and what is lost when it is reused."""

    def __init__(self, slots: int, capacity: int) -> None:
        self.capacity = capacity
        self.tokens: NDArray[np.int64] = np.full((slots, capacity), -1, dtype=np.int64)
        self.length: NDArray[np.int64] = np.zeros(slots, dtype=np.int64)
        self.affinity = [""] * slots
        self._adapter: NDArray[np.int64] = np.zeros(slots, dtype=np.int64)
        """The number of the adapter that a slot's content was computed with."""
        self._adapters: dict[str | None, int] = {None: 0}
        """The adapters that were asked for, by name, with their numbers."""
        self._worth: NDArray[np.int64] = np.zeros(slots, dtype=np.int64)
        """Value of a slot's content, least first to be evicted: 0 for none; for a leftover of a chain the tick at which it was released;
        for the newest content of a chain that tick plus `_PRIMARY`."""
        self._busy: NDArray[np.int64] = np.zeros(slots, dtype=np.int64)
        """`_BUSY`, more than any value in `_worth`, where a sequence runs; else 0."""
        self._tick = 0
        self._primary: dict[str, int] = {}

    @property
    def usage(self) -> float:
        """Share of the slots that hold anything, 0 to 1."""
        return float(np.count_nonzero(self.length)) / len(self.length)

    def match(self, prompt: NDArray[np.int64], adapter: str | None = None) -> tuple[int, int]:
        """The slot of this adapter that shares the longest prefix with `prompt`, and its length; the last token never counts, as it must be
        computed."""
        rows = np.flatnonzero((self.tokens[:, 0] == prompt[0]) & (self.length > 0) & (self._adapter == self._number(adapter)))
        end = min(len(prompt) - 1, self.capacity)
        if not len(rows) or not end:
            return 0, 0
        shared = np.minimum(_shared(self.tokens, rows, prompt[:end]), self.length[rows])
        # Between equals: one that is not running, and stands where it can run.
        ease = (self._busy[rows] == 0) * 2 + (rows < self._close)
        best = int(np.argmax(shared * 4 + ease))
        return int(rows[best]), int(shared[best])

    def place(self, prompt: NDArray[np.int64], affinity: str, adapter: str | None = None) -> SlotPlace:
        """Take a slot for a sequence that starts with `prompt`, reusing the longest prefix that was computed with the same adapter."""
        source, cached = self.match(prompt, adapter)
        if cached and self._may_continue(source, cached, affinity):
            self._take(source, affinity, adapter, cached)
            return SlotPlace(source, cached, [])
        if cached < LEAST_COPY:
            return self.reserve(affinity, adapter)
        held = int(self._busy[source])
        self._busy[source] = _BUSY  # the source must survive until it is copied
        slot, _, copies = self.reserve(affinity, adapter)
        self._busy[source] = held
        copies.append(Copy(source, slot, cached))
        self._copy_tokens(copies[-1])
        if not held and self._loses_nothing(source, cached, affinity):
            self._forget(source)
        self._take(slot, affinity, adapter, cached)
        return SlotPlace(slot, cached, copies)

    def reserve(self, affinity: str, adapter: str | None = None) -> SlotPlace:
        """Take the lowest slot in which no sequence runs; its content moves to the slot whose content is worth least, if that is less."""
        slot = int(np.argmin(self._busy))
        ranks = self._worth | self._busy
        least = int(np.argmin(ranks))
        copies = []
        if ranks[least] < ranks[slot]:
            copies.append(Copy(slot, least, int(self.length[slot])))
            self._move(copies[0])
        self._take(slot, affinity, adapter, 0)
        return SlotPlace(slot, 0, copies)

    def fork(self, source: int, target: int, tokens: int) -> Copy:
        """Give `target`, a reserved slot, the first `tokens` tokens of `source`."""
        copy = Copy(source, target, tokens)
        self._copy_tokens(copy)
        return copy

    def write(self, slots: NDArray[np.int64], positions: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        """Note the tokens whose keys and values are computed in this iteration; positions of one slot must ascend."""
        self.tokens[slots, positions] = ids
        self.length[slots] = positions + 1

    def release(self, slot: int) -> None:
        """Free a slot whose sequence has ended; the content stays until the slot is needed."""
        self._busy[slot] = 0
        if not self.length[slot]:
            self._forget(slot)
            return
        affinity = self.affinity[slot]
        if affinity:
            earlier = self._primary.get(affinity, slot)
            if earlier != slot and self.affinity[earlier] == affinity:
                self._worth[earlier] &= ~_PRIMARY
            self._primary[affinity] = slot
        self._tick += 1
        self._worth[slot] = self._tick | _PRIMARY

    def reset_prefix_cache(self) -> None:
        """Drop the content of every slot in which no sequence runs."""
        for slot in np.flatnonzero(self._busy == 0).tolist():
            self._forget(slot)

    def grow(self, capacity: int) -> None:
        """Make room for sequences of `capacity` tokens."""
        wider = np.full((len(self.length), capacity), -1, dtype=np.int64)
        wider[:, : self.capacity] = self.tokens
        self.tokens, self.capacity = wider, capacity

    @property
    def _close(self) -> int:
        """The slot below which a sequence may run without making the view of all running slots much wider."""
        running = int(np.count_nonzero(self._busy))
        return running + running // 4 + 4

    def _may_continue(self, slot: int, cached: int, affinity: str) -> bool:
        """True if a sequence of the chain `affinity` may run in `slot` itself, whose first `cached` tokens it shares."""
        if self._busy[slot]:
            return False
        only_one_left = np.count_nonzero(self._busy) == len(self._busy) - 1
        return only_one_left or (slot < self._close and self._loses_nothing(slot, cached, affinity))

    def _loses_nothing(self, slot: int, cached: int, affinity: str) -> bool:
        """True if cutting the slot after `cached` tokens loses nothing, or only a branch that its own chain has left."""
        return cached == self.length[slot] or bool(affinity and self.affinity[slot] == affinity)

    def _take(self, slot: int, affinity: str, adapter: str | None, keep: int) -> None:
        self._disown(slot)
        self._adapter[slot] = self._number(adapter)
        self._busy[slot] = _BUSY
        self.length[slot] = keep
        self.affinity[slot] = affinity

    def _forget(self, slot: int) -> None:
        self._disown(slot)
        self.length[slot] = self._worth[slot] = 0
        self.affinity[slot] = ""

    def _disown(self, slot: int) -> None:
        """Note that `slot` no longer holds the newest content of its chain."""
        if self._primary.get(self.affinity[slot]) == slot:
            del self._primary[self.affinity[slot]]

    def _move(self, copy: Copy) -> None:
        source, target, _ = copy
        self._disown(target)
        self._copy_tokens(copy)
        self._worth[target] = self._worth[source]
        self.affinity[target] = self.affinity[source]
        self._adapter[target] = self._adapter[source]
        if self._primary.get(self.affinity[source]) == source:
            self._primary[self.affinity[source]] = target

    def _number(self, adapter: str | None) -> int:
        return self._adapters.setdefault(adapter, len(self._adapters))

    def _copy_tokens(self, copy: Copy) -> None:
        source, target, tokens = copy
        self.tokens[target, :tokens] = self.tokens[source, :tokens]
        self.length[target] = tokens


def _shared(tokens: NDArray[np.int64], rows: NDArray[np.int64], prompt: NDArray[np.int64]) -> NDArray[np.int64]:
    """Length of the prefix that each of `rows` shares with `prompt`; compared in blocks, so that rows that differ early cost little."""
    shared = np.zeros(len(rows), dtype=np.int64)
    alive = np.arange(len(rows))
    for start in range(0, len(prompt), _BLOCK):
        block = prompt[start : start + _BLOCK]
        differs = tokens[rows[alive], start : start + len(block)] != block
        first = differs.argmax(axis=1)
        whole = ~differs[np.arange(len(alive)), first]
        shared[alive] += np.where(whole, len(block), first)
        alive = alive[whole]
        if not len(alive):
            break
    return shared
