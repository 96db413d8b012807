"""Problems are streamed from every format, and every way in which a file can be wrong has its sentence."""

import gzip
import json
import os
import time
import tracemalloc
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data import formats, rows
from pipeline.data.part import RowSample, RowSet
from pipeline.data.problems import Fingerprint, Problem, duplicates, open_problems
from pipeline.errors import BadRow, InputError

Write = Callable[[str, Any], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file from bytes, text, or rows in the form that its suffix names."""

    def put(name: str, content: Any) -> Path:
        path = tmp_path / name
        if name.endswith(".parquet") and not isinstance(content, bytes):
            pq.write_table(content if isinstance(content, pa.Table) else pa.Table.from_pylist(content), path)
            return path
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        raw = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        return path

    return put


def read(path: Path, columns: dict[str, str] | None = None, limit: int | None = None) -> list[Problem | BadRow]:
    return list(open_problems(path, columns, RowSet(limit=limit)))


def flaw(item: Problem | BadRow) -> str:
    assert isinstance(item, BadRow), item
    return item.what


ROWS = [{"problem_id": "a", "problem": "1+1?", "answer": "2"}, {"problem_id": "b", "problem": "2+2?", "answer": "4"}]


def test_fingerprint_tells_files_apart(write: Write) -> None:
    one, other = open_problems(write("a.jsonl", ROWS)).check(), open_problems(write("b.jsonl", ROWS[:1])).check()
    assert one == Fingerprint(one.sha256, 2, 0)
    assert one.sha256 != other.sha256
    assert len(one.sha256) == 64


def test_row_number_is_the_id_where_there_is_none(write: Write) -> None:
    path = write("p.jsonl", '{"problem":"x"}\n\n{"problem":"y"}\n   \n')
    assert read(path) == [Problem(1, "1", "x", None), Problem(2, "2", "y", None)]
    assert read(write("p.csv", "problem\nx\n\ny\n")) == [Problem(1, "1", "x", None), Problem(2, "2", "y", None)]


def test_line_separators_are_white_space_around_json_and_text_in_it(write: Write) -> None:
    path = write("p.jsonl", '\u2028{"problem":"x\u2028y"}\n\u2028\n{"problem":"z"}\u2029\n')
    assert read(path) == [Problem(1, "1", "x\u2028y", None), Problem(2, "2", "z", None)]


def test_a_sample_is_drawn_from_all_rows_and_is_part_of_a_larger_one(write: Write) -> None:
    path = write("p.jsonl", [{"problem": f"{i}"} for i in range(1, 201)])
    few, more, other = (list(open_problems(path, part=RowSet(sample=RowSample(rows, seed)))) for rows, seed in ((20, 0), (60, 0), (20, 1)))
    assert [item.row for item in few] == sorted({item.row for item in few})
    assert set(few) < set(more)
    assert set(few) != set(other)
    assert all(isinstance(item, Problem) and item.problem == str(item.row) for item in few)
    assert max(item.row for item in few) > 100
    assert open_problems(path, part=RowSet(sample=RowSample(20))).check().rows == 20


def test_a_sample_larger_than_the_file_is_refused(write: Write) -> None:
    path = write("p.csv", "problem\nx\ny\n")
    with pytest.raises(InputError, match=r"p\.csv: a sample of 3 rows was requested, but it has 2$"):
        open_problems(path, part=RowSet(sample=RowSample(3))).check()


def test_columns_are_mapped(write: Write) -> None:
    path = write("p.jsonl", [{"question": "x", "final": 7, "nr": 5, "problem": "not me"}])
    columns = {"problem": "question", "answer": "final", "problem_id": "nr"}
    assert read(path, columns) == [Problem(1, "5", "x", "7")]
    open_problems(path, columns).check()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (27.0, "27"),
        (0.5, "0.5"),
        (10**30, str(10**30)),
        (1e300, "1" + 300 * "0"),
        (1e22, "1" + 22 * "0"),
        (1e-7, "0.0000001"),
        (-3, "-3"),
        (True, "true"),
        (None, None),
        (" ", None),
        ([1, "x"], "1, x"),
        (["5"], "5"),
        ("We get 3*6 = <<3*6=18>>18\n#### 18", "18"),
    ],
)
def test_answers_become_text(write: Write, value: Any, text: str | None) -> None:
    (item,) = read(write("p.jsonl", [{"problem": "x", "answer": value}]))
    assert isinstance(item, Problem)
    assert item.answer == text


def test_answers_of_parquet_become_text(write: Write) -> None:
    table = pa.table({"problem": ["x"] * 3, "answer": pa.array([Decimal("27.00"), Decimal("0.50"), None], pa.decimal128(8, 2))})
    assert [item.answer for item in read(write("p.parquet", table)) if isinstance(item, Problem)] == ["27", "0.50", None]
    table = pa.table({"problem": pa.array(["x", "y"]).dictionary_encode(), "answer": pa.array([float("nan"), 2.0]), "problem_id": [7, 8]})
    assert read(write("p.parquet", table)) == [Problem(1, "7", "x", None), Problem(2, "8", "y", "2")]


def test_csv_fields_may_hold_commas_quotes_and_line_breaks(write: Write) -> None:
    path = write("p.csv", 'problem,answer\n"a, ""b""\n\nc",1\nd,\n')
    assert read(path) == [Problem(1, "1", 'a, "b"\n\nc', "1"), Problem(2, "2", "d", None)]


def test_limit_reads_no_further(write: Write) -> None:
    path = write("p.jsonl", b'{"problem":"x"}\n{"problem":"y"}\nnot json\n')
    source = open_problems(path, part=RowSet(limit=2))
    assert source.check().rows == 2
    assert len(list(source)) == 2


GOOD = b'{"problem":"fine"}'
BAD_LINES = [
    (b"nonsense", "not JSON (JSON is malformed: invalid character (byte 4))"),
    (b'"text"', "not a JSON object"),
    (b'{"problem":"x","answer":' + b"9" * 4001 + b"}", "`answer` is a number of more than 4,000 digits; write it as text"),
    (b'{"problem":"x","answer":1e400}', "`answer` holds a number that is out of range"),
    (b'[{"problem":"x"}]', "an array, not a JSON object: write one object per line"),
    (b'[{"problem":"x"},', "not JSON (an array that is not closed)"),
    (b'{"problem":null}', "`problem` is empty"),
    (b'{"problem":" \\n"}', "`problem` is empty"),
    (b'{"question":"x"}', "has no `problem`"),
    (b'{"problem":5}', "`problem` is a number, expected text or the messages of a chat"),
    (b'{"problem":"\xff"}', "not UTF-8"),
    (b'{"problem":"x","other":"\xff"}', "not UTF-8"),
    (b'{"problem":"x","answer":{}}', "`answer` is an object, expected text or a number"),
    (b'{"problem":"x","answer":Infinity}', "`answer` is infinite, expected text or a number"),
    (b'{"problem":"x\\ud800"}', "`problem` contains a lone surrogate, which is not a character"),
    (
        b'{"problem":"x","problem_id":9007199254740994.0}',
        "`problem_id` is the float 9007199254740994.0, and floats of that size cannot represent every integer; "
        "write ids as integers or text",
    ),
    (b'{"problem":' + b"[" * 20000 + b"]" * 20000 + b"}", "nested too deeply"),
]


@pytest.mark.parametrize(("line", "what"), BAD_LINES, ids=[what[:40] for _, what in BAD_LINES])
def test_a_bad_line_does_not_stop_the_others(write: Write, line: bytes, what: str) -> None:
    path = write("p.jsonl", b"\n".join([GOOD, line, GOOD]))
    first, bad, last = read(path)
    assert isinstance(first, Problem)
    assert isinstance(last, Problem)
    assert str(bad) == f"{path}, row 2: {what}"
    assert open_problems(path).check().bad_rows == 1


def test_a_bad_line_after_blank_ones_is_named_by_row_and_line(write: Write) -> None:
    path = write("p.jsonl", b"\n\n".join([GOOD, b"not json", GOOD]))
    _, bad, last = read(path)
    assert str(bad).startswith(f"{path}, row 2: line 3: not JSON (")
    assert isinstance(last, Problem)
    assert last.row == 3


BAD_CSV = [
    (b"1,2,3", "3 fields, the header has 2"),
    (b"1", "1 fields, the header has 2"),
    (b" ,2", "`problem` is empty"),
    (b"\xff,2", "not UTF-8"),
    (b'"x"y,2', "not CSV (',' expected after '\"')"),
]


@pytest.mark.parametrize(("line", "what"), BAD_CSV)
def test_a_bad_csv_row_does_not_stop_the_others(write: Write, line: bytes, what: str) -> None:
    path = write("p.csv", b"\n".join([b"problem,answer", b"x,1", line, b"y,2", b""]))
    first, bad, last = read(path)
    assert (first, last) == (Problem(1, "1", "x", "1"), Problem(3, "3", "y", "2"))
    assert str(bad) == f"{path}, row 2: {what}"


def test_a_parquet_text_that_is_not_utf8_is_one_bad_row(write: Write) -> None:
    texts = pa.array([b"x", b"\xff", b"z"], pa.binary()).view(pa.string())
    first, bad, last = read(write("p.parquet", pa.table({"problem": texts})))
    assert (first, last) == (Problem(1, "1", "x", None), Problem(3, "3", "z", None))
    assert flaw(bad) == "not UTF-8"


@pytest.mark.parametrize("name", ["p.jsonl", "p.csv", "p.jsonl.gz"])
def test_an_endless_row_is_a_bad_row_of_bounded_memory(write: Write, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(rows, "MAX_ROW_BYTES", 1 << 20)
    head, good = ("problem\n", "fine\n") if "csv" in name else ("", '{"problem":"fine"}\n')
    path = write(name, head + good + "x" * (8 << 20) + "\n" + good)
    tracemalloc.start()
    first, bad, last = read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert flaw(bad) == "longer than 1 MiB"
    assert isinstance(first, Problem)
    assert isinstance(last, Problem)
    assert peak < 5 << 20


def test_an_endless_quoted_csv_field_is_bounded_too(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_ROW_BYTES", 1 << 20)
    path = write("p.csv", 'problem\nfine\n"' + "line\n" * (1 << 18) + '"\nfine\n')
    items = read(path)
    assert isinstance(items[0], Problem)
    assert flaw(items[1]) == "longer than 1 MiB"


def test_a_long_csv_field_within_the_bound_is_read(write: Write) -> None:
    (item,) = read(write("p.csv", "problem\n" + "x" * 300_000 + "\n"))
    assert isinstance(item, Problem)


def wrong(path: Path, columns: dict[str, str] | None = None) -> str:
    with pytest.raises(InputError) as caught:
        open_problems(path, columns).check()
    return str(caught.value).replace(f"{path.parent}/", "")


WRONG_FILES: list[tuple[str, Any, str]] = [
    (
        "p.txt",
        "x",
        "p.txt: unknown file type `.txt`; expected .parquet, .arrow, .feather, .jsonl, .ndjson, .json, .csv or .tsv, "
        "the text formats also with .gz, .bz2, .zst, .lz4, .xz",
    ),
    ("p.parquet.gz", b"", "p.parquet.gz: unknown file type `.parquet.gz`; expected"),
    ("p.jsonl", "", "p.jsonl: holds no rows"),
    ("p.csv", "", "p.csv: holds no rows"),
    ("p.parquet", pa.table({"problem": pa.array([], pa.string())}), "p.parquet: holds no rows"),
    ("p.parquet", b"PAR1 and then nothing", "p.parquet: not a complete Parquet file: Parquet magic bytes not found in footer."),
    (
        "p.csv",
        "problem\nx\n".encode("utf-16-le"),
        "p.csv: not UTF-8 text (binary, or UTF-16 without a byte order mark); save it as UTF-8",
    ),
    ("p.csv", b"probl\xe8me\nx\n", "p.csv: the header is not UTF-8"),
    ("p.csv", "problem,problem\nx,y\n", "p.csv: has the column `problem` twice"),
    ("p.jsonl", "é\n".encode("latin-1") * 3, "p.jsonl: no row holds a problem; row 1: not UTF-8"),
    (
        "p.jsonl",
        '[\n{"problem":"x"},\n{"problem":"y"}\n]\n',
        "p.jsonl: one JSON array over many lines; write one object per line, or name the file .json",
    ),
    ("p.jsonl", '[{"problem":"x"}]', "p.jsonl: no row holds a problem; row 1: an array, not a JSON object: write one object per line"),
    (
        "p.parquet",
        [{"question": "x"}],
        "p.parquet: no column `problem`; it has `question`; pass --column problem=NAME; --column answer=NAME as well, if one holds the "
        "right answers",
    ),
    ("p.jsonl", [*ROWS, ROWS[0]], "p.jsonl, row 3: problem_id 'a' is taken by row 1 already"),
    (
        "p.parquet",
        [{**ROWS[0], "problem_id": 5}, {**ROWS[1], "problem_id": 5}],
        "p.parquet, row 2: problem_id '5' is taken by row 1 already",
    ),
    ("p.jsonl", [{"problem": "x"}, {"problem": "y", "problem_id": 1}], "p.jsonl, row 2: problem_id '1' is taken by row 1 already"),
]


@pytest.mark.parametrize(("name", "content", "sentence"), WRONG_FILES)
def test_a_wrong_file_has_its_sentence(write: Write, name: str, content: Any, sentence: str) -> None:
    text = wrong(write(name, content))
    assert text.startswith(sentence)
    assert "\n" not in text


def test_a_missing_file_a_folder_and_a_pipe(tmp_path: Path) -> None:
    assert wrong(tmp_path / "p.jsonl") == "p.jsonl: no such file"
    (tmp_path / "folder.jsonl").mkdir()
    assert wrong(tmp_path / "folder.jsonl") == "folder.jsonl: is a directory; expected a file"
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert wrong(tmp_path / "pipe.jsonl") == "pipe.jsonl: is not a regular file"


@pytest.mark.parametrize("name", ["p.jsonl.gz", "p.csv.gz"])
def test_damaged_gzip(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    rows = "problem\n" + "".join(f"{os.urandom(30).hex()}\n" for _ in range(2000))
    lines = rows if "csv" in name else "".join(json.dumps({"problem": line}) + "\n" for line in rows.split())
    whole = gzip.compress(lines.encode())
    path.write_bytes(whole[: len(whole) // 2])
    assert "truncated compressed stream" in wrong(path).lower()


@pytest.mark.parametrize(
    ("name", "first", "blank", "last"),
    [
        ("p.jsonl", b'{"problem": "1"}\n', b"\n", b'{"problem": "2"}\n'),
        ("p.jsonl.gz", b'{"problem": "1"}\r\n', b" \r\n", b'{"problem": "2"}\r\n'),
        ("p.csv.gz", b"problem\r\n1\r\n", b"\r\n", b"2"),
    ],
)
def test_a_few_bytes_that_are_millions_of_blank_lines_take_little_time(
    write: Write, name: str, first: bytes, blank: bytes, last: bytes
) -> None:
    path = write(name, first + blank * 4_000_000 + last)
    began = time.process_time()
    assert [(item.row, item.problem) for item in read(path)] == [(1, "1"), (2, "2")]
    assert time.process_time() - began < 0.5


def test_a_line_of_csv_that_is_one_blank_field_is_a_row(write: Write) -> None:
    assert [item.row for item in read(write("p.csv", "problem\n1\n\n  \n\n\n2\n"))] == [1, 2, 3]


def test_a_footer_with_too_long_lists_is_refused_unread(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(formats.PARQUET_LIMITS, "thrift_container_size_limit", 50)
    path = write("p.parquet", [{f"c{place}": 1 for place in range(60)}])
    assert wrong(path) == "p.parquet: has more than 50 columns or row groups, or is damaged"


def test_parquet_damaged_in_the_middle(write: Write) -> None:
    path = write("p.parquet", [{"problem": os.urandom(20).hex()} for _ in range(500)])
    raw = bytearray(path.read_bytes())
    raw[4:200] = os.urandom(196)
    path.write_bytes(raw)
    assert wrong(path).startswith("p.parquet, after row 0: ")


@pytest.mark.parametrize("name", ["p.jsonl", "p.csv", "p.parquet"])
def test_a_mapped_column_that_is_not_there(write: Write, name: str) -> None:
    path = write(name, "question,answer\nx,1\n" if name == "p.csv" else [{"question": "x", "answer": "1"}])
    has = f"{name}: no column `questoin`; it has `question`, `answer`; did you mean `question`?"
    assert wrong(path, {"problem": "questoin"}) == has
    assert wrong(path, {"problem": "question", "problem_id": "zzz"}) == f"{name}: no column `zzz`; it has `question`, `answer`"
    both = f"{name}: no column `questoin` or `anwser`; it has `question`, `answer`; did you mean `question`?; did you mean `answer`?"
    assert wrong(path, {"problem": "questoin", "answer": "anwser"}) == both


def test_an_unknown_name_of_ours(write: Write) -> None:
    path = write("p.jsonl", ROWS)
    with pytest.raises(InputError, match=r"--column anwser=x: a problem has no field `anwser`; did you mean `answer`\?"):
        open_problems(path, {"anwser": "x"})


@pytest.mark.parametrize("name", ["p.jsonl", "p.parquet", "p.csv"])
@pytest.mark.parametrize("null", [None, "", " "])
def test_a_row_without_an_id_is_called_by_its_number_and_that_is_said(write: Write, name: str, null: str | None) -> None:
    ids = ["a", null, "(row 2)", "(row 2)*", "d"]
    content: Any = [{"problem": "x", "nr": each} for each in ids]
    if name == "p.csv":
        content = "problem,nr\n" + "".join(f"x,{each or ''}\n" for each in ids)
    source = open_problems(write(name, content), {"problem_id": "nr"})
    assert source.check().bad_rows == 0
    assert [item.problem_id for item in source.unchanged()] == ["a", "(row 2)**", "(row 2)", "(row 2)*", "d"]
    assert source.remarks == (f"{source.path}: 1 row has no `nr`: it is called (row 2)",)


def test_a_hash_collision_is_no_duplicate() -> None:
    same = hash("a")
    hashes = np.array([same, hash("b"), same])
    assert duplicates(lambda: [(1, "a"), (2, "b"), (3, "c")], hashes) == []
    assert duplicates(lambda: [(1, "a"), (2, "b"), (3, "a")], hashes) == [("a", 1, 3)]


def test_ids_are_read_again_only_when_hashes_repeat() -> None:
    def never() -> list[tuple[int, str]]:
        raise AssertionError

    assert duplicates(never, np.arange(5)) == []
    assert duplicates(never, np.array([], np.int64)) == []


def test_memory_of_the_check_is_flat(write: Write) -> None:
    path = write("p.jsonl", [{"problem": "x" * 400, "problem_id": f"{number:0100}"} for number in range(5000)])
    tracemalloc.start()
    open_problems(path).check()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


BOUNDS = [
    ({"problem": "x" * 1_000_001}, "`problem` has 1,000,001 characters, more than 1,000,000"),
    ({"answer": "x" * 100_001, "options": []}, "`answer` has 100,001 characters, more than 100,000"),
    ({"problem_id": "x" * 1001}, "`problem_id` has 1,001 characters, more than 1,000"),
    ({"options": [f"{place}" for place in range(27)]}, "`options` has 27 texts, more than the 26 that have a letter"),
    ({"options": ["x" * 100_001]}, "`options` has 100,001 characters, more than 100,000"),
]


@pytest.mark.parametrize(("row", "what"), BOUNDS, ids=[what for _, what in BOUNDS])
def test_a_text_beyond_its_bound_is_one_bad_row(write: Write, row: dict[str, Any], what: str) -> None:
    plain = {"problem": "fine", "answer": "A", "problem_id": "a", "options": ["y"]}
    first, bad, last = read(write("p.jsonl", [plain, plain | {"problem_id": "b"} | row, plain | {"problem_id": "c"}]))
    assert flaw(bad) == what
    assert isinstance(first, Problem)
    assert isinstance(last, Problem)


def test_a_parquet_row_beyond_its_bound_never_becomes_python(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_ROW_BYTES", 1 << 20)
    first, bad, last = read(write("p.parquet", [{"problem": "x"}, {"problem": "y" * (2 << 20)}, {"problem": "z"}]))
    assert flaw(bad) == "longer than 1 MiB"
    assert [item.problem for item in (first, last) if isinstance(item, Problem)] == ["x", "z"]


@pytest.mark.slow
def test_a_text_that_a_dictionary_repeats_is_not_expanded_at_once(write: Write) -> None:
    """6 MiB once in the file, once for each of 256 rows were they read together."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 256, pa.int32()), pa.array(["x" * (6 << 20)]))
    path = write("p.parquet", b"")
    pq.write_table(pa.table({"problem": texts}), path, dictionary_pagesize_limit=1 << 30, write_statistics=False, store_schema=False)
    before = pa.total_allocated_bytes()
    first = next(iter(open_problems(path)))
    assert "`problem` has 6,291,456 characters" in flaw(first)
    assert pa.total_allocated_bytes() - before < 400 << 20


def test_too_many_columns(write: Write) -> None:
    header = ",".join(f"c{i}" for i in range(10_001))
    assert wrong(write("p.csv", f"{header}\n")) == "p.csv: has 10,001 columns, more than 10,000"


def test_all_flaws_of_a_file_are_told_at_once_and_not_more_than_a_few(write: Write) -> None:
    rows: list[Any] = [{"problem": "x", "problem_id": number % 3} for number in range(30)]
    path = write("p.jsonl", rows)
    path.write_bytes(path.read_bytes() + b"nonsense\n" * 9)
    text = wrong(path)
    assert text.startswith("p.jsonl, row 4: problem_id '0' is taken by row 1 already; row 5: problem_id '1' is taken by row 2 already; ")
    assert text.count("is taken by") == 5
    assert text.endswith("row 35: not JSON (JSON is malformed: invalid character (byte 4)); and 4 more")


def test_rows_without_a_problem_are_named_when_the_file_is_read(write: Write) -> None:
    source = open_problems(write("p.jsonl", b'nonsense\n{"problem":""}\n{"problem":5}\n{"q":1}\n{"problem":"x"}\n'))
    assert source.check().bad_rows == 4
    [said] = source.remarks
    assert "4 of 5 rows hold no problem and will fail: row 1: not JSON" in said
    assert all(f"row {row}: " in said for row in (1, 2, 3, 4))
