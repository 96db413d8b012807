"""Structs become schemas with units and foreign names, rows become columns."""

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import fields

from pipeline.store.rows import CallRow, ChainRow, StepRow, _array, columns_of, schema_of
from pipeline.store.store import TABLES

Blank = Callable[..., Any]


@pytest.mark.parametrize("row", TABLES.values())
def test_every_field_is_a_column(row: Any) -> None:
    assert schema_of(row).names == [field.name for field in fields(row)]


def test_types_units_and_foreign_names() -> None:
    schema = schema_of(CallRow)
    assert schema.field("submit_unix_ns").type == pa.int64()
    assert schema.field("output_token_ids").type.value_type.value_type == pa.int64()
    assert schema.field("queue_time_s").type == pa.float64()
    assert schema.field("queue_time_s").nullable
    assert not schema.field("stage").nullable
    assert schema.field("stop_reason").type.value_field.nullable
    assert schema.field("cached_input_tokens").metadata == {
        b"unit": b"{token}",
        b"vllm": b"num_cached_tokens",
    }
    assert schema_of(ChainRow).field("correct").type == pa.bool_()


@pytest.mark.parametrize("row", TABLES.values())
def test_durations_and_instants_have_units(row: Any) -> None:
    for field in schema_of(row):
        unit = (field.metadata or {}).get(b"unit")
        if field.name.endswith("_s"):
            assert (field.type, unit) == (pa.float64(), b"s"), field.name
        if field.name.endswith("_unix_ns"):
            assert (field.type, unit) == (pa.int64(), b"ns since 1970-01-01 UTC"), field.name


def test_a_lone_surrogate_is_replaced(blank: Blank) -> None:
    rows = [blank(StepRow, step_text="a\ud800b", candidate_texts=("\udfff", "c"))]
    batch = columns_of(schema_of(StepRow), rows)
    assert batch.column("step_text").to_pylist() == ["a?b"]
    assert batch.column("candidate_texts").to_pylist() == [["?", "c"]]


KINDS = {
    "whole": (pa.int64(), (1, -(1 << 62), None, 0)),
    "broken": (pa.float64(), (1.5, None, -math.inf, 2)),
    "text": (pa.string(), ("a", None, "", "é\U0001f600")),
    "truth": (pa.bool_(), (*[True, None, False] * 5,)),
    "lists": (pa.list_(pa.field("item", pa.list_(pa.field("item", pa.int64(), False)), False)), (((1, 2), ()), (), ((3,),))),
    "texts": (pa.list_(pa.field("item", pa.string())), (("a", None), ())),
    "absent": (pa.float64(), (None, None)),
    "nothing": (pa.string(), ()),
}


@pytest.mark.parametrize(("kind", "values"), KINDS.values(), ids=KINDS)
def test_a_column_is_what_arrow_makes_of_it(kind: pa.DataType, values: tuple[Any, ...]) -> None:
    found = _array(values, kind)
    found.validate(full=True)
    assert found.equals(pa.array(values, kind))


def test_no_column_imports_pandas() -> None:
    """`pa.array` does where pandas is installed, and all calls of a run wait for it."""
    code = "import sys; from tests.store.test_columns import KINDS, _array; [_array(v, k) for k, v in KINDS.values()]"
    subprocess.run([sys.executable, "-c", f"{code}; sys.exit('pandas' in sys.modules)"], check=True)
