"""What a call was for and what a verdict's value means, whichever version wrote the trace: rows enter, rows with all columns leave.

Analyses go by these columns and never by a kind of stage, so that a verifier of another package counts as the built-in ones do.
Earlier versions wrote only the kind of stage; the columns that follow from it are filled in here and nowhere else.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.reasoning.chain import Scale
from pipeline.store.read import read_batches

PURPOSE_BY_KIND = {"draft": "draft", "choose": "judge", "score": "judge", "likelihood": "judge", "answer": "answer", "generate": "write"}
"""The purpose of the calls of each kind of stage that earlier versions had; a `generate` before the first step has the purpose `guide`."""
PURPOSE_FROM = ("kind", "step_index")
"""Columns of the calls table from which a missing `purpose` is derived."""
SCALE_BY_KIND = {
    "choose": Scale("probability of the chosen option", 0.0, 1.0),
    "score": Scale("score", 0.0, 9.0, integers=True),
    "likelihood": Scale("log probability of the best candidate", high=0.0, unit="nats per token"),
}
"""The scale of the verdicts of each kind of verifier that earlier versions had."""
OF_CANDIDATES = ("choose", "likelihood")
"""Kinds of verifiers whose options are the candidates themselves."""
SCALE_COLUMNS = {
    "score_scale": pa.string(),
    "score_unit": pa.string(),
    "score_low": pa.float64(),
    "score_high": pa.float64(),
    "score_integers": pa.bool_(),
    "score_of_candidates": pa.bool_(),
}
"""Columns of the steps table that describe a verdict, with their types; where they are missing they are derived from `verify_kind`."""
Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


def with_purpose(calls: Rows) -> Rows:
    """Rows of the calls table with a column `purpose`; `calls` must have the columns `PURPOSE_FROM`."""
    if "purpose" in calls.schema.names:
        return calls
    known = pc.index_in(calls.column("kind").cast(pa.string()), value_set=pa.array(PURPOSE_BY_KIND))
    purpose = pc.fill_null(pc.take(pa.array(PURPOSE_BY_KIND.values()), known), "write")
    guides = pc.and_(pc.equal(purpose, "write"), pc.equal(calls.column("step_index"), 0))
    return calls.append_column("purpose", pc.if_else(guides, "guide", purpose))


def read_steps(run: Path, columns: Sequence[str], maybe: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """Read the steps table of the run folder `run` in batches, with `columns`, those of `maybe` that it has, `verify_kind` and all
    `SCALE_COLUMNS`.

    The `SCALE_COLUMNS` are null in steps that were not verified. Raises `InputError` as `read_batches` does.
    """
    for batch in read_batches(run, "steps", tuple(dict.fromkeys((*columns, "verify_kind"))), maybe=(*SCALE_COLUMNS, *maybe)):
        yield _with_scale(batch)


def _with_scale(steps: pa.RecordBatch) -> pa.RecordBatch:
    if "score_scale" in steps.schema.names:
        return steps
    rows = [_scale_row(kind) for kind in steps.column("verify_kind").to_pylist()]
    for name, type_ in SCALE_COLUMNS.items():
        steps = steps.append_column(name, pa.array([row.get(name) for row in rows], type_))
    return steps


def _scale_row(kind: str | None) -> dict[str, Any]:
    """The `SCALE_COLUMNS` of a verdict by a verifier of this kind, as an earlier version recorded it; empty without a verdict."""
    if kind is None:
        return {}
    scale = SCALE_BY_KIND.get(kind, Scale("value"))
    of_candidates = kind in OF_CANDIDATES
    return dict(zip(SCALE_COLUMNS, (scale.name, scale.unit, scale.low, scale.high, scale.integers, of_candidates), strict=True))


def is_share(scale: Scale) -> bool:
    """Is every value from 0 to 1, so that it can be read as how sure the verifier is?"""
    return (scale.low, scale.high, scale.integers) == (0.0, 1.0, False)


def scale_of(step: Any) -> Scale:
    """The scale of a step's verdict; `step` is a row with `SCALE_COLUMNS` whose step was verified."""
    return Scale(step["score_scale"], step["score_low"], step["score_high"], step["score_unit"], step["score_integers"])
