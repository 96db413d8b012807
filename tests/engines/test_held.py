"""A folder that holds no model is named for what it holds before anything is loaded, and what a card tells of one that does."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.engines.model_card import ModelCard, check_model, read_card
from pipeline.engines.placement import place
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.torch.backend import open_torch
from pipeline.engines.torch.spec import TorchSpec
from pipeline.errors import PipelineError
from tests.support.paths import MODELS

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


async def opened(model: str) -> None:
    async with open_torch({"target": TorchSpec(model=model)}):
        pass


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"config.json": b"{}", "model.safetensors": POINTER}, "only the Git LFS pointer of model.safetensors; run `git lfs pull`"),
        ({"config.json": b"{}", "tokenizer.json": POINTER}, "only the Git LFS pointer of tokenizer.json"),
        ({"small-Q4.gguf": b"GGUF"}, r"small-Q4.gguf, a GGUF file, .*: --model ROLE=http://HOST:PORT/v1#MODEL"),
        ({"adapter_config.json": b'{"base_model_name_or_path": "a/b"}'}, "a LoRA adapter of a/b and no model; .* `pipeline train merge`"),
    ],
)
async def test_a_folder_is_named_for_what_it_holds(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(PipelineError, match=rf"^--model target=...: {tmp_path} holds {said}"):
        place([Path("target")], {"target": str(tmp_path)})
    with pytest.raises(PipelineError, match=said):
        await opened(str(tmp_path))


def test_a_gguf_file_is_named_too() -> None:
    with pytest.raises(PipelineError, match=r"--model target=...: \./x\.gguf is a GGUF file; let a server load it"):
        place([Path("target")], {"target": "./x.gguf"})


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ({"num_hidden_layers": 1}, "its weights have 2 layers, its config.json says 1; copy or download it again"),
        ({}, "its model.safetensors is damaged or cut short"),
    ],
)
def test_weights_that_are_not_those_of_the_configuration_are_refused(tmp_path: Path, spoil: dict[str, Any], said: str) -> None:
    folder = Path(shutil.copytree(MODELS / "tiny-draft", tmp_path / "model"))
    check_model("here", str(folder))
    weights, config = folder / "model.safetensors", folder / "config.json"
    if spoil:
        config.write_text(json.dumps(json.loads(config.read_bytes()) | spoil))
    else:
        weights.write_bytes(weights.read_bytes()[:-64])
    with pytest.raises(PipelineError, match=f"^here: {folder} cannot be loaded: {said}"):
        check_model("here", str(folder))


def test_a_card_tells_what_weights_and_a_token_take(tmp_path: Path) -> None:
    found = read_card(str(MODELS / "tiny-target"))
    assert found.weights_bytes == (MODELS / "tiny-target/model.safetensors").stat().st_size
    config = json.loads((MODELS / "tiny-target/config.json").read_bytes())
    assert (found.layers, found.heads) == (config["num_hidden_layers"], config["num_attention_heads"])
    assert found.kv_values == 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    for odd in ({"kv_lora_rank": 512}, {"layer_types": ["sliding_attention", "full_attention"]}):
        (tmp_path / "config.json").write_text(json.dumps(config | odd))
        assert read_card(str(tmp_path)).kv_values is None
    packed = ModelCard(weights_bytes=2000, dtype="bfloat16")
    assert [packed.weights_as(each) for each in (None, "fp8", "awq")] == [2000, 1000, 500]


def test_a_template_may_be_that_of_a_processor(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(MODELS / "tiny-draft", tmp_path / "model"))
    config: dict[str, Any] = json.loads((folder / "tokenizer_config.json").read_text())
    whole = HFTokenizer(str(folder)).render([{"role": "user", "content": "1?"}])
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": config.pop("chat_template")}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert HFTokenizer(str(folder)).render([{"role": "user", "content": "1?"}]) == whole
