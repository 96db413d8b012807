"""What is wrong with a training is said before a model is loaded."""

import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import GraphError, InputError, MissingExtra, UsageError
from pipeline.training.lora.config import SelectConfig
from pipeline.training.lora.train import TrainRequest, base_name, process_number, train
from tests.support.training_data import arith, published_choices, published_thoughts, selection_row, write_lines


def asked(folder: Path, data: Path | None = None, test_set: Path | None = None, **values: Any) -> TrainRequest:
    path = data or published_choices(folder / "choices.jsonl", 6)
    said = {"model": "bundled:tiny-target", "data": (path.name,), "output": str(folder / "out"), "prompts": "default"}
    config = SelectConfig(**{**said, **values})
    test_sets = {} if test_set is None else {test_set.name: [test_set]}
    return TrainRequest(task="select", config=config, files=[(path.name, path)], test_sets=test_sets, command="pipeline train")


def refused(folder: Path, request: TrainRequest) -> UsageError:
    """The error of a training, which loads nothing and leaves nothing behind."""
    with pytest.raises(UsageError) as caught:
        train(request, lambda line: None)
    assert not (folder / "out").exists()
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"model": "bundled:tiny-tarket"},
            "model: bundled:tiny-tarket: no bundled model is named 'tiny-tarket' (did you mean `tiny-target`?)",
        ),
        ({"model": "/no/folder"}, "model: /no/folder: no such directory: /no/folder; name a folder with the model's files"),
        ({"max_length": 5000}, "max_length: is 5,000, and bundled:tiny-target was made for 4,096 tokens"),
        ({"prompts": "defualt"}, "no prompts file is named `defualt` and there is no such file; did you mean `default`?"),
    ],
)
def test_a_config_that_does_not_fit(tmp_path: Path, values: dict[str, Any], says: str) -> None:
    error = refused(tmp_path, asked(tmp_path, **values))
    assert isinstance(error, GraphError | UsageError)
    assert says in str(error)


def test_data_for_the_other_training(tmp_path: Path) -> None:
    error = refused(tmp_path, asked(tmp_path, published_thoughts(tmp_path / "thoughts.jsonl", 3)))
    assert isinstance(error, InputError)
    assert "holds SCoT's published thoughts, which `train draft` learns from" in str(error)


def test_data_about_a_test_set(tmp_path: Path) -> None:
    test_set = write_lines(tmp_path / "test.jsonl", [{"problem": arith(2)[1][0]}])
    error = refused(tmp_path, asked(tmp_path, test_set=test_set))
    assert "choices.jsonl: 1 of its 6 problems are in a test set, the first in row 2" in str(error)


def test_data_of_another_tokenizer(tmp_path: Path) -> None:
    error = refused(tmp_path, asked(tmp_path, write_lines(tmp_path / "data.jsonl", [selection_row(input_ids=[999])])))
    assert "data.jsonl, row 1: has the token id 999, and bundled:tiny-target has 560 tokens" in str(error)


@pytest.mark.parametrize("package", ["trl", "datasets"])
def test_a_missing_package_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # which is how Python says that there is none
    error = refused(tmp_path, asked(tmp_path))
    assert isinstance(error, MissingExtra)
    what = f"pipeline train needs the package `{package}`, which is not installed"
    assert str(error) == f'{what}: pip install "speculative-pipeline[train]"'


def test_the_place_among_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert process_number() == 0
    monkeypatch.setenv("RANK", "3")
    assert process_number() == 3


def test_what_an_adapter_calls_its_model(tmp_path: Path) -> None:
    assert base_name("Qwen/QwQ-32B", "Qwen/QwQ-32B") == "Qwen/QwQ-32B"
    assert base_name("bundled:tiny-target", str(tmp_path)) == "bundled:tiny-target"
    assert base_name(str(tmp_path), str(tmp_path)) == str(tmp_path)
