"""Structs become schemas with units and foreign names, rows become columns."""

from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import fields

from pipeline.store.rows import TABLES, CallRow, ChainRow, StepRow, columns_of, schema_of
from tests.support.rows import blank


@pytest.mark.parametrize("row", TABLES.values())
def test_every_field_is_a_column_and_times_have_units(row: Any) -> None:
    schema = schema_of(row)
    assert schema.names == [field.name for field in fields(row)]
    for field in schema:
        unit = (field.metadata or {}).get(b"unit")
        if field.name.endswith("_s"):
            assert (field.type, unit) == (pa.float64(), b"s"), field.name
        if field.name.endswith("_unix_ns"):
            assert (field.type, unit) == (pa.int64(), b"ns since 1970-01-01 UTC"), field.name


def test_types_and_foreign_names() -> None:
    schema = schema_of(CallRow)
    assert schema.field("output_token_ids").type.value_type.value_type == pa.int64()
    assert (schema.field("queue_time_s").nullable, schema.field("stage").nullable) == (True, False)
    assert schema.field("stop_reason").type.value_field.nullable
    assert schema.field("cached_input_tokens").metadata == {b"unit": b"{token}", b"vllm": b"num_cached_tokens"}
    assert schema_of(ChainRow).field("correct").type == pa.bool_()


def test_a_lone_surrogate_is_replaced() -> None:
    batch = columns_of(schema_of(StepRow), [blank(StepRow, step_text="a\ud800b", candidate_texts=("\udfff", "c"), cut=None)])
    assert batch["step_text"].to_pylist() == ["a?b"]
    assert (batch["candidate_texts"].to_pylist(), batch["cut"].to_pylist()) == ([["?", "c"]], [None])
