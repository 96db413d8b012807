"""A part that is not as it was written is told, whatever byte it is; and other programs read one as any Parquet file."""

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import InputError
from pipeline.store.events import ChainRow
from pipeline.store.parts import table_files
from pipeline.store.query import Query
from pipeline.store.read import read_rows
from pipeline.store.run_store import RunStore
from pipeline.store.seal import DamagedPart, check_content, seal
from tests.support.rows import blank

ROWS: list[Any] = [blank(ChainRow, chain_id=f"p{number}#0", answer=str(number)) for number in range(5)]


@pytest.fixture
def part(tmp_path: Path) -> Path:
    store = RunStore(tmp_path)
    store.append("chains", ROWS)
    store.close()
    return tmp_path / "chains/part-00000.parquet"


def test_any_other_byte_and_any_other_length_is_told(tmp_path: Path) -> None:
    path = tmp_path / "small"
    pq.write_table(pa.table({"n": [1, 2], "text": ["a", "b"]}), path)
    seal(path)
    whole = path.read_bytes()
    changed = [whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :] for place in range(len(whole))]
    for number, content in enumerate([*changed, *(whole[:end] for end in range(len(whole))), whole + b"PAR1"]):
        path = tmp_path / str(number)  # a file of another name is read anew
        path.write_bytes(content)
        with pytest.raises(DamagedPart):
            check_content(path)
        path.unlink()


@pytest.mark.parametrize("place", [100, -100])
def test_damage_is_an_error_and_no_number(part: Path, place: int) -> None:
    content = bytearray(part.read_bytes())
    content[place] ^= 1
    part.unlink()
    part.write_bytes(content)
    said = r"part-00000\.parquet: cannot be read: its checksum is not that of its (content|footer): it is damaged; put the files"
    with pytest.raises(InputError, match=said):
        read_rows(part.parent.parent, ChainRow, "chains")
    with pytest.raises(InputError, match=said), Query(part.parent.parent) as asked:
        asked.scalar("SELECT count(*) FROM chains")


def test_a_part_without_a_seal_is_refused(part: Path) -> None:
    pq.write_table(pq.read_table(part), part)
    with pytest.raises(InputError, match=r"it has no seal: it is damaged, or was written by another program or an earlier version; put"):
        table_files(part.parent.parent, "chains")


def test_other_programs_read_a_sealed_part(part: Path) -> None:
    numbers = [row.chain_id for row in ROWS]
    assert pq.read_table(part)["chain_id"].to_pylist() == numbers
    assert duckdb.sql(f"SELECT list(chain_id) FROM '{part}'").fetchall() == [(numbers,)]
