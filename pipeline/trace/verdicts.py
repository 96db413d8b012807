"""What a chain counts as in every accuracy: rows of the chains table enter, `right`, `wrong` or `not graded` leaves.

The only place of the rule: a chain that failed has no grade in the table, and counts as wrong where its problem has a reference answer.
A chain that was cancelled counts as nothing, as it is solved when the run goes on.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

COLUMNS = ("correct", "stop_reason", "reference_answer")
"""Columns of the chains table that decide it."""


def counted(correct: bool | None, stop_reason: str, reference_answer: str | None) -> bool | None:
    """Whether a chain counts as right; None where it does not count."""
    return False if stop_reason == "error" and reference_answer is not None else correct


def verdicts(chains: pa.RecordBatch) -> "np.ndarray[Any, np.dtype[np.int8]]":
    """The same of a batch with `COLUMNS`, one element for each row: 1 right, 0 wrong, -1 not counted."""
    correct = chains.column("correct").cast("int8").fill_null(-1)
    failed = pc.and_(pc.equal(chains.column("stop_reason"), "error"), chains.column("reference_answer").is_valid())
    return np.asarray(pc.if_else(failed, pa.scalar(0, pa.int8()), correct).to_numpy(zero_copy_only=False))
