"""Training files: strict, with the papers' values as defaults."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import GraphError
from pipeline.graph.files import bundled_files
from pipeline.training.config import CONFIGS, DraftConfig, SelectConfig, TrainConfig, load_config
from tests.support.training_data import write_config

LEAST: dict[str, Any] = {"model": "bundled:tiny-target", "data": ["choices.jsonl"], "output": "out"}


def loaded(folder: Path, *settings: str, to: type[TrainConfig] = SelectConfig, output: Path | None = None, **values: Any) -> TrainConfig:
    return load_config(write_config(folder / "train.yaml", **{**LEAST, **values}), to, settings, output)


def test_defaults_are_those_of_the_paper_and_its_code(tmp_path: Path) -> None:
    for to, rate in ((SelectConfig, 1e-4), (DraftConfig, 5e-5)):
        config = loaded(tmp_path, to=to)
        assert (config.learning_rate, config.epochs, config.batch_size, config.gradient_accumulation) == (rate, 5, 4, 1)
        assert (config.lora.rank, config.lora.alpha, config.lora.dropout, config.lora.targets) == (8, 32, 0.1, ("q_proj", "v_proj"))


@pytest.mark.parametrize("name", bundled_files("training file"))
def test_bundled_files_are_found_by_name(name: str) -> None:
    assert load_config(name, CONFIGS["draft" if name.endswith("draft") else "select"]).output is not None


def test_settings_go_before_the_file(tmp_path: Path) -> None:
    config = loaded(tmp_path, "lora.rank=16", "data=[a, b]", "max_length=null", max_length=5, output=Path("elsewhere"))
    assert (config.lora.rank, config.lora.alpha, config.data, config.max_length) == (16, 32, ("a", "b"), None)
    assert config.output == "elsewhere"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"learning_rat": 1}, "train.yaml, line 1: $: unknown key `learning_rat`; did you mean `learning_rate`?"),
        (["lora.dropout=1.0"], "--set lora.dropout=1.0: expected `float` < 1.0, got 1.0"),
        (["output=null"], "has no `output`; name the folder of the adapter there, or with --output"),
    ],
)
def test_what_is_wrong_in_a_file_or_a_setting_is_one_sentence(tmp_path: Path, wrong: dict[str, Any] | list[str], says: str) -> None:
    with pytest.raises(GraphError) as caught:
        loaded(tmp_path, **wrong) if isinstance(wrong, dict) else loaded(tmp_path, *wrong)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
