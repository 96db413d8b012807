"""What is named or held as an input becomes files or rows: stdin, data sets by name, addresses of the hub, tables and values."""

import io
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data.inputs import problem_files, rows_in_memory
from pipeline.data.problems import ChainSettings, Problem
from pipeline.data.reading import InputReading, read_problems
from pipeline.errors import InputError, PipelineError, UsageError
from pipeline.graph.files import ARITH
from pipeline.graph.prompts import Message
from tests.support.requests import request

COLUMNS = {"problem": ["1+1?", "2+2?"], "answer": [0.5, 4.0]}


def fetch(url: str, folder: Path) -> Path:
    return Path(url.removeprefix("file://"))


class Library:
    """The hub's library, as no hub can be reached here."""

    __spec__ = ModuleSpec("datasets", None, origin="here")

    class Data:
        def __init__(self, *about: object) -> None:
            self.about, self.split = about, about[2]

        def to_parquet(self, path: Path) -> None:
            pq.write_table(pa.table({"problem": [" ".join(map(str, self.about))]}), path)

    @classmethod
    def load_dataset(cls, name: str, config: str, split: str, revision: str | None) -> "Library.Data":
        return cls.Data(name, config, split, revision)

    @staticmethod
    def get_dataset_split_names(name: str, config: str, revision: str | None) -> list[str]:
        return {"main": ["train", "test"], "only": ["train"], "none": ["train", "dev"]}[config]


LINE = b'{"problem": "x"}\n'


@pytest.mark.parametrize("content", [LINE, b"\n[" + LINE + b"]", b"\xef\xbb\xbfproblem\nx\n"])
def test_stdin_is_read_as_what_it_holds(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    with problem_files(["-"], fetch, print) as [path]:
        assert list(read_problems(path)) == [Problem(1, "1", "x", None)]
    with pytest.raises(InputError, match="can be read only once"), problem_files(["-", "x.csv", "-"], fetch, print):
        pass


def test_the_only_split_or_the_test_split_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", Library)  # type: ignore[arg-type]
    said: list[str] = []
    with problem_files(["hf://a/b.c:main", "hf://a/b@refs/convert/parquet:other/train", "hf://a/b:only"], fetch, said.append) as paths:
        texts = [item.problem for path in paths for item in read_problems(path) if isinstance(item, Problem)]
    assert texts == ["a/b.c main test None", "a/b other train refs/convert/parquet", "a/b only train None"]
    assert [each.partition(": ")[2] for each in said] == ["split `test`", "split `train`", "split `train`"]
    for address, what in {
        "hf://a/b:none": "has the splits train, dev; choose one: hf://a/b:none/train",
        "hf://a/b:gone": "cannot be loaded: 'gone'; or download it and give the file",
        "hf://a/b/c/d": "expected hf://OWNER/NAME",
    }.items():
        with pytest.raises(PipelineError, match=what), problem_files([address], fetch, print):
            pass


def test_a_data_set_is_an_input_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)  # type: ignore[arg-type]
    with problem_files(["arith", "file:///a/b.csv", "c.csv"], fetch, print) as paths:
        assert paths == [ARITH / "test.parquet", Path("/a/b.csv"), Path("c.csv")]
    with pytest.raises(InputError) as caught, problem_files(["gsm8k"], fetch, print):
        pass
    assert "`pipeline prepare gsm8k --from FILE` writes data/gsm8k.parquet" in str(caught.value)
    assert "\n" not in str(caught.value)
    for path in (Path("data/gsm8k.parquet"), Path("gsm8k")):  # what was prepared, then a file of that name
        path.parent.mkdir(exist_ok=True)
        path.touch()
        with problem_files(["gsm8k"], fetch, print) as paths:
            assert paths == [path]


class Streamed:
    """A table of another library, with the Arrow C stream interface alone."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.table(COLUMNS).__arrow_c_stream__(requested_schema)


TABLES = [pd.DataFrame(COLUMNS), pa.table(COLUMNS), Streamed()]
MAPPINGS = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]


@pytest.mark.parametrize("given", [*TABLES, MAPPINGS, iter(MAPPINGS)], ids=lambda each: type(each).__name__)
def test_tables_and_mappings_give_the_problems_of_their_rows(given: Any) -> None:
    found = [item for item, _ in InputReading("problems", rows_in_memory(given, None))]
    assert found == [Problem(1, "1", "1+1?", "0.5"), Problem(2, "2", "2+2?", "4")]


def test_values_of_libraries_are_plain_values() -> None:
    given = [{"problem": "x", "answer": value} for value in (np.int64(3), np.array([0.5, 2.0]), np.nan)]
    found = [item.answer for item, _ in InputReading("problems", rows_in_memory(given, None)) if isinstance(item, Problem)]
    assert found == ["3", "0.5, 2", None]


def test_texts_problems_and_requests_keep_what_they_say() -> None:
    chat = Problem(1, "a", "2+2?", None, history=(Message("user", "1+1?"), Message("assistant", "2")))
    plain = Problem(2, "b", "1+1?", "2", grader="math")
    assert [item for item, _ in InputReading("p", rows_in_memory([chat, plain], None))] == [chat, plain]
    assert [item for item, _ in InputReading("p", rows_in_memory(["x"], None))] == [Problem(1, "1", "x", None)]
    asked = Problem(1, "b", "2+2?", None, settings=ChainSettings(max_tokens=9))
    assert [item for item, _ in InputReading("p", rows_in_memory([request("b", max_tokens=9)], None))] == [asked]
    with pytest.raises(InputError, match="problems, item 1: has settings of its own"):
        list(rows_in_memory([asked], None))


def test_of_what_never_ends_the_limit_is_taken() -> None:
    def endless() -> Any:
        while True:
            yield "x"

    assert len(list(rows_in_memory(endless(), 3))) == 3
    assert len(list(rows_in_memory(["x"] * 5, 3))) == 5, "of what ends, all: a limit may grow"


@pytest.mark.parametrize("given", ["text", {"problem": "x"}, 5, None])
def test_what_holds_no_problems(given: Any) -> None:
    with pytest.raises(UsageError, match="problems: expected a path, texts, mappings or a table, got "):
        rows_in_memory(given, None)
    with pytest.raises(InputError, match="problems, item 2: expected a text or a mapping with the key `problem`, got `int`"):
        list(rows_in_memory(["x", 5], None))
