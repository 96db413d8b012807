"""The write-ahead file of a table: record batches enter, and all whole ones come out again, whatever became of the file's end.

It is an Arrow IPC stream, which any Arrow tool opens: one message with the schema, then one message for each batch. Arrow has no
checksums, and after a loss of power the end of a file may be cut off, zeros or old blocks of another file; so every message
carries a checksum at the end of its metadata, where the format has room for padding that other readers skip.

Invariant: what `read_wal` yields is a prefix of what was appended, batch by batch. A message counts only if all of it is there
and its checksum is right, and the checksum of each message continues that of the one before it: so a message counts only in its
own place of its own file, and after the first one that does not count nothing does.

    message   = FF FF FF FF · size of metadata (4) · metadata, which ends in the seal · body
    seal      = bytes in the body (8) · salt (4) · checksum (4), over all of the message but itself, begun with the one before

A file of one column of 8-byte numbers, after two batches of two rows and half a third:

    byte   0  FFFFFFFF 144  schema  · seal: body  0, salt s0, c0 = crc(message, 0)
    byte 152  FFFFFFFF 152  batch 1 · seal: body 16, salt s1, c1 = crc(message, c0) · 16 bytes: 1, 2
    byte 328  FFFFFFFF 152  batch 2 · seal: body 16, salt s2, c2 = crc(message, c1) · 16 bytes: 3, 3
    byte 504  FFFFFFFF 152  batch 3 · seal: body 16, salt s3, c3 = crc(message, c2) · 11 bytes of 16

At byte 504 the seal asks for 16 bytes and 11 are left: reading ends there, with batches 1 and 2. Were the missing bytes zeros,
the checksum would not be c3. Were batch 2 a copy of batch 1, its checksum would be c1 and not the one that continues c1.
"""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import BinaryIO
from zlib import crc32

import pyarrow as pa

from pipeline.files import sync_data, sync_path

_START = b"\xff\xff\xff\xff"
"""Every message begins with this and the size of its metadata, padding included, in four bytes."""
_SEAL = Struct("<Q4s")
"""The size of the body in bytes, and four random bytes (salt): two files with the same batches have different checksums from the
first message on, so that an old block of one file never continues another."""
_CHECKSUM = Struct("<I")
"""CRC-32 of the message without these four bytes, begun with the checksum of the message before."""


class Wal:
    """A write-ahead file open for appending. Every method raises `OSError`."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self.size = self._checksum = 0
        self.synced = time.monotonic()
        """`size`: bytes of all that was appended; `synced`: when it was synced last, by `time.monotonic`."""
        try:
            self._write(schema.serialize())
            sync_path(path.parent)
        except OSError:
            os.close(self._file)
            path.unlink(missing_ok=True)
            raise

    def append(self, batch: pa.RecordBatch) -> None:
        """Write one batch: from now on it survives the end of this process, and after `sync` that of the machine."""
        self._write(batch.serialize())

    def sync(self) -> None:
        """Make all that was appended durable."""
        if not os.fstat(self._file).st_nlink:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))  # writing to a deleted file would succeed and be lost
        sync_data(self._file)
        self.synced = time.monotonic()

    def close(self) -> None:
        """Sync the file and close it; it stays in the folder."""
        try:
            self.sync()
        finally:
            os.close(self._file)

    def _write(self, message: pa.Buffer) -> None:
        """Append `message`; when that fails, cut off what was written of it."""
        sealed, checksum = _sealed(memoryview(message), self._checksum)
        data, at = memoryview(sealed), self.size
        # Always at `size`, the end of the last whole message: the rest of a failed write is cut off here or overwritten later.
        try:
            while data:
                written = os.pwrite(self._file, data, at)
                data, at = data[written:], at + written
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, self.size)
            raise
        self.size, self._checksum = at, checksum


def read_wal(path: Path) -> Iterator[pa.RecordBatch]:
    """The batches of a write-ahead file, up to the first one that is not whole; raises `OSError` where it cannot be read."""
    with path.open("rb") as file:
        messages = _messages(file)
        header = next(messages, None)
        if header is None:
            return
        schema = pa.ipc.read_schema(header)
        for message in messages:
            yield pa.ipc.read_record_batch(message, schema)


def _messages(file: BinaryIO) -> Iterator[pa.Message]:
    left, checksum = os.fstat(file.fileno()).st_size, 0
    while (found := _message(file, left, checksum)) is not None:
        message, checksum = found
        left -= len(message)
        yield pa.ipc.read_message(message)


def _sealed(message: memoryview, before: int) -> tuple[bytes, int]:
    """An Arrow message with its seal, and its checksum; `before` is the checksum of the message before."""
    end = 8 + int.from_bytes(message[4:8], "little")
    metadata, body = message[8:end], message[end:]
    size = (len(metadata) + _SEAL.size + _CHECKSUM.size).to_bytes(4, "little")
    head = b"".join((_START, size, metadata, _SEAL.pack(len(body), os.urandom(4))))
    checksum = crc32(body, crc32(head, before))
    return b"".join((head, _CHECKSUM.pack(checksum), body)), checksum


def _message(file: BinaryIO, left: int, before: int) -> tuple[bytes, int] | None:
    """The next message of a file that has `left` more bytes, and its checksum; None where the message is not whole."""
    head = file.read(8)
    size = int.from_bytes(head[4:], "little")
    if head[:4] != _START or not _SEAL.size + _CHECKSUM.size <= size <= left - 8:
        return None
    head += file.read(size - _CHECKSUM.size)
    seal = file.read(_CHECKSUM.size)
    if len(seal) < _CHECKSUM.size:
        return None  # its writer has just cut it off
    length, _ = _SEAL.unpack(head[-_SEAL.size :])
    if length > left - 8 - size:
        return None
    body = file.read(length)
    checksum = crc32(body, crc32(head, before))
    return (head + seal + body, checksum) if seal == _CHECKSUM.pack(checksum) else None
