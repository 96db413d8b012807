"""Tensors of a checkpoint against those of its model: what is refused, and what must go on working. Everything is small."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.engines.process.wire import Setup
from pipeline.engines.torch.spec import TorchSpec
from pipeline.errors import UsageError
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
def test_no_engine_makes_tensors_up(tmp_path: Path, change: Change, says: str) -> None:
    folder = Path(shutil.copytree(MODELS / "tiny-draft", tmp_path / "model"))
    rewrite(folder, change)
    with pytest.raises(UsageError, match=says):
        loaded(folder)


def test_tensors_that_belong_to_no_layer_of_the_configuration_are_refused(tmp_path: Path) -> None:
    """And what is beside its weights, such as another head or a mask, is not."""
    from safetensors.torch import load_file, save_file

    folder = Path(shutil.copytree(MODELS / "tiny-draft", tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    beside = ("v_head.weight", "model.layers.0.self_attn.masked_bias")
    save_file(tensors | {name: tensors["model.norm.weight"].clone() for name in beside}, folder / "model.safetensors")
    loaded(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1, "layer_types": config["layer_types"][:1]}))
    says = r"the model that its config\.json describes has no place for \d+ of its tensors: model\.layers\.1\."
    with pytest.raises(UsageError, match=says):
        loaded(folder)


def test_experts_are_counted_one_by_one(tmp_path: Path) -> None:
    folder = saved(tmp_path / "moe", "Qwen3MoeForCausalLM", **EXPERTS)
    loaded(folder)
    rewrite(folder, without("experts.1.gate_proj"))
    said = "some of the tensors that the model merges into one are not in its files"
    with pytest.raises(UsageError, match=said):
        loaded(folder)


def test_random_weights_are_made_only_where_they_are_asked_for(tmp_path: Path) -> None:
    from pipeline.engines.torch.model import load_model

    folder = Path(shutil.copytree(MODELS / "tiny-draft", tmp_path / "model"))
    (folder / "model.safetensors").unlink()
    spec = TorchSpec(model=str(folder), load_format="dummy")
    assert load_model(Setup.of("target", spec, str(folder))).vocab_size > 0
    with pytest.raises(UsageError):
        loaded(folder)


class Malicious:
    """Prints when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("unpickled",)


def test_a_pickle_of_more_than_tensors_is_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import torch
    from safetensors.torch import load_file

    folder = saved(tmp_path / "model", "LlamaForCausalLM")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    loaded(folder)
    torch.save(tensors | {"more": Malicious()}, folder / "pytorch_model.bin")
    said = "its weights are a pickle of more than tensors, which may run code when it is loaded, and so is not (safetensors cannot)"
    with pytest.raises(UsageError, match=f"^{re.escape(said)}; "):
        loaded(folder)
    assert "unpickled" not in capfd.readouterr().out
