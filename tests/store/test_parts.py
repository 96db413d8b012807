"""Tables are read from parts and write-ahead files alike, while a run goes on and after it died; damage is told."""

import os
import shutil
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import InputError
from pipeline.store import parts
from pipeline.store.events import CallRow, StepRow
from pipeline.store.parts import read_batches, read_whole, table_files
from pipeline.store.query import Query
from pipeline.store.run_store import RunStore
from tests.support.run_files import write_run_json

Blank = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, blank: Blank) -> tuple[Path, RunStore]:
    """A run that goes on: rows 0 and 1 in a part, 2 to 4 in a write-ahead file, in batches of one."""
    first = RunStore(tmp_path)
    first.append("calls", [blank(CallRow, call_index=0), blank(CallRow, call_index=1)])
    first.close()
    second = RunStore(tmp_path)
    for index in range(2, 5):
        second.append("calls", [blank(CallRow, call_index=index)])
    return tmp_path, second


def indices(batches: Any) -> list[list[int]]:
    return [batch.column("call_index").to_pylist() for batch in batches]


def test_parts_come_first(run: tuple[Path, RunStore], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, store = run
    assert [file.name for file in table_files(folder, "calls")] == ["part-00000.parquet", "wal-00001.arrows"]
    assert indices(read_batches(folder, "calls", ["call_index"])) == [[0, 1], [2], [3], [4]]
    store.close()
    assert [file.name for file in table_files(folder, "calls")] == ["part-00000.parquet", "part-00001.parquet"]
    monkeypatch.setattr(parts, "BATCH_ROWS", 1)
    assert indices(read_batches(folder, "calls", ["call_index"])) == [[0], [1], [2], [3], [4]]


def test_long_rows_are_read_a_row_group_at_a_time(tmp_path: Path, blank: Blank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "GROUP_BYTES", 1 << 20)
    with RunStore(tmp_path).replace("steps") as table:
        for start in range(0, 1000, 100):
            table.append([blank(StepRow, step_index=start + index, step_token_ids=tuple(range(500))) for index in range(100)])
    batches = list(read_batches(tmp_path, "steps", ["step_index", "step_token_ids"]))
    assert [*chain.from_iterable(batch.column("step_index").to_pylist() for batch in batches)] == list(range(1000))
    assert max(batch.nbytes for batch in batches) < 2 << 20


def test_a_file_becomes_a_part_while_the_table_is_read(run: tuple[Path, RunStore]) -> None:
    folder, store = run
    batches = read_batches(folder, "calls", ["call_index"])
    assert indices([next(batches)]) == [[0, 1]]
    store.close()
    assert indices(batches) == [[2, 3, 4]], "of the part"


def test_nothing_is_there_yet(tmp_path: Path) -> None:
    assert list(read_batches(tmp_path, "calls", ["call_index"])) == []
    (tmp_path / "calls").mkdir()
    (tmp_path / "calls" / "wal-00000.arrows").write_bytes(b"")
    assert list(read_batches(tmp_path, "calls", ["call_index"])) == []
    RunStore(tmp_path).recover()
    assert table_files(tmp_path, "calls") == []


def test_a_table_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "steps").write_text("a file in its place")
    with pytest.raises(InputError, match=r"steps: cannot be read: not a directory$"):
        table_files(tmp_path, "steps")


READERS: tuple[Callable[[Path], object], ...] = (
    lambda run: list(read_whole(run, "calls")),
    lambda run: Query(run).select("FROM calls"),
    lambda run: RunStore(run).recover(),
)


def test_the_pages_of_a_part_are_verified(tmp_path: Path, blank: Blank) -> None:
    """By what reads them with pyarrow, and for queries, which do not, when the folder is opened."""
    store = RunStore(tmp_path)
    store.append("calls", [blank(CallRow, output_token_ids=(tuple(os.urandom(5000)),)) for _ in range(10)])
    store.close()
    part = tmp_path / "calls/part-00000.parquet"
    content, group = part.read_bytes(), pq.read_metadata(part).row_group(0)
    [column] = [each for each in map(group.column, range(group.num_columns)) if each.path_in_schema.startswith("output_token_ids")]
    for place in range(column.data_page_offset + 100, column.data_page_offset + column.total_compressed_size, 7001):
        part.unlink()
        part.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        for reader in READERS:
            with pytest.raises(InputError, match=r"part-00000\.parquet: cannot be read: could not verify .*; put the files"):
                reader(tmp_path)


def copied(folder: Path, source: str, target: str) -> None:
    (folder / target).parent.mkdir(exist_ok=True)
    shutil.copy(folder / source, folder / target)


EDITS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a gap": (
        lambda run: (run / "calls/part-00000.parquet").unlink(),
        r"calls: part-00000\.parquet is missing, and part-00001\.parquet is there; put the files of the run back from a copy, or start a ",
    ),
    "a copy": (
        lambda run: copied(run, "calls/part-00001.parquet", "calls/part-00002.parquet"),
        r"part-00002\.parquet: does not belong here",
    ),
    "another table": (lambda run: copied(run, "steps/part-00000.parquet", "calls/part-00000.parquet"), "is labelled .*/steps/00000; put"),
    "another run": (lambda run: write_run_json(run, folder_id="other"), "does not belong here: it is labelled"),
    "no label": (lambda run: pq.write_table(pa.table({"a": [1]}), run / "calls/part-00001.parquet"), "as nothing of a run"),
    "cut": (lambda run: os.truncate(run / "calls/part-00000.parquet", 4000), r"part-00000\.parquet: cannot be read: "),
    "empty": (lambda run: os.truncate(run / "calls/part-00000.parquet", 0), r"part-00000\.parquet: cannot be read: "),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_does_not_belong_is_refused_by_name(run: tuple[Path, RunStore], edit: str) -> None:
    folder, store = run
    store.close()
    change, says = EDITS[edit]
    change(folder)
    for reader in READERS:
        with pytest.raises(InputError, match=says):
            reader(folder)


def test_files_that_are_none_of_a_run_do_not_matter(run: tuple[Path, RunStore]) -> None:
    folder, store = run
    store.close()
    (folder / "calls/part-00009.parquet.tmp").write_bytes(b"PAR1")
    (folder / "calls/notes.parquet").write_bytes(b"")
    assert len(table_files(folder, "calls")) == 2
