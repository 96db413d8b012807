"""Training files: strict, with the papers' values as defaults."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.errors import GraphError
from pipeline.graph.files import bundled_files
from pipeline.training.config import CONFIGS, DraftConfig, LoraSpec, SelectConfig, TrainConfig, load_config
from tests.support.paths import ROOT
from tests.support.training_data import write_config

sys.path.insert(0, str(ROOT / "tools"))

from schemas import field_docs

LEAST: dict[str, Any] = {"model": "bundled:tiny-target", "data": ["choices.jsonl"], "output": "out"}


def loaded(folder: Path, *settings: str, to: type[TrainConfig] = SelectConfig, **values: Any) -> TrainConfig:
    return load_config(write_config(folder / "train.yaml", **values), to, settings=settings)


def test_defaults_are_those_of_the_paper_and_its_code(tmp_path: Path) -> None:
    for to, rate in ((SelectConfig, 1e-4), (DraftConfig, 5e-5)):
        config = loaded(tmp_path, to=to, **LEAST)
        assert (config.learning_rate, config.epochs, config.batch_size, config.max_length) == (rate, 5, 4, None)
        assert (config.lora.rank, config.lora.alpha, config.lora.dropout, config.lora.targets) == (8, 32, 0.1, ("q_proj", "v_proj"))
        assert (config.gradient_accumulation, config.gradient_checkpointing) == (1, False)


@pytest.mark.parametrize("name", bundled_files("training file"))
def test_bundled_files_are_found_by_name(name: str) -> None:
    task = "draft" if name.endswith("draft") else "select"
    assert load_config(name, CONFIGS[task]).output is not None


def test_settings_go_before_the_file(tmp_path: Path) -> None:
    config = loaded(tmp_path, "lora.rank=16", "data=[a, b]", "max_length=null", **LEAST, max_length=5)
    assert (config.lora.rank, config.lora.alpha, config.data, config.max_length) == (16, 32, ("a", "b"), None)
    assert load_config(tmp_path / "train.yaml", SelectConfig, output=Path("elsewhere")).output == "elsewhere"


@pytest.mark.parametrize(
    ("values", "settings", "says"),
    [
        ({"learning_rat": 1}, (), "train.yaml, line 1: $: unknown key `learning_rat`; did you mean `learning_rate`?"),
        ({"lora": {"dropout": 1.0}}, (), "$.lora.dropout: expected `float` < 1.0, got 1.0"),
        ({"output": None}, (), "has no `output`; name the folder of the adapter there, or with --output"),
        ({}, ("lora.rank",), "--set lora.rank: expected NAME=VALUE"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, values: dict[str, Any], settings: tuple[str, ...], says: str) -> None:
    with pytest.raises(GraphError) as caught:
        loaded(tmp_path, *settings, **({**LEAST, "seed": 1} | values))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("struct", [SelectConfig, DraftConfig, LoraSpec])
def test_every_field_is_explained(struct: type[msgspec.Struct]) -> None:
    assert [name for name, said in field_docs(struct).items() if not said] == []
