"""Columns as a file holds them become columns as `trace.events` describes them, or an error says which column is wrong, and how.

Another program may have written or changed a file that is valid Parquet. Types of one family are cast: text, whole numbers,
numbers, lists of them. Other types, nulls and numbers out of range are rejected here, once, so that no reader has to.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.errors import InputError, reason
from pipeline.store.columns import schema_of
from pipeline.store.events import CallRow, ChainRow, ProblemRow, RewardRow, StepRow

ROWS: dict[str, type[Struct]] = {"calls": CallRow, "steps": StepRow, "chains": ChainRow, "rewards": RewardRow, "problems": ProblemRow}
"""Every table that a run folder may have, with the type of its rows."""
ALIGNED = {
    "calls": ("candidate_index", "output_token_ids", "finish_reason", "stop_reason"),
    "steps": ("candidate_texts", "candidate_tokens"),
    "chains": ("engines", "input_tokens", "output_tokens"),
}
"""Columns of each table whose lists are of equal length in every row."""
COUNTS = (0, 10**12)
"""Numbers of things and rows of the input: the sum of nine million of the largest ones still fits into 64 bits."""
INDICES = (0, 10**6)
"""Indices within a problem, a chain or a step: analyses hold an entry for each up to the greatest one."""
INSTANTS = (0, 4 * 10**18)
"""Nanoseconds UTC, up to the year 2096: the difference of any two, less any duration, fits into 64 bits."""
DURATIONS = (-(10**9), 10**9)
"""Seconds, up to 31 years; a little less than nothing where two clocks were read."""
IDS = (0, 2**31 - 1)
"""Token ids."""
LARGE, SMALL = ("input_row",), ("candidate_tokens",)
"""Columns whose range is not that of their unit; all others have the range of their unit."""
UNBOUNDED = ("seed", "prompt_digest")
"""Whole numbers of 64 bits that may be any."""

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)
Column: TypeAlias = "pa.Array | pa.ChunkedArray"


class _Odd(Exception):
    """What is wrong with a column; the text is a clause."""


def conformed(rows: Rows, file: Path, encoded: Sequence[str] = ()) -> Rows:
    """`rows`, read from `file` in the folder of its table, with the types of `trace.events`; strings of the columns `encoded` as
    dictionaries.

    Columns that this version does not know stay as they are. Raises `InputError` that names the column and says how many rows are wrong.
    """
    table, columns = file.parent.name, []
    known = _known(table)
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        try:
            columns.append(_conformed(column, known[name], name in encoded) if name in known else column)
        except _Odd as odd:
            raise InputError(
                str(file), f"the column `{name}` {odd}; it was changed by another program or written by another version"
            ) from None
    _check_lengths(dict(zip(rows.schema.names, columns, strict=True)), table, file)
    return type(rows).from_arrays(columns, names=rows.schema.names)


@cache
def _known(table: str) -> dict[str, pa.Field]:
    return {field.name: field for field in schema_of(ROWS[table])} if table in ROWS else {}


def _conformed(column: Column, field: pa.Field, encoded: bool) -> Column:
    column = _cast(column, field.type, encoded)
    _check_nulls(column, field, len(column))
    _check_range(column, field)
    return column


def _cast(column: Column, expected: pa.DataType, encoded: bool) -> Column:
    """`column` as `expected`, text that is to be `encoded` as a dictionary of it; raises `_Odd` for another family of types."""
    text = pa.types.is_string(expected)
    wanted = pa.dictionary(pa.int32(), expected) if encoded and text else expected
    if not _is_family(column.type, expected):
        raise _Odd(f"is of the type {column.type}, expected {expected}")
    try:
        if not _is_same(column.type, wanted):
            column = column.cast(expected)
            column = column.dictionary_encode() if encoded and text else column
        column.validate(full=True)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise _Odd(f"cannot be read as {expected}: {reason(error)}") from error
    return column


def _is_same(found: pa.DataType, expected: pa.DataType) -> bool:
    """Whether two types are the same, whatever the elements of a list are called."""
    if pa.types.is_list(found) and pa.types.is_list(expected):
        return _is_same(found.value_type, expected.value_type)
    return bool(found == expected)


def _is_family(found: pa.DataType, expected: pa.DataType) -> bool:
    """Whether values of the type `found` may stand for values of the type `expected`."""
    types = pa.types
    if types.is_dictionary(found):
        return _is_family(found.value_type, expected)
    if types.is_null(found):
        return True
    if types.is_list(expected):
        lists = types.is_list(found) or types.is_large_list(found) or types.is_fixed_size_list(found)
        return lists and _is_family(found.value_type, expected.value_type)
    if types.is_string(expected):
        return bool(types.is_string(found) or types.is_large_string(found) or types.is_string_view(found))
    if types.is_boolean(expected):
        return bool(types.is_boolean(found))
    return bool(types.is_integer(found) or types.is_floating(found))


def _check_nulls(column: Column, field: pa.Field, rows: int) -> None:
    """Raise `_Odd` where `column`, or a list in it, holds nulls and the `field` has none."""
    nulls = 0 if field.nullable else column.null_count
    if nulls:
        raise _Odd(f"is null in {nulls:,} of {rows:,} rows")
    if pa.types.is_list(field.type):
        try:
            _check_nulls(pc.list_flatten(column), field.type.value_field, rows)
        except _Odd:
            raise _Odd("has nulls in its lists") from None


def _check_range(column: Column, field: pa.Field) -> None:
    """Raise `_Odd` where numbers of `column` are out of the range of its `field`."""
    kind, bounds = field.type, _range(field)
    while pa.types.is_list(kind):
        column, kind = pc.list_flatten(column), kind.value_type
    if bounds is None or not len(column):
        return
    least, most = bounds
    if pa.types.is_floating(kind) and (infinite := pc.sum(pc.invert(pc.is_finite(column))).as_py()):
        raise _Odd(f"is not a finite number in {infinite:,} of {len(column):,} values")
    found = pc.min_max(column).as_py()
    if found["min"] is not None and (found["min"] < least or found["max"] > most):
        outside = pc.sum(pc.or_(pc.less(column, least), pc.greater(column, most))).as_py()
        odd = found["min"] if found["min"] < least else found["max"]
        raise _Odd(f"is out of range in {outside:,} of {len(column):,} values: {odd}, expected {least} to {most}")


def _range(field: pa.Field) -> tuple[int, int] | None:
    """Least and greatest value of a column of numbers; None where any is possible."""
    kind, unit = field.type, (field.metadata or {}).get(b"unit", b"")
    while pa.types.is_list(kind):
        kind = kind.value_type
    if pa.types.is_floating(kind):
        return DURATIONS if unit == b"s" else None
    if not pa.types.is_integer(kind) or field.name in UNBOUNDED:
        return None
    if unit.startswith(b"ns"):
        return INSTANTS
    if field.name.endswith("_ids"):
        return IDS
    return COUNTS if field.name in LARGE or (unit and field.name not in SMALL) else INDICES


def _check_lengths(columns: dict[str, Any], table: str, file: Path) -> None:
    first, *others = [name for name in ALIGNED.get(table, ()) if name in columns] or [""]
    for other in others:
        differ = pc.sum(pc.not_equal(pc.list_value_length(columns[first]), pc.list_value_length(columns[other]))).as_py()
        if differ:
            raise InputError(str(file), f"the lists in `{first}` and `{other}` differ in length in {differ:,} rows")
