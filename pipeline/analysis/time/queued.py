"""How long chains waited in queues: their calls enter, the seconds in which at least one of them was queued leave, here or at an engine."""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

COLUMNS = ("chain_id", "submit_unix_ns", "client_wait_s", "queue_time_s")


def queued_s(batches: Iterable[pa.RecordBatch], chains: Sequence[str]) -> dict[str, float]:
    """Seconds by chain; `batches` of the table `calls` have `COLUMNS`. A queue whose engine does not report it counts as empty."""
    wanted = pa.array(chains, pa.string())
    spans: dict[str, list[tuple[float, float]]] = {chain: [] for chain in chains}
    for batch in batches:
        mine = batch.filter(pc.is_in(batch.column("chain_id"), wanted))
        queue = pc.fill_null(mine.column("queue_time_s").cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
        submit = mine.column("submit_unix_ns").to_numpy().astype(np.int64)
        begin = submit - (mine.column("client_wait_s").to_numpy() * 1e9).astype(np.int64)
        end = submit + (queue * 1e9).astype(np.int64)
        for chain, *span in zip(mine.column("chain_id").to_pylist(), begin.tolist(), end.tolist(), strict=True):
            spans[chain].append((span[0], span[1]))
    return {chain: _union(sorted(each)) / 1e9 for chain, each in spans.items()}


def _union(spans: Sequence[tuple[float, float]]) -> float:
    """The length of what these spans, in the order of their starts, cover."""
    total, reached = 0.0, float("-inf")
    for begin, end in spans:
        total += max(end - max(begin, reached), 0.0)
        reached = max(reached, end)
    return total
