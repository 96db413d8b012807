"""Tensors of a checkpoint against those of its model: what is refused, and what must go on working. Everything is small."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.engines.process.wire import Setup
from pipeline.engines.process.worker import CannotLoad
from pipeline.engines.torch.spec import TorchSpec
from tests.support.checkpoints import rewrite
from tests.support.paths import MODELS

pytestmark = pytest.mark.torch
Change = Callable[[str, Any], Any]
SIZE = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZE |= {"vocab_size": 560, "max_position_embeddings": 256, "head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


def without(*words: str) -> Change:
    return lambda name, tensor: None if any(word in name for word in words) else tensor


def saved(folder: Path, name: str, **options: Any) -> Path:
    """A random model of the class `name` of transformers, saved with the bundled tokenizer."""
    import transformers

    kind = getattr(transformers, name)
    kind(kind.config_class(**SIZE | options)).save_pretrained(folder)
    for path in (MODELS / "tiny-draft").glob("tokenizer*"):
        shutil.copy(path, folder)
    return folder


def flaw(folder: Path, *, own_class: bool = True) -> str | None:
    from pipeline.engines.torch.tensors import flaw_in_tensors

    return flaw_in_tensors(str(folder), own_class=own_class)


def loaded(folder: Path) -> None:
    from pipeline.engines.torch.model import load_model

    load_model(Setup.of("target", TorchSpec(model=str(folder)), str(folder)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("k_proj"), r"2 of the model's tensors are not in its files: model\.layers\.0\.self_attn\.k_proj\.weight, "),
        (without("embed_tokens"), "2 of the model's tensors are not in its files: lm_head.weight, model.embed_tokens.weight"),
        (lambda name, tensor: tensor[:3] if name == "model.norm.weight" else tensor, "model.norm.weight has 3, not 64"),
    ],
    ids=["missing", "tied", "shape"],
)
def test_the_torch_engine_makes_nothing_up(tmp_path: Path, change: Change, says: str) -> None:
    folder = Path(shutil.copytree(MODELS / "tiny-draft", tmp_path / "model"))
    assert flaw(folder) is None
    rewrite(folder, change)
    with pytest.raises(CannotLoad, match=says):
        loaded(folder)
    assert str(flaw(folder)) == str(flaw(folder, own_class=False)) != "None"


def test_other_names_are_said_to_be_there(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = Path(shutil.copytree(MODELS / "tiny-draft", tmp_path / "model"))
    tensors = {f"backbone.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    assert str(flaw(folder)).startswith("25 of the model's tensors are not in its files: lm_head.weight, ")
    assert str(flaw(folder)).endswith(" and 22 others (it has 24 others that the model lacks)")
    with pytest.raises(CannotLoad, match="25 of the model's tensors are not in its files"):
        loaded(folder)


@pytest.mark.parametrize("name", ["Qwen3MoeForCausalLM", "MixtralForCausalLM"])
def test_experts_are_counted_one_by_one(tmp_path: Path, name: str) -> None:
    options = EXPERTS if name.startswith("Qwen3") else {"num_local_experts": 4}
    folder = saved(tmp_path / "moe", name, **options)
    assert flaw(folder) is None
    loaded(folder)
    rewrite(folder, without("experts.1.gate_proj", "experts.1.w1"))
    said = "some of the tensors that the model merges into one are not in its files"
    assert said in str(flaw(folder))
    with pytest.raises(CannotLoad, match=said):
        loaded(folder)


def test_a_head_belongs_to_a_class_that_has_one(tmp_path: Path) -> None:
    """What serves it as that class needs the head; what serves it as a language model needs another one."""
    folder = saved(tmp_path / "head", "LlamaForSequenceClassification", num_labels=2)
    assert flaw(folder) is None
    assert "1 of the model's tensors is not in its files: lm_head.weight" in str(flaw(folder, own_class=False))
    rewrite(folder, without("score"))
    assert str(flaw(folder)) == "1 of the model's tensors is not in its files: score.weight"


def quantized(folder: Path, keep: Change) -> Path:
    """The model as GPTQ saves it: packed weights and their scales under other names."""
    import torch
    from safetensors.torch import load_file, save_file

    packed: dict[str, Any] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if "_proj.weight" in name:
            module = name.removesuffix("weight")
            packed |= {f"{module}qweight": torch.zeros(4, 32, dtype=torch.int32), f"{module}scales": torch.zeros(1, 32)}
        else:
            packed[name] = tensor
    save_file({name: tensor for name, tensor in packed.items() if keep(name, tensor) is not None}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq", "bits": 4}}))
    return folder


@pytest.mark.parametrize(("name", "options"), [("LlamaForCausalLM", {}), ("Qwen3MoeForCausalLM", EXPERTS)])
def test_packed_weights_are_weights(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    assert flaw(quantized(saved(tmp_path / "whole", name, **options), without("no such name"))) is None
    lacking = quantized(saved(tmp_path / "lacking", name, **options), without("layers.1.self_attn.k_proj"))
    assert str(flaw(lacking)) == "1 of the model's tensors is not in its files: model.layers.1.self_attn.k_proj.weight"


def test_a_quantization_may_be_described_in_a_file_of_its_own(tmp_path: Path) -> None:
    folder = quantized(saved(tmp_path / "whole", "LlamaForCausalLM"), without("no such name"))
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    assert "of the model's tensors are not in its files" in str(flaw(folder))
    (folder / "hf_quant_config.json").write_text("{}")
    assert flaw(folder) is None


def test_shards_pickles_and_what_a_checkpoint_has_beside_the_model(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    folder = saved(tmp_path / "llama", "LlamaForCausalLM")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    from safetensors.torch import save_file

    halves = [dict(list(tensors.items())[::2]), dict(list(tensors.items())[1::2]) | {"rotary_emb.inv_freq": torch.zeros(4)}]
    for name, half in zip(names, halves, strict=True):
        save_file(half, folder / name)
    weight_map = {key: name for name, half in zip(names, halves, strict=True) for key in half}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert flaw(folder) is None
    loaded(folder)
    for name in (*names, "model.safetensors.index.json"):
        os.unlink(folder / name)
    torch.save(tensors, folder / "pytorch_model.bin")
    assert flaw(folder) is None
    torch.save(halves[0], folder / "pytorch_model.bin")
    assert "of the model's tensors are not in its files" in str(flaw(folder))


def test_what_transformers_does_not_know_is_left_to_the_engine(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(MODELS / "tiny-draft", tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    for change in ({"model_type": "nobodys"}, {"architectures": ["NobodysForCausalLM"]}, {"architectures": None}):
        (folder / "config.json").write_text(json.dumps(config | change))
        assert flaw(folder) is None


def test_random_weights_are_made_only_where_they_are_asked_for(tmp_path: Path) -> None:
    from pipeline.engines.torch.model import load_model

    folder = Path(shutil.copytree(MODELS / "tiny-draft", tmp_path / "model"))
    (folder / "model.safetensors").unlink()
    spec = TorchSpec(model=str(folder), load_format="dummy")
    assert load_model(Setup.of("target", spec, str(folder))).vocab_size > 0
    with pytest.raises(CannotLoad):
        loaded(folder)


class Malicious:
    """Prints when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("unpickled",)


def test_a_pickle_of_more_than_tensors_is_one_sentence_to_doctor_and_to_the_engine(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import torch
    from safetensors.torch import load_file

    folder = saved(tmp_path / "model", "LlamaForCausalLM")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    assert flaw(folder) is None
    loaded(folder)
    torch.save(tensors | {"more": Malicious()}, folder / "pytorch_model.bin")
    said = "its weights are a pickle of more than tensors, which may run code when it is loaded, and so is not (safetensors cannot)"
    assert flaw(folder) == said
    with pytest.raises(CannotLoad, match=f"^{re.escape(said)}; "):
        loaded(folder)
    assert "unpickled" not in capfd.readouterr().out
    torch.save([tensors], folder / "pytorch_model.bin")
    assert flaw(folder) == "its pytorch_model.bin holds no tensors by name"
    content = (folder / "pytorch_model.bin").read_bytes()
    (folder / "pytorch_model.bin").write_bytes(content[: len(content) // 2])
    assert flaw(folder) == "its pytorch_model.bin cannot be read: it is damaged, or not a torch file"
