"""What chains count as in every accuracy: rows of the chains table enter, right, wrong or not counted leaves."""

import numpy as np
import pyarrow as pa

from pipeline.analysis.arrays import Array
from pipeline.store.events import counted

COLUMNS = ("correct", "stop_reason", "reference_answer")
"""Columns of the chains table that decide it."""


def verdicts(chains: pa.RecordBatch) -> Array:
    """`events.counted` of each row of a batch with `COLUMNS`: 1 right, 0 wrong, -1 not counted."""
    rows = zip(*(chains.column(name).to_pylist() for name in COLUMNS), strict=True)
    return np.array([-1 if (found := counted(*row)) is None else int(found) for row in rows], np.int8)
