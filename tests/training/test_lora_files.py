"""Files of training data: told by their columns, one sentence about what is wrong."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import InputError
from pipeline.training.examples import SelectionRow, SftRow, SftTokensRow
from pipeline.training.lora.config import Task
from pipeline.training.lora.files import RowsFile, problem_of, read_files, text_of
from pipeline.training.lora.published import Choice, Thought
from pipeline.training.split import problem_hash
from tests.support.training_data import (
    arith,
    messages_row,
    published_choices,
    published_thoughts,
    selection_row,
    tokens_row,
    write_lines,
)


def read(task: Task, path: Path) -> RowsFile:
    [file] = read_files(task, [(path.name, path)])
    return file


def test_each_form_is_told_by_its_columns(tmp_path: Path) -> None:
    files: list[tuple[Task, Path, type]] = [
        ("draft", published_thoughts(tmp_path / "a.jsonl", 3), Thought),
        ("select", published_choices(tmp_path / "b.jsonl", 3), Choice),
        ("select", write_lines(tmp_path / "c.jsonl", [selection_row()] * 3), SelectionRow),
        ("draft", write_lines(tmp_path / "d.jsonl", [tokens_row()] * 3), SftTokensRow),
        ("draft", write_lines(tmp_path / "e.jsonl", [messages_row("Q?", "<think>\nA</think>")] * 3), SftRow),
    ]
    for task, path, kind in files:
        file = read(task, path)
        assert [(number, type(row)) for number, row in file.rows] == [(1, kind), (2, kind), (3, kind)]
        assert len(file.sha256) == 64
    assert read("select", tmp_path / "c.jsonl").runs == ["run r1 of scot, bundled:tiny-target"]
    assert read("draft", tmp_path / "a.jsonl").runs == []


@pytest.mark.parametrize(
    ("task", "row", "says"),
    [
        (
            "draft",
            selection_row(),
            "holds choices among options, which `train select` learns from; `train draft` learns what a target",
        ),
        (
            "select",
            tokens_row(),
            "holds replies as token ids, which `train draft` learns from; `train select` learns choices among",
        ),
        ("select", messages_row("Q?", "A"), "holds replies as messages, which `train draft` learns from"),
        ("draft", {"input": "x", "label": [1]}, "holds SCoT's published choices, which `train select` learns from"),
        ("draft", {"prompt": "a", "chosen": "b", "rejected": "c"}, "holds preferences, which `pipeline train` does not learn from"),
        ("draft", {"problem": "Q?", "answer": "5"}, "its columns, `problem`, `answer`, are not those of training data"),
    ],
)
def test_a_file_for_something_else(tmp_path: Path, task: Task, row: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as caught:
        read(task, write_lines(tmp_path / "data.jsonl", [row]))
    assert str(caught.value).startswith("data.jsonl")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("task", "row", "says"),
    [
        ("select", selection_row(right=[]), "`right` is empty; expected the indices of all right options, at least one"),
        ("select", selection_row(right=[2]), "`right` has 2; expected indices from 0 to 1"),
        ("select", selection_row(right=[1, 1]), "`right` is [1, 1], which has an index twice"),
        ("select", selection_row(none=2), "`none` is 2; expected an index from 0 to 1, or null"),
        ("select", selection_row(option_ids=[7]), "has 2 `options` and 1 different `option_ids`"),
        ("select", selection_row(input_ids=[]), "`input_ids` is empty"),
        ("select", selection_row(split="test"), "`split` is 'test', expected train or validation"),
        ("select", selection_row(right="1"), "expected `array`, got `str` - at `$.right`"),
        ("draft", tokens_row(labels=[-100, 6]), "`labels` has 2 values, and `input_ids` 3"),
        ("draft", tokens_row(labels=[5, 6, -100]), "`labels` must be -100 for the prompt, which comes first"),
        ("draft", tokens_row(labels=[-100, -100, -100]), "`labels` must be -100 for the prompt"),
        (
            "draft",
            tokens_row(labels=[-100, 6, 8]),
            "`labels` must be -100 for the prompt, which comes first, and the ids of the completion",
        ),
        ("draft", messages_row("Q?", " "), "`completion` must be one message of the assistant that is not empty"),
        ("draft", messages_row("Q?", "A", prompt=[{"role": "assistant", "content": "A"}]), "the roles of `prompt` are assistant; expected"),
        ("draft", {"pred": "nothing"}, "`pred` is not"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, task: Task, row: dict[str, Any], says: str) -> None:
    good = {"select": selection_row(), "draft": tokens_row()}[task]
    rows = [row] if "pred" in row or "completion" in row else [good, row]
    with pytest.raises(InputError) as caught:
        read(task, write_lines(tmp_path / "data.jsonl", rows))
    assert str(caught.value).startswith(f"data.jsonl, row {len(rows)}: ")
    assert says.lower() in str(caught.value).lower()


def test_an_empty_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data.jsonl: holds no rows"):
        read("draft", write_lines(tmp_path / "data.jsonl", []))


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read("draft", tmp_path / "none.jsonl")


def test_where_a_problem_is_read(tmp_path: Path) -> None:
    def decode(ids: Any) -> str:
        return " ".join(map(str, ids))

    [(_, row)] = read("draft", write_lines(tmp_path / "d.jsonl", [tokens_row()])).rows
    assert text_of(row, decode) == "5"
    [(_, row)] = read("draft", write_lines(tmp_path / "e.jsonl", [messages_row("Q?", "A")])).rows
    assert text_of(row, decode) == "Q?"


def test_what_rows_of_one_problem_have_in_common(tmp_path: Path) -> None:
    rows = [
        tokens_row(problem_hash=f"{number:016x}", problem_id=name, input_sha256=name) for number, name in ((1, "a"), (1, "b"), (2, "a"))
    ]
    one, same, other = [problem_of(row) for _, row in read("draft", write_lines(tmp_path / "a.jsonl", rows)).rows]
    assert one == same != other
    [(_, earlier)] = read("draft", write_lines(tmp_path / "b.jsonl", [tokens_row()])).rows
    assert problem_of(earlier) == f"p of {'0' * 64}"
    [(_, published)] = read("draft", published_thoughts(tmp_path / "c.jsonl", 1)).rows
    assert problem_of(published) == problem_hash(arith(1)[0][0].upper())
