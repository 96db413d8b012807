"""What is known of a model without loading it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline.engines.model_card import ModelCard, local_folder, missing, parameters_in, quantized_bytes, read_card, shape_of
from pipeline.engines.models import resolve

QWEN = {"model_type": "qwen2", "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}
QWEN |= {"intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512, "dtype": "bfloat16"}


def folder(path: Path, config: dict[str, Any], **files: bytes) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (path / name.replace("__", ".")).write_bytes(content)
    return str(path)


@pytest.mark.parametrize(
    ("model", "parameters", "kv_bytes", "context"),
    [
        ("Qwen/QwQ-32B", 32_763_876_352, 262_144, 40_960),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1_777_088_000, 28_672, 131_072),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 7_615_616_512, 57_344, 131_072),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", 14_770_033_664, 196_608, 131_072),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", 70_553_706_496, 327_680, 131_072),
        ("Skywork/Skywork-OR1-32B", 32_763_876_352, 262_144, 131_072),
        ("Zyphra/ZR1-1.5B", 1_777_088_000, 28_672, 131_072),
    ],
)
def test_the_papers_models_have_their_published_sizes(
    model: str, parameters: int, kv_bytes: int, context: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    card = read_card(model)
    assert (card.parameters, card.kv_bytes_per_token(2), card.max_model_len) == (parameters, kv_bytes, context)
    assert (card.source, card.rough, card.weights_bytes("bfloat16")) == ("its config.json as published", False, 2 * parameters)


def test_files_say_more_than_the_configuration(tmp_path: Path) -> None:
    model = folder(tmp_path, QWEN)
    save_file({"a": np.zeros((10, 3), np.float32), "b": np.zeros(5, np.float32)}, tmp_path / "model.safetensors")
    card = read_card(model)
    assert (card.source, card.parameters, card.weights_bytes("bfloat16"), card.weights_bytes("float32")) == ("its files", 35, 70, 140)
    assert card.folder == model


def test_a_bundled_model_is_known_to_the_byte() -> None:
    card = read_card(resolve("target", "bundled:tiny-target"))
    assert (card.parameters, card.weights_bytes("float32"), card.max_model_len) == (1_564_992, 6_259_968, 4096)
    assert (card.architecture, card.kv_bytes_per_token(4)) == ("Qwen3ForCausalLM", 7 * 2 * 4 * 32 * 4)


def test_a_folder_without_weights_is_estimated_from_its_configuration(tmp_path: Path) -> None:
    card = read_card(folder(tmp_path, QWEN))
    layer = 64 * 16 * (2 * 4 + 2 * 2) + (4 + 2 * 2) * 16 + 3 * 64 * 128 + 2 * 64
    assert (card.source, card.parameters) == ("its config.json", 2 * layer + 2 * 100 * 64 + 64)


def test_missing_shards_are_counted_by_the_index(tmp_path: Path) -> None:
    index = {"metadata": {"total_size": 1000}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    model = folder(tmp_path, QWEN)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({"a": np.zeros(5, np.float32)}, tmp_path / "model-1.safetensors")
    assert (read_card(model).file_bytes, read_card(model).parameters) == (1000, 500)


def test_pickled_weights_count_by_their_size(tmp_path: Path) -> None:
    card = read_card(folder(tmp_path, QWEN, pytorch_model__bin=bytes(600)))
    assert (card.source, card.file_bytes, card.parameters) == ("its files", 600, 300)


def test_a_model_saved_quantized_is_as_large_as_its_files(tmp_path: Path) -> None:
    model = folder(tmp_path, QWEN | {"quantization_config": {"quant_method": "awq"}})
    save_file({"a": np.zeros(100, np.int32)}, tmp_path / "model.safetensors")
    card = read_card(model)
    assert card.quantization == "awq"
    assert card.weights_bytes("bfloat16") == card.file_bytes


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        (None, None),
        ("fp8", 1.01),
        ("fbgemm_fp8", 1.01),
        ("experts_int8", 1.01),
        ("awq_marlin", 0.54),
        ("gptq", 0.54),
        ("nvfp4", 0.57),
        ("own", None),
    ],
)
def test_quantization_is_an_estimate_by_name(quantization: str | None, expected: float | None) -> None:
    assert quantized_bytes(quantization) == expected


def test_quantized_weights_keep_their_embeddings() -> None:
    card = read_card("Qwen/QwQ-32B")
    assert card.shape is not None
    embeddings = card.shape.embeddings
    assert card.weights_bytes("bfloat16", "fp8") == round((32_763_876_352 - embeddings) * 1.01) + 2 * embeddings


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen/QwQ-32B", 32e9),
        ("Qwen/Qwen2.5-1.5B-Instruct", 1.5e9),
        ("mistralai/Mixtral-8x7B-v0.1", 56e9),
        ("Qwen/Qwen3-30B-A3B", 30e9),
        ("someone/small-270m", 270e6),
        ("openai/gpt-2", None),
        ("someone/8bits", None),
        ("70B/model", None),
    ],
)
def test_a_name_tells_roughly(name: str, parameters: float | None) -> None:
    assert parameters_in(name) == parameters


def test_an_unknown_model_is_rough_or_nothing() -> None:
    card = read_card("nobody/model-7B")
    assert (card.rough, card.source, card.weights_bytes("bfloat16"), card.kv_bytes_per_token(2)) == (True, "its name", 14_000_000_000, None)
    assert read_card("nobody/model").weights_bytes("bfloat16") is None


@pytest.mark.parametrize(
    ("change", "known"),
    [
        ({}, True),
        ({"sliding_window": 4096, "use_sliding_window": False}, True),
        ({"layer_types": ["full_attention", "full_attention"]}, True),
        ({"sliding_window": 4096}, False),
        ({"layer_types": ["full_attention", "linear_attention"]}, False),
        ({"kv_lora_rank": 512}, False),
        ({"num_kv_shared_layers": 10}, False),
    ],
)
def test_the_cache_of_odd_attention_is_not_guessed(tmp_path: Path, change: dict[str, Any], known: bool) -> None:
    assert (read_card(folder(tmp_path, QWEN | change)).kv_bytes_per_token(2) is not None) is known


def test_key_value_heads_are_copied_where_they_are_fewer_than_the_gpus() -> None:
    card = read_card("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")
    assert [card.kv_bytes_per_token(2, ranks) for ranks in (1, 2, 4)] == [28_672, 14_336, 14_336]


@pytest.mark.parametrize(
    "config", [{}, {"num_hidden_layers": "many"}, QWEN | {"hidden_size": None}, QWEN | {"num_attention_heads": 0}, {"text_config": 3}]
)
def test_a_configuration_in_other_words_has_no_shape(config: dict[str, Any]) -> None:
    assert shape_of(config) is None


def test_a_text_model_inside_another_is_found(tmp_path: Path) -> None:
    card = read_card(folder(tmp_path, {"text_config": QWEN, "architectures": ["Both"]}))
    assert card.shape is not None
    assert (card.shape.layers, card.max_model_len, card.architecture) == (2, 512, "Both")


def test_stretched_positions_are_seen(tmp_path: Path) -> None:
    assert read_card(folder(tmp_path, QWEN | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})).stretched
    assert not read_card(folder(tmp_path, QWEN | {"rope_parameters": {"rope_type": "default"}})).stretched


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe"])
def test_a_broken_configuration_is_no_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    assert read_card(str(tmp_path)).shape is None


def test_the_hub_cache_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "models--some--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(QWEN))
    (tmp_path / "models--some--model" / "refs").mkdir()
    (tmp_path / "models--some--model" / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert local_folder("some/model") == snapshot
    assert local_folder("some/other") is None


@pytest.mark.parametrize(
    ("model", "offline", "fatal", "said"),
    [
        ("some/model", "", False, "the first start downloads it"),
        ("some/model", "1", True, "HF_HUB_OFFLINE forbids a download"),
        ("/no/folder", "", True, "no such directory: /no/folder"),
        ("./no/folder", "", True, "no such directory: ./no/folder"),
    ],
)
def test_a_model_that_is_not_here(monkeypatch: pytest.MonkeyPatch, model: str, offline: str, fatal: bool, said: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    [finding] = missing("draft", ModelCard(model=model, source="nothing is known"))
    assert finding.fatal is fatal
    assert said in f"{finding.what}; {finding.remedy}"
