"""Every kind of file that people have is read as what it is, or refused with a sentence that says what it is."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data.formats import form_of
from pipeline.data.problems import Problem, open_problems
from pipeline.errors import BadRow, InputError

ROWS = [{"problem": "1+1?", "answer": "é"}, {"problem": "2+2?", "answer": "4"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
CSV = "problem,answer\n1+1?,é\n2+2?,4\n"
TABLE = pa.Table.from_pylist(ROWS)


def packed(codec: str) -> Callable[[bytes], bytes]:
    def pack(data: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(data)
        return bytes(sink.getvalue().to_pybytes())

    return pack


def written(write: Callable[[Any], Any]) -> bytes:
    sink = pa.BufferOutputStream()
    with write(sink) as writer:
        writer.write_table(TABLE)
    return bytes(sink.getvalue().to_pybytes())


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(TABLE, sink)
    return bytes(sink.getvalue().to_pybytes())


FILE, STREAM = written(lambda sink: pa.ipc.new_file(sink, TABLE.schema)), written(lambda sink: pa.ipc.new_stream(sink, TABLE.schema))
PACKS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": packed("zstd"), "lz4": packed("lz4")}
READ: dict[str, tuple[str, bytes]] = {
    **{f"lines in {name}": (f"p.jsonl.{name}", pack(LINES.encode())) for name, pack in PACKS.items()},
    **{f"csv in {name}": (f"P.CSV.{name.upper()}", pack(CSV.encode())) for name, pack in PACKS.items()},
    "compressed without saying so": ("p.jsonl", gzip.compress(LINES.encode())),
    "two members": ("p.jsonl.zst", b"".join(PACKS["zst"](json.dumps(row).encode() + b"\n") for row in ROWS)),
    "parquet": ("p.parquet", parquet()),
    "lines": ("P.NDJSON", LINES.encode()),
    "arrow file": ("p.arrow", FILE),
    "arrow stream": ("p.arrow", STREAM),
    "feather": ("p.feather", FILE),
    "utf-16": ("p.csv", CSV.encode("utf-16")),
    "utf-16 big-endian": ("p.jsonl", b"\xfe\xff" + LINES.encode("utf-16-be")),
    "utf-16 of a spreadsheet": ("p.tsv", CSV.replace(",", "\t").replace("\n", "\r\n").encode("utf-16")),
    "byte order mark": ("p.csv", b"\xef\xbb\xbf" + CSV.encode()),
    "old Mac": ("p.csv", CSV.replace("\n", "\r").encode()),
    "old Mac lines": ("p.jsonl", LINES.replace("\n", "\r").encode()),
    "semicolons": ("p.csv", CSV.replace(",", ";").encode()),
    "json array": ("p.json", json.dumps(ROWS, indent=2).encode()),
    "json lines": ("p.json", LINES.encode()),
    "rows one level down": ("p.json", json.dumps({"version": "1.0", "data": ROWS}).encode()),
    "rows one level down, over lines": ("p.json", json.dumps({"data": ROWS}, indent=2).encode()),
    "json with nan": ("p.json", json.dumps([{**row, "level": float("nan")} for row in ROWS]).encode()),
    "rows with nan one level down": ("p.json", json.dumps({"data": [{**row, "level": float("inf")} for row in ROWS]}).encode()),
    "lines with nan": ("p.jsonl", "".join(json.dumps({**row, "level": float("nan")}) + "\n" for row in ROWS).encode()),
}


@pytest.mark.parametrize("name", READ)
def test_what_people_have_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / READ[name][0]
    path.write_bytes(READ[name][1])
    problems = open_problems(path)
    assert problems.check().bad_rows == 0
    assert list(problems) == list(problems.unchanged()) == [Problem(1, "1", "1+1?", "é"), Problem(2, "2", "2+2?", "4")]
    assert problems.remarks == ((f"{path}: its rows are those of `data`",) if "one level down" in name else ())


REFUSED: dict[str, tuple[str, bytes, str]] = {
    "several arrays": ("p.json", json.dumps({"train": ROWS, "test": ROWS}).encode(), "holds several arrays of objects, `train`, `test`"),
    "columns of pandas": ("p.json", b'{"problem": {"0": "x"}, "answer": {"0": 1}}', "holds one object per column, the pandas default"),
    "array over lines": ("p.jsonl", json.dumps(ROWS, indent=1).encode(), "one JSON array over many lines"),
    "parquet by another name": ("p.jsonl", parquet(), "is a Parquet file; name it .parquet"),
    "archive": ("p.csv", b"PK\x03\x04abc", "is a ZIP archive"),
    "pointer": ("p.csv", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "is a Git LFS pointer instead of the file"),
    "utf-32": ("p.csv", CSV.encode("utf-32"), "not UTF-8 text, but UTF-32"),
    "utf-16 without a mark": ("p.csv", CSV.encode("utf-16-le"), "UTF-16 without a byte order mark); save it as UTF-8"),
    "feather 1": ("p.feather", b"FEA1abcdef", "is Feather version 1"),
    "no arrow": ("p.arrow", b"", "not a complete Arrow file: "),
    "arrow cut": ("p.arrow", FILE[:-40], "not a complete Arrow file: "),
    "zstd cut": ("p.jsonl.zst", PACKS["zst"](LINES.encode() * 20)[:-9], "Truncated compressed stream"),
    "one row that is none": ("p.json", b'{"q": "x", "a": [1]}', "no column `problem`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    file, content, what = REFUSED[name]
    (tmp_path / file).write_bytes(content)
    with pytest.raises(InputError) as caught:
        open_problems(tmp_path / file).check()
    assert what in str(caught.value)


@pytest.mark.parametrize("cut", range(8, len(STREAM) - 8, 40))
def test_a_damaged_arrow_stream_is_an_error_and_never_a_crash(tmp_path: Path, cut: int) -> None:
    damaged = bytearray(STREAM)
    damaged[cut : cut + 4] = b"\xff\xff\xff\x7f"
    (tmp_path / "p.arrow").write_bytes(damaged)
    try:
        items = list(open_problems(tmp_path / "p.arrow"))
    except InputError:
        return
    assert all(isinstance(item, Problem | BadRow) for item in items)


@pytest.mark.parametrize(
    ("name", "form"),
    [("a.jsonl.zst", ".jsonl"), ("a.parquet", ".parquet"), ("a.parquet.gz", ""), ("a.arrow.zst", ""), ("a.gz", ""), ("A.CSV.GZ", ".csv")],
)
def test_a_format_is_told_by_the_name(name: str, form: str) -> None:
    assert form_of(name) == form
