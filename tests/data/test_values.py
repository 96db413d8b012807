"""Values as text: numbers in the width of their column, everything else that has one text of its own."""

import datetime
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.problems import Problem, open_problems
from pipeline.data.rows import Flaw, as_text, shortest
from pipeline.errors import BadRow


@given(st.floats(width=16, allow_nan=False) | st.floats(width=32, allow_nan=False))
def test_a_number_of_less_precision_has_the_digits_that_numpy_prints(value: float) -> None:
    for kind in (np.float16, np.float32):
        with np.errstate(over="ignore"):
            narrow = kind(value)
        assert shortest(narrow, kind) == float(str(narrow))
        assert kind(shortest(narrow, kind)) == narrow or not np.isfinite(narrow)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_written_out_and_stays_what_it_is(value: float) -> None:
    text = as_text("x", value)
    assert text is not None
    assert float(text) == value
    assert "e" not in text
    assert not text.endswith(".0")


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_a_decimal_stays_what_it_is(value: Decimal) -> None:
    try:
        text = as_text("x", value)
    except Flaw:
        assert abs(value.adjusted()) > 4000
        return
    assert text is not None
    assert Decimal(text) == value


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_answers_of_every_width(tmp_path: Path, kind: pa.DataType) -> None:
    numbers = pa.array(np.array([0.3, 0.1, 2, 1.5], dtype=kind.to_pandas_dtype()), kind)
    nested = pa.array([[0.3], [0.1], [2.0], None], pa.list_(pa.float32()))
    inside = pa.StructArray.from_arrays([numbers], ["gold"])
    pq.write_table(pa.table({"problem": ["x"] * 4, "flat": numbers, "nested": nested, "inside": inside}), tmp_path / "p.parquet")
    for column in ("flat", "inside.gold", "nested"):
        found = [item.answer for item in open_problems(tmp_path / "p.parquet", {"answer": column}) if isinstance(item, Problem)]
        assert found == ["0.3", "0.1", "2", None if column == "nested" else "1.5"]


COLUMNS: list[tuple[Any, list[str | None]]] = [
    (pa.array([datetime.date(2024, 1, 2)]), ["2024-01-02"]),
    (pa.array([datetime.time(1, 2)]), ["01:02:00"]),
    (pa.array([datetime.datetime(2024, 1, 2, 3)], pa.timestamp("us", tz="UTC")), ["2024-01-02T03:00:00+00:00"]),
    (pa.array([Decimal("1.50")]), ["1.50"]),
    (pa.array([True, False]), ["true", "false"]),
    (pa.array([b"ab"]), ["ab"]),
    (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([uuid.UUID(int=5).bytes], pa.binary(16))), [str(uuid.UUID(int=5))]),
    (pa.array([2**63], pa.uint64()), [str(2**63)]),
    (pa.array([None], pa.null()), [None]),
]


@pytest.mark.parametrize("values", COLUMNS, ids=lambda each: str(each[0].type))
def test_ids_and_answers_of_every_type(tmp_path: Path, values: tuple[Any, list[str | None]]) -> None:
    array, texts = values
    pq.write_table(pa.table({"problem": ["x"] * len(array), "k": array}), tmp_path / "p.parquet")
    items = [item for item in open_problems(tmp_path / "p.parquet", {"answer": "k", "problem_id": "k"}) if isinstance(item, Problem)]
    assert [item.answer for item in items] == texts
    assert [item.problem_id for item in items] == [text or "(row 1)" for text in texts]


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (pa.array([b"\xff"]), "`k` is binary, expected text"),
        (pa.array([b"\0" * 16], pa.binary(16)), "`k` is binary, expected text"),
        (pa.array([datetime.timedelta(1)]), "`k` is a duration, expected text or a number"),
        (pa.array([float("inf")]), "`k` is infinite"),
    ],
)
def test_a_value_that_is_no_text_is_named(tmp_path: Path, array: Any, what: str) -> None:
    pq.write_table(pa.table({"problem": ["x"], "k": array}), tmp_path / "p.parquet")
    [item] = open_problems(tmp_path / "p.parquet", {"answer": "k"})
    assert isinstance(item, BadRow)
    assert item.what.startswith(what)
