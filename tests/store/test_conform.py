"""Columns of one family are cast to the types of the trace; all else is refused by one sentence that names it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.errors import InputError
from pipeline.store.columns import columns_of, schema_of
from pipeline.store.conform import ROWS, conformed

Blank = Callable[..., Any]
CALLS, STEPS, CHAINS = (Path(f"run/{table}/part-00000.parquet") for table in ("calls", "steps", "chains"))


def lists(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.list_(kind))


@pytest.mark.parametrize("table", ROWS)
def test_what_a_run_writes_stays_as_it_is(table: str, blank: Blank) -> None:
    batch = columns_of(schema_of(ROWS[table]), [blank(ROWS[table])] * 3)
    assert conformed(batch, Path(f"run/{table}/part-00000.parquet")).to_pylist() == batch.to_pylist()


@pytest.mark.parametrize(
    ("file", "name", "column", "values"),
    [
        (CHAINS, "input_row", pa.array([1, 2], pa.uint16()), [1, 2]),
        (CHAINS, "input_row", pa.array([1.0, 2.0]), [1, 2]),
        (CHAINS, "chain_time_s", pa.array([1, 2]), [1.0, 2.0]),
        (CHAINS, "answer", pa.array(["a", None]).dictionary_encode(), ["a", None]),
        (CHAINS, "answer", pa.array(["a", None], pa.large_string()), ["a", None]),
        (CHAINS, "answer", pa.array(["a", None], pa.string_view()), ["a", None]),
        (CHAINS, "correct", pa.nulls(2), [None, None]),
        (CHAINS, "engines", pa.array([["a"], []], pa.large_list(pa.large_string())), [["a"], []]),
        (STEPS, "candidate_tokens", pa.array([[1, 2]], pa.list_(pa.int8(), 2)), [[1, 2]]),
        (CALLS, "option_logprobs", lists([[float("-inf")], []], pa.float32()), [[float("-inf")], []]),
        (CALLS, "seed", pa.array([-(2**63)]), [-(2**63)]),
        (CALLS, "unknown", pa.array([b"\xff"]), [b"\xff"]),
    ],
)
def test_values_of_one_family_are_cast(file: Path, name: str, column: pa.Array, values: list[Any]) -> None:
    for rows in (pa.RecordBatch.from_arrays([column], [name]), pa.table({name: column})):
        found = conformed(rows, file).column(name)
        assert found.to_pylist() == values
        known = schema_of(ROWS[file.parent.name])
        assert name not in known.names or str(found.type) == str(known.field(name).type)


def test_columns_are_encoded_whatever_they_were() -> None:
    for column in (pa.array(["a", None]), pa.array(["a", None], pa.large_string()), pa.array(["a", None]).dictionary_encode()):
        found = conformed(pa.table({"answer": column}), CHAINS, ["answer"]).column("answer")
        assert (found.type, found.to_pylist()) == (pa.dictionary(pa.int32(), pa.string()), ["a", None])


BROKEN_TEXT = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0])), pa.py_buffer(b"\xff")])


@pytest.mark.parametrize(
    ("file", "name", "column", "said"),
    [
        (CHAINS, "input_row", pa.array([1, None, None]), "is null in 2 of 3 rows"),
        (STEPS, "decision", pa.array([None, "a"]), "is null in 1 of 2 rows"),
        (CHAINS, "stop_reason", pa.array([1, 2]), "is of the type int64, expected string"),
        (CHAINS, "correct", pa.array([0, 1]), "is of the type int64, expected bool"),
        (CHAINS, "steps", pa.array(["1"]), "is of the type string, expected int64"),
        (CHAINS, "steps", pa.array([1.5]), "cannot be read as int64: Float value 1.500000 was truncated converting to int64"),
        (CHAINS, "steps", pa.array([2**63], pa.uint64()), "cannot be read as int64: Integer value 9223372036854775808 not in range"),
        (CHAINS, "steps", pa.array([1, -2, -1]), "is out of range in 2 of 3 values: -2, expected 0 to 1000000000000"),
        (CHAINS, "end_unix_ns", pa.array([2**62]), "is out of range in 1 of 1 values"),
        (CHAINS, "chain_time_s", pa.array([1.0, float("nan"), float("inf")]), "is not a finite number in 2 of 3 values"),
        (CALLS, "output_token_ids", pa.array([[[1, 2**40]]]), "is out of range in 1 of 2 values: 1099511627776, expected 0 to 2147483647"),
        (CHAINS, "engines", lists([["a", None]], pa.string()), "has nulls in its lists"),
        (CALLS, "output_token_ids", pa.array([[[1, None]]]), "has nulls in its lists"),
        (
            CALLS,
            "output_token_ids",
            pa.array([["a"]]),
            "is of the type list<item: string>, expected list<item: list<item: int64 not null> not null>",
        ),
        (CHAINS, "answer", BROKEN_TEXT, "cannot be read as string"),
    ],
)
def test_what_is_wrong_with_a_column_is_said(file: Path, name: str, column: pa.Array, said: str) -> None:
    with pytest.raises(InputError) as caught:
        conformed(pa.table({name: column}), file)
    assert str(caught.value).startswith(f"{file}: the column `{name}` {said}")


def test_lists_that_belong_together_are_of_equal_length() -> None:
    table = pa.table({"candidate_texts": [["a"], ["a", "b"]], "candidate_tokens": [[1], [1]]})
    with pytest.raises(InputError, match=r"the lists in `candidate_texts` and `candidate_tokens` differ in length in 1 rows$"):
        conformed(table, STEPS)
