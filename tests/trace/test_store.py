"""Rows become Parquet that others open, with units, whole parts only, and one sentence when the folder fails."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from msgspec.structs import asdict, fields

from pipeline.errors import RunFolderError
from pipeline.trace import store
from pipeline.trace.events import CallRow, ChainRow, StepRow
from pipeline.trace.store import TABLES, TraceStore, columns_of, schema_of

Blank = Callable[..., Any]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("row", TABLES.values())
def test_every_field_is_a_column(row: Any) -> None:
    assert schema_of(row).names == [field.name for field in fields(row)]


def test_types_units_and_foreign_names() -> None:
    schema = schema_of(CallRow)
    assert schema.field("submit_unix_ns").type == pa.int64()
    assert schema.field("output_token_ids").type.value_type.value_type == pa.int64()
    assert schema.field("queue_time_s").type == pa.float64()
    assert schema.field("queue_time_s").nullable
    assert not schema.field("stage").nullable
    assert schema.field("stop_reason").type.value_field.nullable
    assert schema.field("cached_input_tokens").metadata == {
        b"unit": b"{token}",
        b"otel": b"gen_ai.usage.cache_read.input_tokens",
        b"vllm": b"num_cached_tokens",
    }
    assert schema_of(ChainRow).field("correct").type == pa.bool_()


@pytest.mark.parametrize("row", TABLES.values())
def test_durations_and_instants_have_units(row: Any) -> None:
    for field in schema_of(row):
        unit = (field.metadata or {}).get(b"unit")
        if field.name.endswith("_s"):
            assert (field.type, unit) == (pa.float64(), b"s"), field.name
        if field.name.endswith("_unix_ns"):
            assert (field.type, unit) == (pa.int64(), b"ns since 1970-01-01 UTC"), field.name


ROW: dict[str, Any] = {
    "candidate_index": (0, 1),
    "output_token_ids": ((1, 2, 3), ()),
    "stop_reason": ("\n\n", None),
    "finish_reason": ("stop", "length"),
    "option_logprobs": (-0.5, -1.5),
    "queue_time_s": 0.25,
    "seed": 2**63 - 1,
}


def test_what_goes_in_comes_out(tmp_path: Path, blank: Blank) -> None:
    rows = [blank(CallRow, **ROW, call_index=index) for index in range(600)] + [blank(CallRow)]
    with_unit = TraceStore(tmp_path)
    with_unit.append("calls", rows)
    with_unit.close()
    table = pq.read_table(tmp_path / "calls")
    assert table.schema.field("e2e_latency_s").metadata[b"unit"] == b"s"
    back = [{key: _tuple(value) for key, value in row.items()} for row in table.to_pylist()]
    assert back == [asdict(row) for row in rows]


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


def test_duckdb_and_pyarrow_open_the_folder(tmp_path: Path, blank: Blank) -> None:
    trace = TraceStore(tmp_path)
    trace.append("steps", [blank(StepRow, decision="accepted", step_token_ids=(1, 2)), blank(StepRow, decision="fallback")])
    trace.close()
    query = f"select decision, len(step_token_ids) from read_parquet('{tmp_path}/steps/part-*.parquet')"
    assert duckdb.sql(query).fetchall() == [("accepted", 2), ("fallback", 0)]
    assert duckdb.sql(f"select count(*) from read_parquet('{tmp_path}/chains/part-*.parquet')").fetchall() == [(0,)]
    assert ds.dataset(tmp_path / "steps").count_rows() == 2
    file = pq.ParquetFile(tmp_path / "steps" / "part-00000.parquet")
    chunk = file.metadata.row_group(0).column(file.schema_arrow.names.index("decision"))
    assert chunk.compression == "ZSTD"
    assert chunk.has_dictionary_page


def test_a_store_without_rows_leaves_three_empty_tables(tmp_path: Path) -> None:
    TraceStore(tmp_path).close()
    for table, row in TABLES.items():
        assert names(tmp_path / table) == ["part-00000.parquet"]
        assert pq.read_table(tmp_path / table).schema.equals(schema_of(row))


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of 4 rows, parts of 2 groups."""
    for name, value in {"BATCH_ROWS": 2, "GROUP_ROWS": 4, "PART_GROUPS": 2}.items():
        monkeypatch.setattr(store, name, value)


@pytest.mark.usefixtures("_small")
def test_groups_and_parts_fill_in_order(tmp_path: Path, blank: Blank) -> None:
    trace = TraceStore(tmp_path)
    calls = tmp_path / "calls"
    trace.append("calls", [blank(CallRow, call_index=index) for index in range(2)])
    assert names(calls) == []
    trace.append("calls", [blank(CallRow, call_index=index) for index in range(2, 10)])
    assert names(calls) == ["part-00000.parquet"]
    trace.append("calls", [blank(CallRow, call_index=index) for index in range(10, 13)])
    assert names(calls) == ["part-00000.parquet", "part-00001.parquet.tmp"]
    assert ds.dataset(str(calls / "part-00000.parquet")).count_rows() == 8
    trace.close()
    trace.close()
    assert names(calls) == ["part-00000.parquet", "part-00001.parquet"]
    first = pq.ParquetFile(calls / "part-00000.parquet").metadata
    assert [first.row_group(group).num_rows for group in range(first.num_row_groups)] == [4, 4]
    assert pq.read_table(calls)["call_index"].to_pylist() == list(range(13))


def test_big_rows_make_a_group_by_their_bytes(tmp_path: Path, blank: Blank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "GROUP_BYTES", 100_000)
    trace = TraceStore(tmp_path)
    trace.append("steps", [blank(StepRow, step_text="x" * 200_000)])
    assert names(tmp_path / "steps") == ["part-00000.parquet.tmp"]
    trace.close()


def test_a_second_session_adds_parts_and_clears_unreadable_ones(tmp_path: Path, blank: Blank) -> None:
    first = TraceStore(tmp_path)
    first.append("chains", [blank(ChainRow, sample_index=1)])
    first.close()
    (tmp_path / "chains" / "part-00001.parquet.tmp").write_bytes(b"PAR1 cut off")
    second = TraceStore(tmp_path)
    second.append("chains", [blank(ChainRow, sample_index=2)])
    second.close()
    assert names(tmp_path / "chains") == ["part-00000.parquet", "part-00001.parquet"]
    assert names(tmp_path / "calls") == ["part-00000.parquet"], "no second empty part"
    assert pq.read_table(tmp_path / "chains")["sample_index"].to_pylist() == [1, 2]


def test_a_lone_surrogate_is_replaced(blank: Blank) -> None:
    rows = [blank(StepRow, step_text="a\ud800b", candidate_texts=("\udfff", "c"))]
    batch = columns_of(schema_of(StepRow), rows)
    assert batch.column("step_text").to_pylist() == ["a?b"]
    assert batch.column("candidate_texts").to_pylist() == [["?", "c"]]


@contextmanager
def _no_file_over(size: int) -> Iterator[None]:
    """The operating system refuses to let any file grow further, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("_small")
def test_a_full_disk_is_one_sentence_and_leaves_whole_parts(tmp_path: Path, blank: Blank) -> None:
    trace = TraceStore(tmp_path)
    trace.append("calls", [blank(CallRow)] * 8)
    trace.append("chains", [blank(ChainRow)])
    with _no_file_over(30_000):
        with pytest.raises(RunFolderError) as caught:
            trace.append("calls", [blank(CallRow, output_token_ids=(tuple(os.urandom(50_000)),))] * 4)
        trace.close()
    assert str(caught.value) == f"{tmp_path}/calls: cannot write the trace: File too large"
    assert names(tmp_path / "calls") == ["part-00000.parquet"]
    assert pq.read_table(tmp_path / "calls").num_rows == 8
    assert pq.read_table(tmp_path / "chains").num_rows == 1


def test_a_disk_that_is_full_at_the_end(tmp_path: Path, blank: Blank) -> None:
    trace = TraceStore(tmp_path)
    trace.append("calls", [blank(CallRow)])
    with _no_file_over(100), pytest.raises(RunFolderError, match="/calls: cannot write the trace: File too large"):
        trace.close()
    assert [names(tmp_path / table) for table in TABLES] == [[], [], []]


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "calls").write_text("")
    with pytest.raises(RunFolderError, match="/calls: cannot write the trace: File exists"):
        TraceStore(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunFolderError, match="/calls: cannot write the trace: Permission denied"):
        TraceStore(tmp_path)
