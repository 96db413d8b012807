"""One part, a Parquet file: opened with bounds on what a damaged one may claim, and told from every other one by its footer."""

import os
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from pipeline.files import open_regular

_STRING_BYTES, _CONTAINERS = 16 << 20, 1 << 20
"""Bounds on the strings and lists that a footer or the head of a page may claim to have."""

GROUP_ROWS, GROUP_BYTES = 1 << 20, 1 << 30
"""Most rows and bytes of a row group; programs write that many rows by default, this one far fewer."""


class Fingerprint(Struct, frozen=True):
    """What tells a part from every other one: its size, and a digest of its footer, which has the places and bounds of every column
    chunk, and the part's `Label`. Damage outside of the footer shows in the checksums of the pages."""

    bytes: int
    digest: str


def fingerprint(part: Path) -> Fingerprint | None:
    """The fingerprint of a finished part; None where the file is not a complete Parquet file or cannot be read."""
    try:
        with open_regular(part, follow=True) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 8, 0))
            end = file.read(8)
            length = int.from_bytes(end[:4], "little")
            if end[4:] != b"PAR1" or length > size - 12:
                return None
            file.seek(size - 8 - length)
            return Fingerprint(size, blake2b(file.read(length), digest_size=8).hexdigest())
    except OSError:
        return None


def open_part(part: Any, **options: Any) -> pq.ParquetFile:
    """The Parquet file at a path or in an open Arrow file; the checksums of its pages, where it has any, are verified as they are read.

    Raises `OSError` or an Arrow error, also later, when a damaged page is met; and where a row group claims more rows or bytes than
    any program writes together by default.
    """
    limits = {"thrift_string_size_limit": _STRING_BYTES, "thrift_container_size_limit": _CONTAINERS}
    file = pq.ParquetFile(part, page_checksum_verification=True, **limits, **options)
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    rows, size = max((group.num_rows for group in groups), default=0), max((group.total_byte_size for group in groups), default=0)
    if rows > GROUP_ROWS or size > GROUP_BYTES:
        file.close()
        most = f"{GROUP_ROWS:,} rows and {GROUP_BYTES:,} bytes"
        raise pa.ArrowInvalid(f"a row group claims {rows:,} rows and {size:,} bytes; expected at most {most}")
    return file


def read_footer(part: Path) -> pq.FileMetaData:
    """The footer of a part; raises `OSError` or an Arrow error."""
    with open_part(part) as file:
        return file.metadata
