"""Several files, folders, patterns and stdin as one input."""

import gzip
import io
import json
import os
import resource
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data.many_files import files_among, files_of, open_files
from pipeline.data.obtain import HUB, problem_files, spooled
from pipeline.data.part import RowSet
from pipeline.data.problems import Problem, open_problems
from pipeline.errors import BadRow, InputError, PipelineError
from pipeline.remote.inputs import fetch_problems
from tests.support.commands import pipeline
from tests.support.paths import SIM


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """A folder with a file of each format."""
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"problem": "a1"}\nnot json\n')
    (folder / "b.csv").write_text("problem;answer\nb1;1\nb2;2\n")
    pq.write_table(pa.table({"problem": ["c1"], "extra": [1]}), folder / "c.parquet")
    (folder / "notes.txt").write_text("no problems")
    return folder


def said(problems: object) -> list[tuple[int, str]]:
    return [(item.row, item.what if isinstance(item, BadRow) else item.problem) for item in problems]  # type: ignore[attr-defined]


ALL = [(1, "a1"), (2, "not JSON (invalid character)"), (3, "b1"), (4, "b2"), (5, "c1")]


def test_a_folder_is_all_its_files_in_the_order_of_their_names(parts: Path) -> None:
    problems = open_files([parts])
    checked = problems.check()
    assert (checked.rows, checked.bad_rows) == (5, 1)
    assert [row for row, _ in said(problems.unchanged())] == [1, 2, 3, 4, 5]
    assert [text for _, text in said(problems)][0::2] == ["a1", "b1", "c1"]


def test_files_are_read_in_the_order_in_which_they_are_named(parts: Path) -> None:
    problems = open_files([parts / "c.parquet", parts / "b.csv"])
    assert said(problems) == [(1, "c1"), (2, "b1"), (3, "b2")]
    assert problems.check().sha256 != open_files([parts / "b.csv", parts / "c.parquet"]).check().sha256


def test_a_pattern_is_the_files_that_fit(parts: Path) -> None:
    assert [path.name for path in files_of(parts / "*.[cp]*")] == ["b.csv", "c.parquet"]
    assert said(open_files([parts / "b*"])) == [(1, "b1"), (2, "b2")]
    with pytest.raises(InputError, match="no file matches this pattern"):
        files_of(parts / "x*")


def test_a_folder_without_problems(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no file that ends in"):
        open_files([tmp_path])


@pytest.mark.parametrize("limit", [None, 1])
def test_a_misspelt_column_of_lines_of_json_is_told(tmp_path: Path, limit: int | None) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"problem": "x", "answer": "1"}\n' * 2)
    with pytest.raises(InputError, match="no column `anwser`"):
        open_files([tmp_path], {"answer": "anwser"}, RowSet(limit=limit)).check()


def test_a_later_file_of_json_lines_must_have_the_columns_too(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"problem": "x", "gold": "1"}\n')
    (tmp_path / "b.jsonl").write_text('{"problem": "y"}\n')
    with pytest.raises(InputError, match=r"b\.jsonl: no column `gold`"):
        open_files([tmp_path], {"answer": "gold"}).check()


def test_more_files_than_a_process_may_have_open(tmp_path: Path) -> None:
    for number in range(60):
        pq.write_table(pa.table({"problem": [f"p{number}"]}), tmp_path / f"{number:02}.parquet")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each) for each in os.listdir("/dev/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, hard))
    try:
        assert open_files([tmp_path]).check().rows == 60
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("content", "suffix"),
    [
        (b'{"problem": "x"}\n', ".json"),
        (b'\n[{"problem": "x"}]', ".json"),
        (gzip.compress(b"problem\nx\n", mtime=0), ".csv"),
        (b"\xef\xbb\xbfproblem\nx\n", ".csv"),
    ],
)
def test_stdin_is_read_as_what_it_holds(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = spooled(io.BytesIO(content), tmp_path)
    assert path.suffix == suffix
    assert [item.problem for item in open_problems(path) if isinstance(item, Problem)] == ["x"]


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("hf://openai/gsm8k", ("openai/gsm8k", None, None, None)),
        ("hf://openai/gsm8k:main/test", ("openai/gsm8k", None, "main", "test")),
        ("hf://squad@v1.0/train", ("squad", "v1.0", None, "train")),
        ("hf://a/b.c@0123abcd:main/test", ("a/b.c", "0123abcd", "main", "test")),
        ("hf://a/b@refs/convert/parquet:x", ("a/b", "refs/convert/parquet", "x", None)),
    ],
)
def test_addresses_of_the_hub(address: str, parts: tuple[str | None, ...]) -> None:
    found = HUB.fullmatch(address)
    assert found is not None
    assert found.groups() == parts


def test_two_parts_of_a_data_set_of_the_hub_are_two_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's library is stood in for, as no hub can be reached here."""

    class Library:
        @staticmethod
        def load_dataset(name: str, config: str, split: str, revision: str | None) -> "Library":
            found = Library()
            found.table = pa.table({"problem": [f"{name} {config} {split}"]})
            return found

        @staticmethod
        def get_dataset_split_names(name: str, config: str, revision: str | None) -> list[str]:
            return {"main": ["train", "test"], "only": ["train"], "none": ["train", "dev"]}[config]

        table: pa.Table

        def to_parquet(self, path: Path) -> None:
            pq.write_table(self.table, path)

    monkeypatch.setitem(sys.modules, "datasets", Library)
    told: list[str] = []
    with problem_files(["hf://a/b:main", "hf://a/b@v1:other/train", "hf://a/b:only"], fetch_problems, told.append) as paths:
        assert said(open_files(paths)) == [(1, "a/b main test"), (2, "a/b other train"), (3, "a/b only train")]
    newest = "its newest revision, whose commit the library does not report"
    assert told == [
        f"hf://a/b:main: split `test`, {newest}",
        "hf://a/b@v1:other/train: split `train`, revision v1",
        f"hf://a/b:only: split `train`, {newest}",
    ]
    with (
        pytest.raises(InputError, match="has the splits train, dev; choose one: hf://a/b:none/train"),
        problem_files(["hf://a/b:none"], fetch_problems, print),
    ):
        pass


def test_stdin_can_be_named_once() -> None:
    with pytest.raises(InputError, match="can be read only once"), problem_files(["-", "x.jsonl", "-"], fetch_problems, print):
        pass


@pytest.mark.parametrize("address", ["hf://", "hf://../x", "hf://a/..", "hf:///etc", "hf://a/b/c/d"])
def test_what_is_no_address_of_the_hub(address: str) -> None:
    with pytest.raises(PipelineError, match="expected hf://OWNER/NAME"), problem_files([address], fetch_problems, print):
        pass


def test_a_folder_is_not_taken_for_a_data_set_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "openai/gsm8k").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="also exists here"), problem_files(["hf://openai/gsm8k"], fetch_problems, print):
        pass


def test_a_run_over_several_files_keeps_and_resumes_them(parts: Path, tmp_path: Path) -> None:
    command = ("run", "speccot", "--engines", SIM, "--output", tmp_path / "run")
    done = pipeline(*command, "--input", parts / "a.jsonl", "--input", parts / "b*")
    assert done.returncode == 3, done.stderr
    answers = pipeline("export", tmp_path / "run", "-o", "-").stdout.splitlines()
    assert [json.loads(line)["problem"] for line in answers] == ["a1", None, "b1", "b2"]
    for path in parts.iterdir():
        path.unlink()
    assert pipeline("resume", tmp_path / "run", "--retry-failed").returncode == 3


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "p.csv"
    rows = [["problem", "answer", "note"], ['"a, b; c"', "1", "x"], ["two", "2", '"y|z"']]
    path.write_text("".join(separator.join(row) + "\n" for row in rows))
    found = [item for item in open_problems(path) if isinstance(item, Problem)]
    assert [(item.problem, item.answer) for item in found] == [("a, b; c", "1"), ("two", "2")]


TEXT = '{"problem": "x"}\n'


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["data/test-00000-of-00001.parquet", "README.md", ".gitattributes"], ["data/test-00000-of-00001.parquet"]),
        (["data-00000-of-00001.arrow", "dataset_info.json", "state.json", "cache-1a2b.arrow"], ["data-00000-of-00001.arrow"]),
        (["main/data/a.jsonl", "LICENSE"], ["main/data/a.jsonl"]),
        (["test-1.jsonl", "test-0.jsonl", "deep/other.jsonl"], ["test-0.jsonl", "test-1.jsonl"]),
        ([".hidden/a.jsonl", "notes.txt"], []),
    ],
)
def test_the_files_of_a_folder_as_data_sets_lie(names: list[str], found: list[str]) -> None:
    assert files_among("here", names) == found


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (
            ["train.jsonl", "test.jsonl"],
            "has files of several splits, test (1 file), train (1 file); choose one, as a file or a pattern: here/test.jsonl",
        ),
        (
            ["data/train-0.parquet", "data/train-1.parquet", "data/validation.parquet"],
            "several splits, train (2 files), validation (1 file)",
        ),
        (["main/test.parquet", "socratic/test.parquet"], "has files in several folders, main, socratic; choose one: here/main"),
        (
            ["train/data-0.arrow", "test/data-0.arrow", "dataset_dict.json"],
            "has files in several folders, test, train; choose one: here/test",
        ),
    ],
)
def test_a_folder_of_several_splits_is_not_solved_as_a_whole(names: list[str], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        files_among("here", names)
    assert sentence in str(caught.value)


def test_which_files_were_taken_is_said(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.jsonl").write_text(TEXT)
    problems = open_files([tmp_path, tmp_path / "0.jsonl", tmp_path / "[12].jsonl"])
    problems.check()
    listed = (f"{tmp_path}: 6 files: 0.jsonl, 1.jsonl, ..., 5.jsonl", f"{tmp_path}/[12].jsonl: 2 files: 1.jsonl, 2.jsonl")
    assert problems.remarks == listed


def test_what_is_wrong_with_several_files_is_told_together(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / f"{name}.csv").write_text("question\nx\n" if name != "b" else "problem\nx\n")
    with pytest.raises(InputError) as caught:
        open_files([tmp_path]).check()
    assert [name for name in "abcd" if f"{name}.csv: no column `problem`" in str(caught.value)] == ["a", "c", "d"]


@pytest.mark.slow
def test_a_data_set_as_the_library_saves_it(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra `data` is not installed")
    rows = datasets.Dataset.from_list([{"problem": "x", "answer": "1"}, {"problem": "y", "answer": "2"}])
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(tmp_path / "two")
    assert said(open_files([tmp_path / "one"])) == said(open_files([tmp_path / "two/test"])) == [(1, "x"), (2, "y")]
    with pytest.raises(InputError, match="several folders, test, train"):
        open_files([tmp_path / "two"])
