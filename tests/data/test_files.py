"""The same rows leave every format, and a file that cannot be read is named in one sentence."""

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.data.files import Flaw, files_among, files_of, rows_of
from pipeline.errors import InputError

ROWS = [{"problem": "1+1?", "answer": "é"}, {"problem": '"2, 2"\n+?', "answer": "007"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
CSV = 'problem,answer\n1+1?,é\n\n"""2, 2""\n+?",007\n'.encode()
TABLE = pa.Table.from_pylist(ROWS)


def packed(codec: str, data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def arrow(new: object) -> bytes:
    sink = pa.BufferOutputStream()
    with new(sink, TABLE.schema) as writer:  # type: ignore[operator]
        writer.write_table(TABLE)
    return sink.getvalue().to_pybytes()


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(TABLE, sink)
    return sink.getvalue().to_pybytes()


FILE, STREAM = arrow(pa.ipc.new_file), arrow(pa.ipc.new_stream)
READ = {
    "p.parquet": parquet(),
    "p.arrow": FILE,
    "stream.arrow": STREAM,
    "P.NDJSON": LINES,
    "p.jsonl.gz": gzip.compress(LINES),
    "members.jsonl.zst": b"".join(packed("zstd", line + b"\n") for line in LINES.splitlines()),
    "p.csv": CSV,
    "bom.jsonl": b"\xef\xbb\xbf" + LINES,
    "bom.csv": b"\xef\xbb\xbf" + CSV,
    "windows.jsonl": LINES.replace(b"\n", b"\r\n\r\n"),
    "p.tsv": CSV.replace(b"m,a", b"m\ta").replace(b"?,", b"?\t").replace(b'",', b'"\t'),
    "lines.json": LINES,
    "array.json": json.dumps(ROWS, indent=1).encode(),
}


@pytest.mark.parametrize("name", READ)
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(READ[name])
    assert list(rows_of(tmp_path / name)) == ROWS


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(str.strip)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5))
def test_any_text_survives_json_lines_csv_and_parquet(tmp_path: Path, texts: list[tuple[str, str]]) -> None:
    rows = [{"problem": problem, "answer": answer} for problem, answer in texts]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    quoted = "".join(",".join('"' + value.replace('"', '""') + '"' for value in row.values()) + "\n" for row in rows)
    (tmp_path / "p.csv").write_text("problem,answer\n" + quoted, encoding="utf-8", newline="")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    assert list(rows_of(tmp_path / "p.jsonl")) == list(rows_of(tmp_path / "p.csv")) == list(rows_of(tmp_path / "p.parquet")) == rows


def test_a_line_that_is_no_row_spoils_no_other(tmp_path: Path) -> None:
    lines = (b"nonsense", b'"text"', b'{"problem": "\xff"}', b"[" * 20_000, b'{"a": ' + b"9" * 5000 + b"}")
    (tmp_path / "p.jsonl").write_bytes(b'{"problem": Infinity}\n\n' + b"\n".join(lines) + b'\n{"problem": "y"}')
    first, *bad, last = rows_of(tmp_path / "p.jsonl")
    assert (first, last) == ({"problem": float("inf")}, {"problem": "y"})
    said = [str(each).partition(":")[0] for each in bad if isinstance(each, Flaw)]
    assert said == ["is not JSON", "is not a JSON object", "is not JSON", "is not JSON"]
    (tmp_path / "p.csv").write_text("problem,answer\nx,1\nx,2,3\ny,4\n")
    assert [str(row) for row in rows_of(tmp_path / "p.csv")][1:2] == ["has 3 values for 2 columns"]


REFUSED = [
    ("p.txt", b"x", "unknown file type `.txt`; expected .parquet, .arrow, "),
    ("p.csv", b"problem,problem\nx,y\n", "has a column twice: problem, problem"),
    ("p.csv", b'problem\n"x\n', "unexpected end of data"),
    ("p.json", b'[{"problem": "x"},', "expecting value"),
    ("p.parquet", LINES, "parquet"),
    ("p.arrow", FILE[:-40], "p.arrow: "),
    ("p.jsonl.gz", gzip.compress(os.urandom(1000))[:500], "truncated"),
    ("p.jsonl.zst", packed("zstd", LINES * 20)[:-9], "truncated compressed stream"),
]


@pytest.mark.parametrize(("name", "content", "what"), REFUSED)
def test_a_file_that_cannot_be_read_has_one_sentence(tmp_path: Path, name: str, content: bytes, what: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        list(rows_of(tmp_path / name))
    assert str(caught.value).startswith(f"{tmp_path / name}: ")
    assert what in str(caught.value).lower()
    assert "\n" not in str(caught.value)


def test_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for name, what in {"folder.csv": "is not a file", "a.csv": "no such file"}.items():
        with pytest.raises(InputError, match=what):
            list(rows_of(tmp_path / name))


def test_a_folder_and_a_pattern_are_their_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.csv", "a.jsonl", "notes.txt", ".hidden.csv", "dataset_info.json", "cache-1.arrow", "deep/c.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert files_of(tmp_path) == [tmp_path / "a.jsonl", tmp_path / "b.csv"]
    assert files_of(tmp_path / "**/*.csv") == [tmp_path / "b.csv", tmp_path / "deep/c.csv"]
    with pytest.raises(InputError, match="no file matches this pattern"):
        files_of(tmp_path / "x*")
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="has no file that ends in"):
        files_of(tmp_path / "none")


def test_of_a_folder_one_split_is_read() -> None:
    for names in (["main/data/a.parquet"], ["contest.csv", "latest.csv"]):
        assert files_among("d", names) == names
    for names in (["train/a.parquet", "test/a.parquet"], ["train-1.csv", "train-2.csv", "test.csv"]):
        with pytest.raises(InputError, match=r"has files of several folders or splits, such as t.*; name one, or a pattern: d/test"):
            files_among("d", names)
