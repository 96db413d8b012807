"""What a chain counts as: a failed one as wrong where there is a reference answer, a cancelled one as nothing."""

import pyarrow as pa
import pytest

from pipeline.analysis.quality.verdicts import COLUMNS, verdicts
from pipeline.store.events import counted

ROWS = [
    (True, "thought_closed", "5", True),
    (False, "token_budget", "5", False),
    (None, "thought_closed", None, None),
    (None, "error", "5", False),
    (None, "error", None, None),
    (None, "cancelled", "5", None),
]


@pytest.mark.parametrize(("correct", "stop_reason", "reference", "expected"), ROWS)
def test_one_chain(correct: bool | None, stop_reason: str, reference: str | None, expected: bool | None) -> None:
    assert counted(correct, stop_reason, reference) is expected


def test_a_batch_says_the_same() -> None:
    columns = dict(zip(COLUMNS, [list(column) for column in zip(*(row[:3] for row in ROWS), strict=True)], strict=True))
    batch = pa.RecordBatch.from_pydict(columns, schema=pa.schema([("correct", pa.bool_()), *((name, pa.string()) for name in COLUMNS[1:])]))
    assert verdicts(batch).tolist() == [1, 0, -1, 0, -1, -1]
