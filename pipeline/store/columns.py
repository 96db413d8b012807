"""Rows of `trace.events` as columns: Structs enter, Arrow schemas and record batches leave."""

from array import array
from collections.abc import Sequence
from itertools import chain
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
from msgspec import Meta, Struct
from msgspec.structs import astuple

_SCALARS: dict[Any, pa.DataType] = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
_NOTHING: dict[pa.DataType, Any] = {arrow: kind() for kind, arrow in _SCALARS.items()}
"""The value below a null."""


def schema_of(row: type[Struct]) -> pa.Schema:
    """Arrow schema of a Struct: types from its annotations, unit and foreign names as field metadata."""
    return pa.schema([_field(name, hint) for name, hint in get_type_hints(row, include_extras=True).items()])


def columns_of(schema: pa.Schema, rows: Sequence[Struct]) -> pa.RecordBatch:
    """`rows` as one record batch; their Struct is the one that `schema` was made of."""
    columns = zip(*map(astuple, rows), strict=True)
    arrays = [_array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def table_of(row: type[Struct], rows: Sequence[Struct]) -> pa.Table:
    """`rows` of the Struct type `row` as a table, which has the same columns where there are no rows."""
    schema = schema_of(row)
    return pa.Table.from_batches([columns_of(schema, rows)] if rows else [], schema=schema)


def with_values(batch: pa.RecordBatch, name: str, values: Sequence[Any]) -> pa.RecordBatch:
    """`batch` with other values in one of its columns."""
    place = batch.schema.get_field_index(name)
    return batch.set_column(place, batch.schema.field(place), pa.array(values, batch.schema.field(place).type))


def _field(name: str, hint: Any) -> pa.Field:
    metadata: dict[str, str] = {}
    if get_origin(hint) is Annotated:
        hint, *metas = get_args(hint)
        metadata = {key: value for meta in metas if isinstance(meta, Meta) for key, value in (meta.extra or {}).items()}
    kind, nullable = _kind(hint)
    return pa.field(name, kind, nullable, metadata or None)


def _kind(hint: Any) -> tuple[pa.DataType, bool]:
    """Arrow type of an annotation, and whether it may be null."""
    if get_origin(hint) is UnionType:
        return _kind(next(arm for arm in get_args(hint) if arm is not NoneType))[0], True
    if get_origin(hint) is tuple:
        return pa.list_(pa.field("item", *_kind(get_args(hint)[0]))), False
    return _SCALARS[hint], False


def _array(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """A column as an Arrow array, made of buffers: `pa.array` imports pandas where that is installed, and all calls wait for seconds."""
    if pa.types.is_list(kind):  # flattened first; token ids, most values of a trace, through no tuple
        ids = kind.value_type == pa.int64() and not kind.value_field.nullable
        flat = chain.from_iterable(column)
        items = _array(array("q", flat) if ids else tuple(flat), kind.value_type)
        return pa.ListArray.from_arrays(pa.Array.from_buffers(pa.int32(), len(column) + 1, [None, _offsets(column)]), items, type=kind)
    if isinstance(column, array):
        return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])
    try:
        return pa.Array.from_buffers(kind, len(column), [None, *_buffers(column, kind)])
    except TypeError:  # at a None, which is not searched for before: that takes longer than all the rest
        if column.count(None) == len(column):
            return pa.nulls(len(column), kind)
    nothing, present = _NOTHING[kind], _bits([each is not None for each in column])
    return pa.Array.from_buffers(kind, len(column), [present, *_buffers([nothing if each is None else each for each in column], kind)])


def _buffers(column: Sequence[Any], kind: pa.DataType) -> list[pa.Buffer]:
    """The buffers of the values of a column; raises `TypeError` where one is None."""
    if kind == pa.string():
        text = "".join(column)
        # A lone surrogate, which UTF-8 cannot hold, becomes a question mark: one odd character must not end the run.
        offsets = _offsets(column if text.isascii() else [each.encode(errors="replace") for each in column])
        return [offsets, pa.py_buffer(text.encode(errors="replace"))]
    return [_bits(column) if kind == pa.bool_() else pa.py_buffer(array("d" if kind == pa.float64() else "q", column))]


def _bits(column: Sequence[bool]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.frombuffer(array("b", column), np.bool_), bitorder="little"))


def _offsets(parts: Sequence[Any]) -> pa.Buffer:
    """Where each of the `parts` begins and the last one ends; raises `OverflowError` beyond what a column can hold."""
    ends = np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))
    if len(parts) and ends[-1] >= 1 << 31:
        raise OverflowError(f"{ends[-1]:,} bytes or items in one column")
    return pa.py_buffer(np.concatenate(([0], ends)).astype(np.int32))
