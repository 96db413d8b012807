"""Keys and values of all slots, and attention over them: the `past_key_values` and the attention function of the model.

A batch is flat: one row of tokens in which every sequence that decodes has one token, and every prompt that is prefilled has a
chunk. Everything but attention is computed on the flat row, so nothing is padded; attention of a token reads the slot of its
own sequence. transformers' modelling code calls `update` and `attend` and is otherwise unchanged.
"""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

_GATHER_COST = 3
"""Cost of gathering a slot in units of reading one in place: gathering reads it, writes it, and reads the copy."""


class PrefillChunk(NamedTuple):
    """Tokens `start` to `end` of a flat batch belong to `slot` and begin at `position` of its sequence."""

    slot: int
    start: int
    end: int
    position: int


class BatchLayout:
    """Where the tokens of one iteration are: first one token for each decoding slot, then the chunks of prefills."""

    def __init__(self, slots: NDArray[np.int64], positions: NDArray[np.int64], decoding: int, chunks: list[PrefillChunk]) -> None:
        self.slots, self.positions = slots, positions
        self.decoding, self.chunks = decoding, chunks
        self.reach = int(positions.max()) + 1
        """Positions that some token may attend to: one more than the last position in the batch."""

    @cached_property
    def decode_reach(self) -> int:
        """`reach` of the decoding tokens alone."""
        return int(self.positions[: self.decoding].max()) + 1

    @cached_property
    def span(self) -> tuple[int, int]:
        """The narrowest range of slots, first and end, that holds all slots that decode."""
        rows = self.slots[: self.decoding]
        return int(rows.min()), int(rows.max()) + 1

    @cached_property
    def gathers(self) -> bool:
        """True if so few slots of the span decode that copying them together is cheaper than computing with the whole span."""
        low, high = self.span
        return high - low > _GATHER_COST * self.decoding

    @cached_property
    def dense(self) -> bool:
        """True if the slots that decode are exactly those of the span, in order."""
        low, high = self.span
        rows = self.slots[: self.decoding]
        return high - low == self.decoding and bool((rows == np.arange(low, high)).all())


class AttentionShape(NamedTuple):
    """The sizes of a model's attention: layers, heads, and values in a head."""

    layers: int
    query_heads: int
    heads: int
    """Key-value heads; several query heads may share one."""
    head_dim: int


class KVCache:
    """Keys and values of all slots in one tensor (2 * layers, slots, heads, capacity, head_dim), and the model's attention over them."""

    def __init__(self, shape: AttentionShape, slots: int, capacity: int, dtype: torch.dtype, device: str) -> None:
        self.heads, self.head_dim, self.capacity = shape.heads, shape.head_dim, capacity
        self._groups = shape.query_heads // shape.heads
        # Zeros, not uninitialised memory: a NaN stays a NaN under an additive mask.
        self._kv = torch.zeros(2 * shape.layers, slots, shape.heads, capacity, shape.head_dim, dtype=dtype, device=device)
        self._batch: BatchLayout
        self._masks: dict[int | None, tuple[Tensor | None, list[Tensor]]] = {}
        self._explicit = device == "cpu" and dtype != torch.float32

    def begin(self, batch: BatchLayout) -> None:
        """Prepare for a forward pass over `batch`."""
        self._batch = batch
        self._masks.clear()
        device = self._kv.device
        first = batch.slots * (self.heads * self.capacity) + batch.positions
        index = first[:, None] + np.arange(self.heads) * self.capacity
        self._index = torch.from_numpy(index.reshape(-1)).to(device)
        if batch.decoding:
            low, _ = batch.span
            rows = batch.slots[: batch.decoding]
            self._rows = torch.from_numpy(rows if batch.gathers else rows - low).to(device)

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
            raise MemoryError(f"{need}; lower kv_cache_slots, max_num_seqs or max_model_len") from error
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
        dropout: float = 0.0,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """Attention of every token over its own slot, with the signature that transformers calls; returns (1, tokens, heads, head_dim)."""
        if softcap is not None or s_aux is not None:
            raise NotImplementedError("attention with soft caps or sinks is not supported")
        scale = scaling if scaling is not None else self.head_dim**-0.5
        decode_mask, chunk_masks = self._masks_for(sliding_window)
        parts = []
        if decode_mask is not None:
            parts.append(self._decode(query[0], keys, values, decode_mask, scale))
        for chunk, mask in zip(self._batch.chunks, chunk_masks, strict=True):
            parts.append(self._prefill(query[0], keys, values, chunk, mask, scale))
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return whole.unsqueeze(0), None

    def _decode(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
        """Attention of the decoding tokens, one for each slot. Query heads that share a key-value head are passed to SDPA as if they
        were several query positions of one head."""
        batch, (low, high) = self._batch, self._batch.span
        rows, reach = batch.decoding, batch.decode_reach
        q = query[:, :rows].reshape(self.heads, -1, rows, query.shape[-1]).permute(2, 0, 1, 3)
        if batch.gathers:
            k, v = (x[:, :, :reach].index_select(0, self._rows) for x in (keys, values))
            out = self._product(q, k, v, mask, scale)
        elif batch.dense:
            out = self._product(q, keys[low:high, :, :reach], values[low:high, :, :reach], mask, scale)
        else:
            spread = q.new_zeros(high - low, *q.shape[1:]).index_copy_(0, self._rows, q)
            out = self._product(spread, keys[low:high, :, :reach], values[low:high, :, :reach], mask, scale)
            out = out.index_select(0, self._rows)
        return out.reshape(rows, -1, self.head_dim)

    def _prefill(self, query: Tensor, keys: Tensor, values: Tensor, chunk: PrefillChunk, mask: Tensor, scale: float) -> Tensor:
        slot, start, end, position = chunk
        length, reach = end - start, position + end - start
        q = query[:, start:end].reshape(1, self.heads, -1, self.head_dim)
        k, v = keys[slot : slot + 1, :, :reach], values[slot : slot + 1, :, :reach]
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        return out.view(self.heads, -1, length, self.head_dim).permute(2, 0, 1, 3).reshape(length, -1, self.head_dim)

    def _product(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        if not self._explicit:
            return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        # On a CPU, below float32, two products are up to twice as fast as SDPA for single tokens.
        weights = torch.matmul(q * scale, k.transpose(2, 3)) + mask
        return torch.matmul(torch.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype), v)

    def _masks_for(self, window: int | None) -> tuple[Tensor | None, list[Tensor]]:
        """Additive masks of the batch, made once for all layers: (rows, 1, 1, reach) for decoding, (queries, reach) for each chunk."""
        if window not in self._masks:
            decode = self._decode_mask(window) if self._batch.decoding else None
            self._masks[window] = decode, [self._chunk_mask(s, window) for s in self._batch.chunks]
        return self._masks[window]

    def _decode_mask(self, window: int | None) -> Tensor:
        batch = self._batch
        positions = batch.positions[: batch.decoding]
        if not (batch.gathers or batch.dense):
            low, high = batch.span
            spread = np.zeros(high - low, dtype=np.int64)
            spread[batch.slots[: batch.decoding] - low] = positions
            positions = spread
        return self._additive(positions, batch.decode_reach, window)[:, None, None]

    def _chunk_mask(self, chunk: PrefillChunk, window: int | None) -> Tensor:
        positions = np.arange(chunk.position, chunk.position + chunk.end - chunk.start)
        mask = self._additive(positions, int(positions[-1]) + 1, window)
        return mask.repeat(self._groups, 1)

    def _additive(self, positions: NDArray[np.int64], reach: int, window: int | None) -> Tensor:
        """An additive mask (positions, reach): 0 where a token at one of `positions` may attend, -inf elsewhere."""
        at = torch.from_numpy(positions).to(self._kv.device)[:, None]
        key = torch.arange(reach, device=self._kv.device)
        hidden = key > at
        if window is not None:
            hidden |= key <= at - window
        return torch.zeros(hidden.shape, dtype=self._kv.dtype, device=self._kv.device).masked_fill_(hidden, -torch.inf)
