"""What is known of a model without loading it, and what is wrong with its files."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline.engines.model_card import ModelCard, flaws_in, local_folder, missing, parameters_in, read_card, shape_of
from pipeline.engines.models import resolve
from tests.support.paths import MODELS

QWEN = {"model_type": "qwen2", "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}
QWEN |= {"intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512, "dtype": "bfloat16"}
Damage = Callable[[Path], object]


def folder(path: Path, config: dict[str, Any]) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the hub that has the configuration of `some/model`."""
    snapshot = tmp_path / "models--some--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(QWEN))
    (tmp_path / "models--some--model" / "refs").mkdir()
    (tmp_path / "models--some--model" / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return snapshot


@pytest.mark.parametrize(
    ("model", "parameters", "kv_bytes", "context"),
    [
        ("Qwen/QwQ-32B", 32_763_876_352, 262_144, 40_960),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1_777_088_000, 28_672, 131_072),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", 70_553_706_496, 327_680, 131_072),
    ],
)
@pytest.mark.usefixtures("cache")
def test_the_papers_models_have_their_published_sizes(model: str, parameters: int, kv_bytes: int, context: int) -> None:
    card = read_card(model)
    assert (card.parameters, card.kv_bytes_per_token(2), card.max_model_len) == (parameters, kv_bytes, context)
    assert (card.source, card.weights_bytes("bfloat16")) == ("its config.json as published", 2 * parameters)
    assert card.shape is not None
    whole = 2 * card.shape.embeddings
    assert card.weights_bytes("bfloat16", "fp8") == round((parameters - card.shape.embeddings) * 1.01) + whole


def test_what_a_folder_holds_is_known_by_its_files_else_by_its_configuration(tmp_path: Path) -> None:
    card = read_card(resolve("target", "bundled:tiny-target"))
    assert card.source == "its files"
    assert card.parameters == pytest.approx(1_564_992, rel=0.01)
    assert (card.max_model_len, card.kv_bytes_per_token(4)) == (4096, 7 * 2 * 4 * 32 * 4)
    card = read_card(folder(tmp_path, QWEN))
    layer = 64 * 16 * (2 * 4 + 2 * 2) + (4 + 2 * 2) * 16 + 3 * 64 * 128 + 2 * 64
    assert (card.source, card.parameters) == ("its config.json", 2 * layer + 2 * 100 * 64 + 64)
    folder(tmp_path, QWEN | {"quantization_config": {"quant_method": "awq"}})
    save_file({"a": np.zeros(100, np.int32)}, tmp_path / "model.safetensors")
    card = read_card(str(tmp_path))
    assert (card.quantization, card.weights_bytes("bfloat16")) == ("awq", card.file_bytes)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("Qwen/Qwen2.5-1.5B-Instruct", 1.5e9), ("a/Mixtral-8x7B-v0.1", 56e9), ("a/small-270m", 270e6), ("a/8bits", None), ("70B/model", None)],
)
def test_a_name_tells_roughly(name: str, parameters: float | None) -> None:
    assert parameters_in(name) == parameters
    card = read_card(f"nobody/{name.rpartition('/')[2]}")
    assert card.weights_bytes("bfloat16") == (parameters and 2 * parameters)


@pytest.mark.parametrize(
    ("change", "known"),
    [
        ({"sliding_window": 4096, "use_sliding_window": False}, True),
        ({"layer_types": ["full_attention", "full_attention"]}, True),
        ({"sliding_window": 4096}, False),
        ({"layer_types": ["full_attention", "linear_attention"]}, False),
        ({"kv_lora_rank": 512}, False),
    ],
)
def test_the_cache_of_odd_attention_is_not_guessed(tmp_path: Path, change: dict[str, Any], known: bool) -> None:
    assert (read_card(folder(tmp_path, QWEN | change)).kv_bytes_per_token(2) is not None) is known


@pytest.mark.parametrize(
    "config",
    [{}, {"num_hidden_layers": "many"}, QWEN | {"hidden_size": None}, QWEN | {"num_attention_heads": 0}, QWEN | {"hidden_size": 1e400}],
)
def test_a_configuration_in_other_words_has_no_shape(config: dict[str, Any]) -> None:
    assert shape_of(config) is None


def test_a_text_model_inside_another_is_found_and_stretched_positions_are_seen(tmp_path: Path) -> None:
    card = read_card(folder(tmp_path, {"text_config": QWEN | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}}))
    assert card.shape is not None
    assert (card.shape.layers, card.max_model_len, card.stretched) == (2, 512, True)


def cut(name: str, size: int) -> Damage:
    return lambda model: os.truncate(model / name, size)


def removed(*names: str) -> Damage:
    return lambda model: [(model / name).unlink() for name in names]


def one_shard_of_two(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


@pytest.mark.parametrize(
    ("damage", "part", "said"),
    [
        (removed("model.safetensors"), "weights", "it has no weights, no *.safetensors or *.bin"),
        (cut("model.safetensors", 100_000), "weights", "its model.safetensors is damaged or cut short"),
        (one_shard_of_two, "weights", "1 of its 2 weight files are missing: model-00002-of-00002.safetensors"),
        (removed("config.json"), "config", "it has no config.json"),
        (lambda model: (model / "config.json").write_text("hidden"), "config", "its config.json holds no JSON object"),
        (removed("tokenizer.json", "tokenizer_config.json"), "tokenizer", "it has no tokenizer, no tokenizer.json"),
    ],
)
def test_files_that_are_missing_or_damaged_keep_a_model_from_being_served(tmp_path: Path, damage: Damage, part: str, said: str) -> None:
    model = Path(shutil.copytree(MODELS / "tiny-draft", tmp_path / "model"))
    assert list(flaws_in(model)) == []
    damage(model)
    [flaw] = flaws_in(model)
    assert flaw.part == part
    assert flaw.what.startswith(said)
    [finding] = missing("draft", read_card(str(model)))
    assert (finding.what, finding.fatal) == (f"{model} cannot be served: {flaw.what}", True)
    assert list(missing("draft", read_card(str(model)), {"config", "tokenizer", "weights"} - {part})) == []


@pytest.mark.parametrize(
    ("model", "offline", "fatal", "said"),
    [
        ("other/model", "", False, "the first start downloads it"),
        ("other/model", "1", True, "HF_HUB_OFFLINE forbids a download"),
        ("/no/folder", "", True, "no such directory: /no/folder"),
    ],
)
def test_a_model_that_is_not_here(monkeypatch: pytest.MonkeyPatch, model: str, offline: str, fatal: bool, said: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    [finding] = missing("draft", ModelCard(model=model, source="nothing is known"))
    assert finding.fatal is fatal
    assert said in f"{finding.what}; {finding.remedy}"


def test_what_a_cache_of_the_hub_lacks_is_downloaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (local_folder("some/model"), local_folder("some/other")) == (cache, None)
    assert list(missing("target", read_card("some/model"))) == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert [finding.fatal for finding in missing("target", read_card("some/model"))] == [True, True]
