"""What engine `torch` refuses to load, and what must go on working. Every model is small."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.engines.process.wire import Setup
from pipeline.engines.torch.spec import TorchSpec
from pipeline.errors import MissingExtra, UsageError
from tests.support.adapters import noise, write_adapter
from tests.support.bench import small_model
from tests.support.paths import MODELS

pytestmark = pytest.mark.torch


def loaded(model: Path, **options: Any) -> Any:
    from pipeline.engines.torch.model import load_model

    spec = TorchSpec(model=str(model), **options)
    return load_model(Setup.of("target", spec, str(model)))


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODELS / "tiny-draft", tmp_path / "model"))


def rewrite(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Replace the tensors of a model's only file."""
    from safetensors.torch import load_file, save_file

    tensors = change(load_file(folder / "model.safetensors"))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def without(*words: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if not any(word in name for word in words)}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("k_proj"), r"2 of the model's tensors are not in its files, such as model\.layers\.0\.self_attn\.k_proj\.weight; "),
        (lambda tensors: tensors | {"model.norm.weight": tensors["model.norm.weight"][:3]}, "ignore_mismatched_sizes"),
    ],
)
def test_no_tensor_is_made_up(draft: Path, change: Callable[[dict[str, Any]], dict[str, Any]], says: str) -> None:
    rewrite(draft, change)
    with pytest.raises(UsageError, match=says):
        loaded(draft)


class Malicious:
    """Fails when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("unpickled",)


def test_a_pickle_runs_no_code_and_random_weights_are_made_only_where_they_are_asked_for(draft: Path) -> None:
    import torch

    (draft / "model.safetensors").unlink()
    assert loaded(draft, load_format="dummy").vocab_size > 0
    with pytest.raises(UsageError, match="no file named"):
        loaded(draft)
    torch.save({"more": Malicious()}, draft / "pytorch_model.bin")
    with pytest.raises(UsageError, match="Weights only load failed"):
        loaded(draft)


def test_attention_and_contexts_that_the_engine_does_not_have_are_refused(tmp_path: Path) -> None:
    small_model(tmp_path, "gemma2", head_dim=16)
    with pytest.raises(UsageError, match="soft caps"):
        loaded(tmp_path)
    with pytest.raises(UsageError, match="max_model_len is 1048576, but the model supports 4096"):
        loaded(MODELS / "tiny-target", max_model_len=1 << 20)


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"target_modules": ["k_proj", "v_proj", "q_proj"]}, "14 matrices of the adapter in .* are not in its file"),
        ({"target_modules": ["c_attn"]}, "the adapter in .* does not fit: Target modules"),
    ],
)
def test_an_adapter_that_peft_cannot_put_together_is_refused(tmp_path: Path, config: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        loaded(MODELS / "tiny-target", adapters={"odd": str(write_adapter(tmp_path, noise(0), **config))})


def test_an_adapter_without_peft_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtra, match=r"an adapter needs the package `peft`.*\[train\]"):
        loaded(MODELS / "tiny-target", adapters={"one": str(write_adapter(tmp_path, noise(0)))})
