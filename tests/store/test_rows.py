"""Structs become schemas with units and foreign names, rows become columns."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import fields

from pipeline.store.rows import CallRow, ChainRow, StepRow, columns_of, schema_of
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
