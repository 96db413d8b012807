"""The key-value cache: which tokens each slot holds, the keys and values of all slots, and the model's attention over them.

A slot holds one token sequence. Sequences run in the lowest free slots, so that attention reads them as one view, without gathering;
prefixes that are only kept make way. A batch is flat: one row of tokens in which every sequence that decodes has one token and every prompt
that is prefilled has a chunk. All but attention is computed on the flat row, so nothing is padded; a token attends to the slot of its own
sequence. transformers' modelling code calls `update` and `attend` and is otherwise unchanged.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pipeline.errors import UsageError

LEAST_COPY = 16
"""A prefix that is shorter than this is computed again rather than copied."""
_COMPARED = 512
"""Tokens of all slots that are compared with a prompt at once."""
_NEWEST, _BUSY = 1 << 60, 1 << 62
_GATHER_COST = 3
"""Cost of gathering a slot in units of reading one in place: gathering reads it, writes it, and reads the copy."""


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
    """The tokens of every slot, which sequence runs in it, and what is lost when it is reused. Tensors are copied by the caller."""

    def __init__(self, slots: int, capacity: int) -> None:
        self.tokens: NDArray[np.int64] = np.full((slots, capacity), -1, dtype=np.int64)
        self.length: NDArray[np.int64] = np.zeros(slots, dtype=np.int64)
        self._chain: NDArray[np.int64] = np.zeros(slots, dtype=np.int64)
        """The hash of the chain that a slot's content belongs to; 0: none."""
        self._worth: NDArray[np.int64] = np.zeros(slots, dtype=np.int64)
        """Value of a slot's content, least first to be evicted: 0 for none, else when it was released, plus `_NEWEST` for what a chain
        released last."""
        self._busy: NDArray[np.int64] = np.zeros(slots, dtype=np.int64)
        """`_BUSY`, more than any value in `_worth`, where a sequence runs; else 0."""
        self._released = 0

    def match(self, prompt: NDArray[np.int64]) -> tuple[int, int]:
        """The slot that shares the longest prefix with `prompt`, and its length; the last token never counts, as it must be computed."""
        rows = np.flatnonzero((self.tokens[:, 0] == prompt[0]) & (self.length > 0))
        end = min(len(prompt) - 1, self.tokens.shape[1])
        if not len(rows) or not end:
            return 0, 0
        shared = np.minimum(_shared(self.tokens, rows, prompt[:end]), self.length[rows])
        # Between equals: one that is not running, and stands where it can run.
        best = int(np.argmax(shared * 4 + (self._busy[rows] == 0) * 2 + (rows < self._close)))
        return int(rows[best]), int(shared[best])

    def place(self, prompt: NDArray[np.int64], chain: str) -> SlotPlace:
        """Take a slot for a sequence of `chain` that starts with `prompt`, reusing the longest prefix that is there."""
        source, cached = self.match(prompt)
        if cached and self._may_continue(source, cached, chain):
            self._take(source, chain, cached)
            return SlotPlace(source, cached, [])
        if cached < LEAST_COPY:
            return self.reserve(chain)
        held = int(self._busy[source])
        self._busy[source] = _BUSY  # the source must survive until it is copied
        slot, _, copies = self.reserve(chain)
        self._busy[source] = held
        copies.append(self.fork(source, slot, cached))
        if not held and self._loses_nothing(source, cached, chain):
            self.length[source] = self._worth[source] = self._chain[source] = 0
        return SlotPlace(slot, cached, copies)

    def reserve(self, chain: str) -> SlotPlace:
        """Take the lowest slot in which no sequence runs; its content moves to the slot whose content is worth least, if that is less."""
        slot, least = int(np.argmin(self._busy)), int(np.argmin(self._worth | self._busy))
        copies = []
        if self._worth[least] < self._worth[slot]:
            copies.append(self.fork(slot, least, int(self.length[slot])))
            self._worth[least], self._chain[least] = self._worth[slot], self._chain[slot]
        self._take(slot, chain, 0)
        return SlotPlace(slot, 0, copies)

    def fork(self, source: int, target: int, tokens: int) -> Copy:
        """Give slot `target` the first `tokens` tokens of `source`."""
        self.tokens[target, :tokens] = self.tokens[source, :tokens]
        self.length[target] = tokens
        return Copy(source, target, tokens)

    def write(self, slots: NDArray[np.int64], positions: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        """Note the tokens whose keys and values are computed in this iteration; positions of one slot must ascend."""
        self.tokens[slots, positions] = ids
        self.length[slots] = positions + 1

    def release(self, slot: int) -> None:
        """Free a slot whose sequence has ended; the content stays until the slot is needed."""
        self._busy[slot] = 0
        if (chain := self._chain[slot]) != 0:
            self._worth[self._chain == chain] &= ~_NEWEST
        self._released += 1
        self._worth[slot] = self._released | _NEWEST if self.length[slot] else 0

    def reset_prefix_cache(self) -> None:
        """Drop the content of every slot in which no sequence runs."""
        self.length *= self._busy != 0
        self._worth *= self._busy != 0

    def grow(self, capacity: int) -> None:
        """Make room for sequences of `capacity` tokens."""
        self.tokens = np.pad(self.tokens, ((0, 0), (0, capacity - self.tokens.shape[1])), constant_values=-1)

    @property
    def _close(self) -> int:
        """The slot below which a sequence may run without making the view of all running slots much wider."""
        running = int(np.count_nonzero(self._busy))
        return running + running // 4 + 4

    def _may_continue(self, slot: int, cached: int, chain: str) -> bool:
        """True if a sequence of `chain` may run in `slot` itself, whose first `cached` tokens it shares."""
        if self._busy[slot]:
            return False
        only_one_left = np.count_nonzero(self._busy) == len(self._busy) - 1
        return only_one_left or (slot < self._close and self._loses_nothing(slot, cached, chain))

    def _loses_nothing(self, slot: int, cached: int, chain: str) -> bool:
        """True if cutting the slot after `cached` tokens loses nothing, or only a branch that its own chain has left."""
        return bool(cached == self.length[slot] or (chain and self._chain[slot] == hash(chain)))

    def _take(self, slot: int, chain: str, keep: int) -> None:
        self._busy[slot], self.length[slot], self._chain[slot] = _BUSY, keep, hash(chain) if chain else 0


def _shared(tokens: NDArray[np.int64], rows: NDArray[np.int64], prompt: NDArray[np.int64]) -> NDArray[np.int64]:
    """Length of the prefix that each of `rows` shares with `prompt`; compared in blocks, so that rows that differ early cost little."""
    shared = np.zeros(len(rows), dtype=np.int64)
    alive = np.arange(len(rows))
    for start in range(0, len(prompt), _COMPARED):
        block = prompt[start : start + _COMPARED]
        differs = tokens[rows[alive], start : start + len(block)] != block
        first = differs.argmax(axis=1)
        whole = ~differs[np.arange(len(alive)), first]
        shared[alive] += np.where(whole, len(block), first)
        alive = alive[whole]
        if not len(alive):
            break
    return shared


class PrefillChunk(NamedTuple):
    """Tokens `start` to `end` of a flat batch belong to `slot` and begin at `position` of its sequence."""

    slot: int
    start: int
    end: int
    position: int


class BatchLayout:
    """Where the tokens of one iteration are: first one token for each slot that decodes, then the chunks of prefills."""

    def __init__(self, slots: NDArray[np.int64], positions: NDArray[np.int64], decoding: int, chunks: list[PrefillChunk]) -> None:
        self.slots, self.positions, self.decoding, self.chunks = slots, positions, decoding, chunks
        self.rows = slots[:decoding]
        self.low, self.high = (int(self.rows.min()), int(self.rows.max()) + 1) if decoding else (0, 0)
        """The narrowest range of slots that holds all `rows`, the slots that decode."""
        self.reach = int(positions[:decoding].max(initial=-1)) + 1
        """Positions that a decoding token may attend to."""
        width = self.high - self.low
        self.gathers = width > _GATHER_COST * decoding
        """True if copying the slots that decode together is cheaper than computing with the whole range."""
        self.spreads = not self.gathers and not (width == decoding and bool((np.diff(self.rows) == 1).all()))
        """True if attention is computed for the whole range, because other slots lie between those that decode, or their order differs."""


class AttentionShape(NamedTuple):
    """The sizes of a model's attention: layers, query heads, key-value heads that these share, and values in a head."""

    layers: int
    query_heads: int
    heads: int
    head_dim: int


class KVCache:
    """Keys and values of all slots in one tensor (2 * layers, slots, heads, capacity, head_dim), and the model's attention over them."""

    def __init__(self, shape: AttentionShape, slots: int, capacity: int, dtype: torch.dtype, device: str) -> None:
        self.heads, self.head_dim, self.capacity = shape.heads, shape.head_dim, capacity
        self._groups = shape.query_heads // shape.heads
        # Zeros, not uninitialised memory: a NaN stays a NaN under an additive mask.
        self._kv = torch.zeros(2 * shape.layers, slots, shape.heads, capacity, shape.head_dim, dtype=dtype, device=device)
        self._batch: BatchLayout
        self._masks: dict[int | None, tuple[Tensor, list[Tensor]]] = {}
        self._explicit = device == "cpu" and dtype != torch.float32

    def begin(self, batch: BatchLayout) -> None:
        """Prepare for a forward pass over `batch`."""
        self._batch = batch
        self._masks.clear()
        first = batch.slots * (self.heads * self.capacity) + batch.positions
        index = first[:, None] + np.arange(self.heads) * self.capacity
        self._index = self._on_device(index.reshape(-1))
        self._rows = self._on_device(batch.rows if batch.gathers else batch.rows - batch.low)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` positions of slot `source` to slot `target`."""
        self._kv[:, target, :, :tokens].copy_(self._kv[:, source, :, :tokens])

    def grow(self, capacity: int) -> None:
        """Make every slot `capacity` tokens long, keeping its content; raises `MemoryError` when the device has no room."""
        layers, slots, heads, _, head_dim = self._kv.shape
        try:
            wider = self._kv.new_zeros(layers, slots, heads, capacity, head_dim)
        except RuntimeError as error:
            need = f"{slots} KV slots of {capacity} tokens do not fit in the memory of {self._kv.device}"
            raise MemoryError(f"{need}; lower max_num_seqs or max_model_len") from error
        wider[:, :, :, : self.capacity] = self._kv
        self._kv, self.capacity = wider, capacity

    def get_seq_length(self, layer: int = 0) -> int:
        """Called by transformers' modelling code only where it is given no positions, which never happens here."""
        return 0

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the batch's keys and values (1, heads, tokens, head_dim) and return those of all slots in this layer."""
        stored = self._kv[2 * layer], self._kv[2 * layer + 1]
        for store, new in zip(stored, (keys, values), strict=True):
            store.view(-1, self.head_dim).index_copy_(0, self._index, new[0].transpose(0, 1).reshape(-1, self.head_dim))
        return stored

    def attend(
        self,
        module: torch.nn.Module,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """Attention of every token over its own slot, with the signature that transformers calls; returns (1, tokens, heads, head_dim)."""
        if softcap is not None or s_aux is not None:
            raise UsageError("attention with soft caps or sinks is not supported")
        scale = scaling if scaling is not None else self.head_dim**-0.5
        decode_mask, chunk_masks = self._masks_for(sliding_window)
        parts = [self._decode(query[0], keys, values, decode_mask, scale)] if self._batch.decoding else []
        for chunk, mask in zip(self._batch.chunks, chunk_masks, strict=True):
            parts.append(self._prefill(query[0], keys, values, chunk, mask, scale))
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return whole.unsqueeze(0), None

    def _decode(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
        """Attention of the decoding tokens, one for each slot. Query heads that share a key-value head are passed to SDPA as if they
        were several query positions of one head."""
        batch, count = self._batch, self._batch.decoding
        q = query[:, :count].reshape(self.heads, -1, count, query.shape[-1]).permute(2, 0, 1, 3)
        if batch.gathers:
            k, v = (each[:, :, : batch.reach].index_select(0, self._rows) for each in (keys, values))
        else:
            k, v = (each[batch.low : batch.high, :, : batch.reach] for each in (keys, values))
        if batch.spreads:
            q = q.new_zeros(batch.high - batch.low, *q.shape[1:]).index_copy_(0, self._rows, q)
        if self._explicit:  # on a CPU, below float32, two products are up to twice as fast as SDPA for single tokens
            weights = torch.matmul(q * scale, k.transpose(2, 3)) + mask
            out = torch.matmul(torch.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype), v)
        else:
            out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        if batch.spreads:
            out = out.index_select(0, self._rows)
        return out.reshape(count, -1, self.head_dim)

    def _prefill(self, query: Tensor, keys: Tensor, values: Tensor, chunk: PrefillChunk, mask: Tensor, scale: float) -> Tensor:
        slot, start, end, position = chunk
        length, reach = end - start, position + end - start
        q = query[:, start:end].reshape(1, self.heads, -1, self.head_dim)
        k, v = (each[slot : slot + 1, :, :reach] for each in (keys, values))
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        return out.view(self.heads, -1, length, self.head_dim).permute(2, 0, 1, 3).reshape(length, -1, self.head_dim)

    def _masks_for(self, window: int | None) -> tuple[Tensor, list[Tensor]]:
        """Additive masks of the batch, made once for all layers: (rows, 1, 1, reach) for decoding, (queries, reach) for each chunk."""
        if window not in self._masks:
            batch = self._batch
            positions = batch.positions[: batch.decoding]
            if batch.spreads:
                positions = np.zeros(batch.high - batch.low, dtype=np.int64)
                positions[batch.rows - batch.low] = batch.positions[: batch.decoding]
            decode = self._additive(positions, batch.reach, window)[:, None, None]
            ranges = [np.arange(chunk.position, chunk.position + chunk.end - chunk.start) for chunk in batch.chunks]
            chunks = [self._additive(each, int(each[-1]) + 1, window).repeat(self._groups, 1) for each in ranges]
            self._masks[window] = decode, chunks
        return self._masks[window]

    def _additive(self, positions: NDArray[np.int64], reach: int, window: int | None) -> Tensor:
        """An additive mask (positions, reach): 0 where a token at one of `positions` may attend, -inf elsewhere."""
        at = self._on_device(positions)[:, None]
        key = torch.arange(reach, device=self._kv.device)
        hidden = key > at
        if window is not None:
            hidden |= key <= at - window
        return torch.zeros(hidden.shape, dtype=self._kv.dtype, device=self._kv.device).masked_fill_(hidden, -torch.inf)

    def _on_device(self, numbers: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(numbers).to(self._kv.device)
