"""What a chain counts as in every accuracy: rows of the chains table enter, `right`, `wrong` or `not graded` leaves.

The only place of the rule: a chain that failed has no grade in the table, and counts as wrong where its problem has a reference answer.
A chain that was cancelled counts as nothing, as it is solved when the run goes on.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.trace.events import UNFINISHED

COLUMNS = ("correct", "stop_reason", "reference_answer")
"""Columns of the chains table that decide it."""


def counted(correct: bool | None, stop_reason: str, reference_answer: str | None) -> bool | None:
    """Whether a chain counts as right; None where it does not count."""
    if stop_reason in UNFINISHED:
        return False if stop_reason == "error" and reference_answer is not None else None
    return correct


def verdicts(chains: pa.RecordBatch) -> "np.ndarray[Any, np.dtype[np.int8]]":
    """The same of a batch with `COLUMNS`, one element for each row: 1 right, 0 wrong, -1 not counted."""
    correct = chains.column("correct").cast("int8").fill_null(-1).to_numpy(zero_copy_only=False)
    reasons, asked = chains.column("stop_reason"), chains.column("reference_answer").is_valid().to_numpy(zero_copy_only=False)
    unfinished = pc.is_in(reasons, value_set=pa.array(UNFINISHED)).to_numpy(zero_copy_only=False)
    failed = pc.fill_null(pc.equal(reasons, "error"), False).to_numpy(zero_copy_only=False)
    return np.where(unfinished, np.where(failed & asked, 0, -1), correct).astype(np.int8)
