"""The write-ahead file of a table: record batches enter, and all whole ones come out again, whatever became of the file's end.

It is an Arrow IPC stream, which any Arrow tool opens. Arrow has no checksums, and after a loss of power the end of a file
may be zeros or old blocks; so every message carries one behind its metadata, where the format has room for padding that
other readers skip. It continues the checksum of the message before, so that a message counts only in its own place of its
own file.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import BinaryIO
from zlib import crc32

import pyarrow as pa
from filelock import lock_descriptor

from pipeline.files import sync_data, sync_folder

_START = b"\xff\xff\xff\xff"
"""Every message begins with this and the size of its metadata, padding included, in four bytes."""
_SEAL = Struct("<Q4s")
"""Ends the padding, before the checksum: bytes of the body that follows, and salt, which makes each file's checksums its own."""
_CHECKSUM = Struct("<I")
"""Over the message but for itself."""


class Wal:
    """A write-ahead file open for appending; only its process may turn it into a part. Every method raises `OSError`."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._size = self._checksum = 0
        try:
            hold(self._file)
            self._write(schema.serialize())
            sync_folder(path.parent)
        except OSError:
            self.remove()
            raise

    def append(self, batch: pa.RecordBatch) -> None:
        """Write one batch. It outlives this process from now on; the machine only after `sync`."""
        self._write(batch.serialize())

    def sync(self) -> None:
        """Make all that was appended durable."""
        if not os.fstat(self._file).st_nlink:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))  # to write on would go well, and into nothing
        sync_data(self._file)

    def close(self) -> None:
        """Sync it and leave it as it is."""
        try:
            self.sync()
        finally:
            os.close(self._file)

    def remove(self) -> None:
        """Close and delete it: its rows are elsewhere."""
        os.close(self._file)
        self.path.unlink(missing_ok=True)

    def _write(self, message: pa.Buffer) -> None:
        """Append `message`; when that fails, cut off what was written of it."""
        sealed, checksum = _sealed(memoryview(message), self._checksum)
        data, at = memoryview(sealed), self._size
        try:
            while data:
                written = os.pwrite(self._file, data, at)
                data, at = data[written:], at + written
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._size, self._checksum = at, checksum


def hold(file: int) -> None:
    """Mark an open file as at work until this process ends or closes it; raises `BlockingIOError` while another one does."""
    held = True
    with suppress(OSError):  # a file system without locks
        held = lock_descriptor(file, blocking=False)
    if not held:
        raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))


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
    """An Arrow message with its seal, and the checksum; `before` is that of the message before."""
    end = 8 + int.from_bytes(message[4:8], "little")
    metadata, body = message[8:end], message[end:]
    size = (len(metadata) + _SEAL.size + _CHECKSUM.size).to_bytes(4, "little")
    head = b"".join((_START, size, metadata, _SEAL.pack(len(body), os.urandom(4))))
    checksum = crc32(body, crc32(head, before))
    return b"".join((head, _CHECKSUM.pack(checksum), body)), checksum


def _message(file: BinaryIO, left: int, before: int) -> tuple[bytes, int] | None:
    """The next message of a file with `left` bytes to come, and its checksum; None where it is not whole."""
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
