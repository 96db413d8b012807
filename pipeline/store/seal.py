"""The seal of a finished part: checksums of its bytes, by which damage is told before any value is read.

Parquet's readers do not notice most flipped bits: those in a plain page are other values. So a part has a seal where the format has room
that other readers skip, between its data and its footer:

    part = data (begins with PAR1) · SEAL, crc of the data (4), crc of what follows (4) · footer · size of the footer (4) · PAR1

The second checksum continues the first, so that a footer belongs to its data. Checking the footer costs little and is done whenever it is
read; the data is read whole for it, once in a process.
"""

import os
from functools import lru_cache
from pathlib import Path
from struct import Struct
from typing import BinaryIO
from zlib import crc32

_SEAL = Struct("<4sII")
_MARK = b"SEAL"
_END = Struct("<I4s")
"""How a Parquet file ends: the size of its footer, and the mark of the format."""
_PIECE = 1 << 20
"""Bytes that are summed at a time."""


class DamagedPart(OSError):
    """A part is not as it was written."""


def seal(path: Path) -> None:
    """Put the seal into a Parquet file that has none. Raises `OSError`."""
    with path.open("r+b") as file:
        end = file.seek(-_END.size, os.SEEK_END)
        data = end - _END.unpack(file.read())[0]
        file.seek(0)
        checksum = _sum(file, data)
        footer = file.read()
        file.seek(data)
        file.write(_SEAL.pack(_MARK, checksum, crc32(footer, checksum)) + footer)


def check_footer(path: Path) -> None:
    """Raise `OSError` where the footer of a part is damaged."""
    with path.open("rb") as file:
        _sealed_data(file)


def check_content(path: Path) -> None:
    """Raise `OSError` where the footer or the data of a part is damaged."""
    about = os.stat(path)
    _check_once(path, about.st_ino, about.st_size, about.st_mtime_ns)


@lru_cache(1 << 16)
def _check_once(path: Path, inode: int, size: int, mtime_ns: int) -> None:
    with path.open("rb") as file:
        length, checksum = _sealed_data(file)
        file.seek(0)
        if _sum(file, length) != checksum:
            raise DamagedPart("its checksum is not that of its content: it is damaged")


def _sealed_data(file: BinaryIO) -> tuple[int, int]:
    """The length and the checksum of the data by the seal, after checking the footer."""
    size = os.fstat(file.fileno()).st_size
    footer = _END.size
    if size >= _END.size:
        file.seek(size - _END.size)
        footer += _END.unpack(file.read())[0]
    data = size - footer - _SEAL.size
    if data >= 0:
        file.seek(data)
        mark, checksum, of_footer = _SEAL.unpack(file.read(_SEAL.size))
        if mark == _MARK:
            if crc32(file.read(), checksum) != of_footer:
                raise DamagedPart("its checksum is not that of its footer: it is damaged")
            return data, checksum
    raise DamagedPart("it has no seal: it is damaged, or was written by another program or an earlier version")


def _sum(file: BinaryIO, length: int) -> int:
    """The checksum of the next bytes of a file."""
    checksum, piece = 0, memoryview(bytearray(_PIECE))
    while length and (found := file.readinto(piece[: min(length, _PIECE)])):  # type: ignore[attr-defined]
        checksum, length = crc32(piece[:found], checksum), length - found
    return checksum
