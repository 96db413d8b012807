"""Whatever becomes of the end of a write-ahead file, the batches before it are read, and nothing else."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.store.wal import Wal, read_wal

SCHEMA = pa.schema([pa.field("number", pa.int64(), metadata={"unit": "{token}"}), ("text", pa.string())])


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([list(numbers), [f"row {number}" for number in numbers]], schema=SCHEMA)


def written(path: Path, *batches: pa.RecordBatch) -> list[int]:
    """The size of the file after its header and after each batch."""
    wal = Wal(path, SCHEMA)
    ends = [path.stat().st_size]
    for each in batches:
        wal.append(each)
        ends.append(path.stat().st_size)
    wal.close()
    return ends


BATCHES = [batch(1, 2, 3), batch(4), batch(5, 6)]


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    written(tmp_path / "wal", *BATCHES)
    found = list(read_wal(tmp_path / "wal"))
    assert found == BATCHES
    assert found[0].schema.equals(SCHEMA, check_metadata=True)


@pytest.fixture(name="whole", scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[int]]:
    path = tmp_path_factory.mktemp("wal") / "whole"
    ends = written(path, *BATCHES)
    return path.read_bytes(), ends


@pytest.fixture(name="other", scope="module")
def _other(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of the same sizes with other rows."""
    path = tmp_path_factory.mktemp("wal") / "other"
    written(path, batch(7, 8, 9), batch(0), batch(3, 2))
    return path.read_bytes()


DAMAGE: dict[str, Callable[[bytes, bytes, int], bytes]] = {
    "cut": lambda whole, other, at: whole[:at],
    "zeros": lambda whole, other, at: whole[:at] + bytes(len(whole) - at),
    "more zeros": lambda whole, other, at: whole[:at] + bytes(4096),
    "ones": lambda whole, other, at: whole[:at] + b"\xff" * (len(whole) - at),
    "one bit": lambda whole, other, at: whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
    "old blocks": lambda whole, other, at: whole[:at] + other[at:],
    "itself": lambda whole, other, at: whole[:at] + whole,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_every_place_may_be_the_last(tmp_path: Path, whole: tuple[bytes, list[int]], other: bytes, damage: str) -> None:
    """All batches that end before it are read, in order, and no others; of old blocks none, be it whole in itself."""
    content, ends = whole
    for at in range(0 if damage in ("cut", "zeros", "one bit") else ends[0], len(content)):
        path = tmp_path / str(at)  # a file system may take its time to write a file anew
        path.write_bytes(DAMAGE[damage](content, other, at))
        found = list(read_wal(path))
        assert found == BATCHES[: len(found)]
        before = sum(end <= at for end in ends[1:])
        assert len(found) == before if damage in ("cut", "one bit") else len(found) >= before
