"""The one door to the Parquet writer: record batches enter, one file of large row groups leaves, whole or not at all."""

import os
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.files import publish

GROUP_ROWS = 8192
GROUP_BYTES = 16 << 20
"""A row group is written when it has this many rows or bytes (of Arrow arrays): no more are held."""
PART_GROUPS = 8
"""A part is full after this many row groups."""

_UNIQUE = ("_text", "_message", "request_id")


class Part:
    """A part that is being written, under a name of its own. Methods raise `OSError` or an Arrow error."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path, self._schema = path, schema
        self._draft = path.with_name(f"{path.name}.tmp")
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[pa.RecordBatch] = []
        self._rows = self._bytes = self._groups = 0

    @property
    def full(self) -> bool:
        """Is it time to finish it?"""
        return self._groups >= PART_GROUPS

    def add(self, batch: pa.RecordBatch) -> None:
        """Take over a batch; a full row group goes to disk."""
        self._pending.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.get_total_buffer_size()
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._write_group()

    def finish(self) -> None:
        """Write the rest, without any row an empty table, and give the part its name, durably."""
        if self._pending or not self._groups:
            self._write_group()
        assert self._writer is not None
        self._writer.close()
        publish(self._draft, self.path)

    def drop(self) -> None:
        """Leave nothing behind; its space may save others."""
        with suppress(OSError, pa.ArrowException):
            if self._writer:
                self._writer.close()
        with suppress(OSError):
            os.unlink(self._draft)

    def _write_group(self) -> None:
        group = pa.Table.from_batches(self._pending, self._schema)
        self._pending, self._rows, self._bytes = [], 0, 0
        if self._writer is None:
            repeating = [field.name for field in self._schema if pa.types.is_string(field.type) and not field.name.endswith(_UNIQUE)]
            self._writer = pq.ParquetWriter(self._draft, self._schema, compression="zstd", use_dictionary=repeating)
        self._writer.write_table(group, row_group_size=max(group.num_rows, 1))
        self._groups += 1
