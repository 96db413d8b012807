"""The write-ahead file of a table: record batches enter, and all whole ones come out again, whatever became of the file's end.

After a loss of power the end of a file may be cut off, zeros or old blocks of another file; so every message has a checksum.

    file      = salt (8 random bytes) · message · message ...
    message   = bytes in the body (8) · checksum (4) · body: the schema, then each batch, as an Arrow IPC message

Invariant: what `read_wal` yields is a prefix of what was appended, batch by batch. A message counts only if all of it is there and its
checksum is right. Each checksum continues the one before it, and the first continues the salt's: so a message counts only where it was
written, in the file it was written to, and nothing counts after the first message that does not.

Were the last bytes zeros, the last checksum would not be right. Were batch 2 a copy of batch 1, its checksum would not be the
one that continues batch 1. Two files with the same batches have different checksums, so an old block of one never continues another.
"""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from zlib import crc32

import pyarrow as pa

from pipeline.files import sync_data, sync_path

_SALT_BYTES = 8
_HEAD = Struct("<QI")
"""The bytes in the body of a message, and the CRC-32 of that size and the body, begun with the checksum of the message before."""


class Wal:
    """A write-ahead file open for appending. Every method raises `OSError`."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        salt = os.urandom(_SALT_BYTES)
        self.size, self._durable, self._checksum = 0, 0, crc32(salt)
        self.synced = time.monotonic()
        """`size`: bytes of all that was appended; `synced`: when it was synced last, by `time.monotonic`."""
        try:
            self._write(salt)
            self.append(schema)
            sync_path(path.parent)
        except OSError:
            os.close(self._file)
            path.unlink(missing_ok=True)
            raise

    def append(self, batch: pa.RecordBatch | pa.Schema) -> None:
        """Write one batch: from now on it survives the end of this process, and after `sync` that of the machine."""
        body = batch.serialize()
        checksum = _checksum(body, self._checksum)
        self._write(b"".join((_HEAD.pack(body.size, checksum), body)))
        self._checksum = checksum

    def sync(self) -> None:
        """Make all that was appended durable."""
        if not os.fstat(self._file).st_nlink:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))  # writing to a deleted file would succeed and be lost
        if self._durable < self.size:
            sync_data(self._file)
        self._durable, self.synced = self.size, time.monotonic()

    def close(self) -> None:
        """Sync the file and close it; it stays in the folder."""
        try:
            self.sync()
        finally:
            os.close(self._file)

    def _write(self, content: bytes) -> None:
        """Append `content`; when that fails, cut off what was written of it."""
        data, at = memoryview(content), self.size
        # Always at `size`, the end of the last whole message: the rest of a failed write is cut off here or overwritten later.
        try:
            while data:
                written = os.pwrite(self._file, data, at)
                data, at = data[written:], at + written
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, self.size)
            raise
        self.size = at


def read_wal(path: Path) -> Iterator[pa.RecordBatch]:
    """The batches of a write-ahead file, up to the first one that is not whole; raises `OSError` where it cannot be read."""
    schema = None
    with path.open("rb") as file:
        left, before = os.fstat(file.fileno()).st_size - _SALT_BYTES, crc32(file.read(_SALT_BYTES))
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            size, checksum = _HEAD.unpack(head)
            left -= _HEAD.size + size
            if left < 0:
                return
            body = file.read(size)  # less of it where its writer has just cut it off
            if _checksum(body, before) != checksum:
                return
            before, message = checksum, pa.ipc.read_message(body)
            if schema is None:
                schema = pa.ipc.read_schema(message)
            else:
                yield pa.ipc.read_record_batch(message, schema)


def _checksum(body: pa.Buffer | bytes, before: int) -> int:
    return crc32(body, crc32(len(body).to_bytes(8, "little"), before))
