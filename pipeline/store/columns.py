"""Rows of `trace.events` as columns: Structs enter, Arrow schemas and record batches leave."""

from collections.abc import Sequence
from itertools import chain
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
from msgspec import Meta, Struct
from msgspec.structs import astuple
from numpy.typing import NDArray

_SCALARS: dict[Any, pa.DataType] = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}


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
    """A column as an Arrow array; lists are flattened first, which is several times faster than letting Arrow walk them."""
    if not pa.types.is_list(kind):
        return _flat_array(column, kind)
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, column), np.int32, len(column)), out=offsets[1:])
    flat, many = chain.from_iterable(column), int(offsets[-1])
    if kind.value_type == pa.int64():  # token ids: most values of a trace
        items = _of_numpy(np.fromiter(flat, np.int64, many), pa.int64())
    else:
        items = _array(tuple(flat), kind.value_type)
    return pa.ListArray.from_arrays(_of_numpy(offsets, pa.int32()), items, type=kind)


def _of_numpy(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Through a buffer: `pa.array` of a numpy array imports pandas where that is installed, which takes up to a second."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _flat_array(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(column, kind)
    except UnicodeEncodeError:
        # A lone surrogate, which UTF-8 cannot hold: one odd character must not end the run.
        return pa.array([text if text is None else text.encode(errors="replace").decode() for text in column], kind)
