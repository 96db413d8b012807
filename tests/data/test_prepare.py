"""Every published data set becomes the problems that are known of it, or a sentence says why not."""

import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.data.prepare import RECIPES, prepare
from pipeline.data.problems import Problem
from pipeline.data.reading import read_problems
from pipeline.errors import UsageError

PUBLISHED = [name for name in RECIPES if name not in ("arith", "gpqa_diamond", "math-scot")]
"""Data sets whose rows as published are in the shared folder."""


def wrong(name: str, origin: Path | str | None, output: Path) -> str:
    """The sentence that refuses it; nothing is written."""
    with pytest.raises(UsageError) as caught:
        prepare(name, None if origin is None else str(origin), output)
    assert not output.exists()
    return str(caught.value)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_set_has_the_rows_and_the_digest_that_are_known(shared: Path, tmp_path: Path, name: str) -> None:
    recipe, output = RECIPES[name], tmp_path / f"{name}.parquet"
    found = prepare(name, str(shared / "data" / f"{name}.jsonl"), output)
    assert (found.rows, found.digest, found.mismatch) == (recipe.rows, recipe.digest, None)
    rows = pq.read_table(output).to_pylist()
    assert tuple(rows[0])[:5] == ("problem_id", "problem", "answer", "options", "grader")
    assert all(row["problem"] == row["problem"].strip() and row["answer"] == row["answer"].strip() != "" for row in rows)
    assert all(row["problem_id"].startswith(f"{name}-") for row in rows)
    assert [(item.problem, item.answer) for item in read_problems(output) if isinstance(item, Problem)] == [
        (row["problem"], row["answer"]) for row in rows
    ]
    assert pq.read_schema(output).metadata[b"license"].decode() == recipe.license


def test_gpqa_has_its_right_option_anywhere(tmp_path: Path) -> None:
    rows = [
        {
            "Record ID": f"rec{number}", "Question": f" Which of {number}?", "Correct Answer": f"right {number} ",
            **{f"Incorrect Answer {place}": f"wrong {number}.{place}" for place in (1, 2, 3)},
        }
        for number in range(198)
    ]  # fmt: skip
    (tmp_path / "gpqa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert prepare("gpqa_diamond", str(tmp_path / "gpqa.jsonl"), tmp_path / "out.parquet").mismatch is None
    made = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert all(row["options"]["ABCD".index(row["answer"])] == f"right {number}" for number, row in enumerate(made))
    assert {row["answer"] for row in made} == set("ABCD")
    assert (made[0]["problem_id"], made[0]["grader"]) == ("gpqa_diamond-rec0", "letter")


def test_other_rows_than_the_known_ones_are_said(tmp_path: Path) -> None:
    path, output = tmp_path / "p.jsonl", tmp_path / "out.parquet"
    path.write_text('{"question": "1+1?", "answer": "#### 2", "level": [3]}\n')
    found = prepare("gsm8k", str(path), output)
    assert found.mismatch is not None
    assert found.mismatch.startswith(f"{path}: 1 rows with the digest {found.digest}, expected 1,319 rows with the digest 39bd")
    row = {"problem_id": "gsm8k-1", "problem": "1+1?", "answer": "2", "options": [], "grader": "numeric", "level": "[3]"}
    assert pq.read_table(output).to_pylist() == [row], "and all published columns are kept, as text"


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("gsm8k", '{"question": "1+1?", "answer": "2"}\n{"question": "", "answer": "1"}\n', "row 2: has no `question`"),
        ("gsm8k", '{"question": "1+1?", "answer": ""}\n', "row 1: has no answer"),
        ("math500", '{"question": "1+1?"}\n', "is not math500 as published: 'problem'"),
        ("gsm8k", "nonsense\n", "row 1: is not JSON"),
    ],
)
def test_a_wrong_row_is_named_and_nothing_is_written(tmp_path: Path, name: str, content: str, what: str) -> None:
    (tmp_path / "p.jsonl").write_text(content)
    assert what in wrong(name, tmp_path / "p.jsonl", tmp_path / "out.parquet")


def test_what_cannot_be_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "out.parquet"
    assert "no data set is named `gsm9k`; did you mean `gsm8k`?" in wrong("gsm9k", None, output)
    assert "gsm8k: give the published file, --from PATH, or --from hub to download openai/gsm8k" in wrong("gsm8k", None, output)
    assert "math-scot: give the published file, --from PATH, as it is on no hub" in wrong("math-scot", "hub", output)
    assert "expected the name of a file that ends in .parquet" in wrong("arith", None, tmp_path / "out.csv")
    assert "no such file" in wrong("gsm8k", tmp_path / "none.jsonl", output)
    monkeypatch.setitem(sys.modules, "datasets", None)  # type: ignore[arg-type]
    assert "datasets" in wrong("gsm8k", "hub", output)


def test_a_set_of_the_hub_is_filtered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        __spec__ = ModuleSpec("datasets", None, origin="here")

        @staticmethod
        def load_dataset(name: str, config: str, split: str, revision: str | None) -> list[dict[str, Any]]:
            assert (name, config, split) == ("Hothan/OlympiadBench", "OE_TO_maths_en_COMP", "train")
            return [{"question": "1+1?", "final_answer": ["2"], "id": 1, "language": language} for language in ("English", "Chinese")]

        @staticmethod
        def get_dataset_split_names(name: str, config: str, revision: str | None) -> list[str]:
            raise AssertionError

    monkeypatch.setitem(sys.modules, "datasets", Library)  # type: ignore[arg-type]
    found = prepare("olympiadbench", "hub", tmp_path / "out.parquet")
    assert str(found.mismatch).startswith("hf://Hothan/OlympiadBench:OE_TO_maths_en_COMP/train: 1 rows with the digest ")
