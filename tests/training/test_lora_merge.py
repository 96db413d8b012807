"""Adapters that cannot be merged into their models; one that can: `test_lora_trainer.py`."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UsageError
from pipeline.training.lora.merge import merge
from tests.support.adapters import noise, noisy, write_adapter


@pytest.mark.torch
def test_an_adapter_that_peft_cannot_put_together(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "odd", noise(0), target_modules=["c_attn"])
    with pytest.raises(UsageError, match=r"does not fit .*tiny-target: Target modules"):
        merge(str(adapter), tmp_path / "out", "bundled:tiny-target")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["odd"], "nothing is left behind"


@pytest.mark.parametrize(
    ("config", "model", "says"),
    [
        ({}, None, "mine: does not name the model that it was trained on; name it with --model"),
        ({"base_model_name_or_path": "bundled:tiny"}, None, "mine: its base model: no bundled model is named 'tiny' (did you mean"),
        ({}, "/no/such/folder", "mine: its base model: no such directory: /no/such/folder"),
    ],
)
def test_what_cannot_be_merged(tmp_path: Path, config: dict[str, Any], model: str | None, says: str) -> None:
    adapter = write_adapter(tmp_path / "mine", noise(0), **config)
    with pytest.raises(UsageError) as caught:
        merge(str(adapter), tmp_path / "out", model)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bundled_adapters_are_known_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^bundled:tiny-target: no bundled adapter is named 'tiny-target' \("):
        merge("bundled:tiny-target", tmp_path / "out")


def test_a_folder_that_holds_something_stays_as_it_is(tmp_path: Path) -> None:
    adapter = noisy(tmp_path / "mine")
    shutil.copytree(adapter, tmp_path / "out")
    with pytest.raises(UsageError, match="out: already exists; choose another folder with -o"):
        merge(str(adapter), tmp_path / "out", "bundled:tiny-target")
