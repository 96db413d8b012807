"""The folder of a training: who may use it, what makes it another training, which checkpoint counts."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.engines.adapters import adapter_findings, read_adapter
from pipeline.engines.model_card import read_card
from pipeline.engines.models import resolve
from pipeline.errors import InputError, UsageError
from pipeline.training.lora.config import SelectConfig
from pipeline.training.lora.data import FileCounts
from pipeline.training.lora.output import (
    Record,
    begin,
    discard,
    held,
    is_finished,
    is_last,
    last_checkpoint,
    mark_whole,
    publish_adapter,
    read_record,
    weights_sha256,
)
from tests.support.adapters import noisy

CONFIG = SelectConfig(model="bundled:tiny-target", data=("a.jsonl",), output="out")


def record(**values: Any) -> Record:
    file = FileCounts(name="a.jsonl", form="choices", sha256="a" * 64, train=5, validation=1)
    said: dict[str, Any] = {"task": "select", "model": "bundled:tiny-target", "weights_sha256": "b" * 64, "files": (file,), "processes": 1}
    return Record(**{**said, "versions": {"python": "3"}, "commands": ("one",), **values})


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="already exists; choose another directory with --output"), held(tmp_path, resume=False):
        pass
    with pytest.raises(UsageError, match="already exists"), held(tmp_path, resume=True):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_training_is_gone_on_with_only_when_that_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with held(folder, resume=False):
        begin(folder, CONFIG, record())
    with pytest.raises(UsageError, match="already holds a training; add --resume to continue it"), held(folder, resume=False):
        pass
    with held(folder, resume=True):
        assert begin(folder, CONFIG, record(commands=("two",))).commands == ("one", "two")
    assert read_record(folder).commands == ("one", "two")


def test_a_folder_that_was_made_for_nothing_is_removed(tmp_path: Path) -> None:
    with held(tmp_path / "deep/out", resume=True):
        pass
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("config", "values", "says"),
    [
        ({"seed": 3}, {}, "is no longer the same training: seed was 0 and is 3; undo that, or start in another folder"),
        ({}, {"weights_sha256": "c" * 64}, "the weights of bundled:tiny-target have changed"),
        ({}, {"processes": 2}, "it had 1 processes and now has 2"),
        ({}, {"files": (msgspec.structs.replace(record().files[0], sha256="d" * 64),)}, "the file a.jsonl has changed"),
        ({}, {"task": "draft"}, "was begun by `pipeline train select`; only that can continue it"),
    ],
)
def test_another_training_cannot_go_on_with_it(tmp_path: Path, config: dict[str, Any], values: dict[str, Any], says: str) -> None:
    begin(tmp_path, CONFIG, record())
    with pytest.raises(UsageError) as caught:
        begin(tmp_path, msgspec.structs.replace(CONFIG, **config), record(**values))
    assert says in str(caught.value)


def test_another_folder_is_no_change(tmp_path: Path) -> None:
    begin(tmp_path, CONFIG, record())
    again = begin(tmp_path, msgspec.structs.replace(CONFIG, output="moved"), record(weights_sha256=None))
    assert again.commands == record().commands * 2


def checkpoint(folder: Path, step: int, *, whole: bool = True, of: int = 9) -> Path:
    path = folder / f"checkpoints/checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step, "max_steps": of}))
    if whole:
        mark_whole(folder / "checkpoints", step)
    return path


def test_the_newest_whole_checkpoint_counts(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path) == (None, 0)
    paths = [checkpoint(tmp_path, step, whole=step != 10) for step in (2, 9, 10)]
    (tmp_path / "checkpoints/checkpoint-mine").mkdir()
    assert last_checkpoint(tmp_path) == (paths[1], 9)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["checkpoint-2", "checkpoint-9", "checkpoint-mine"]
    assert (is_last(paths[0]), is_last(paths[1])) == (False, True)


def test_the_adapter_of_a_checkpoint_is_one_that_engines_take(tmp_path: Path) -> None:
    noisy(checkpoint(tmp_path, 9))
    assert not is_finished(tmp_path)
    publish_adapter(tmp_path, tmp_path / "checkpoints/checkpoint-9", "bundled:tiny-target")
    assert is_finished(tmp_path)
    adapter, card = read_adapter(str(tmp_path)), read_card(resolve("target", "bundled:tiny-target"))
    assert (adapter.flaw, adapter.base_model) == (None, "bundled:tiny-target")
    assert [*adapter_findings("target", {"mine": adapter}, card)] == []


def test_weights_are_hashed_as_sha256sum_does(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    # printf weights > model.safetensors; sha256sum model.safetensors | sha256sum
    assert weights_sha256(tmp_path) == "484414e84ab50b4ddd5b790a5d507ae7306b2030b0b74eaf2cb472b0f1c55676"


def test_what_was_begun_for_nothing_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with held(folder, resume=False):
        begin(folder, CONFIG, record())
        for name in ("log.jsonl", "report.html"):
            (folder / name).write_text("")
        discard(folder)
    assert not folder.exists()


def test_a_record_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "training.json").write_text("{}")
    with pytest.raises(InputError, match=r"training.json"):
        read_record(tmp_path)
