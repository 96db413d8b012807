"""Adapters merged into their models."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.engines.model_card import read_card
from pipeline.engines.models import adapter_folder
from pipeline.errors import UsageError
from pipeline.training.lora.merge import merge
from tests.support.adapters import TARGET, noise, noisy, write_adapter
from tests.support.bench import Bench, request
from tests.support.trained import Training, chosen


def logits(folder: Path | str, adapter: Path | None, prompts: list[list[int]]) -> Any:
    """The logits of the last positions by transformers, with an adapter beside the model or without."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter))
    with torch.inference_mode():
        return torch.stack([model.eval()(torch.tensor([prompt])).logits[0, -1] for prompt in prompts])


@pytest.mark.torch
def test_the_merged_model_is_the_model_with_its_adapter(trained: Training, tmp_path: Path) -> None:
    import torch

    rows = trained.validation()[:6]
    prompts = [row["input_ids"] for row in rows]
    beside, base = logits(TARGET, trained.folder, prompts), logits(TARGET, None, prompts)
    merge(str(trained.folder), tmp_path / "exact", dtype="float32")
    assert torch.allclose(logits(tmp_path / "exact", None, prompts), beside, atol=2e-4)
    assert not torch.allclose(base, beside, atol=0.1)
    merge(str(trained.folder), tmp_path / "saved")
    card = read_card(str(tmp_path / "saved"))
    assert (card.flaws, card.dtype, card.parameters) == ((), "bfloat16", read_card(str(TARGET)).parameters)
    asked = [{"prompt": row["input_ids"], "option_ids": row["option_ids"], "max_tokens": 1} for row in rows]
    answers = Bench(model=str(tmp_path / "saved")).run([request(**each) for each in asked])
    with_adapter = Bench(adapters={"mine": str(trained.folder)}).run([request(**each, adapter="mine") for each in asked])
    assert [chosen(one.option_logprobs) for one in answers] == [chosen(two.option_logprobs) for two in with_adapter]
    merge("bundled:tiny-selection", tmp_path / "bundled", dtype="float32")
    beside = logits(TARGET, adapter_folder("bundled:tiny-selection"), [[5, 6, 7]])
    assert torch.allclose(logits(tmp_path / "bundled", None, [[5, 6, 7]]), beside, atol=2e-4)


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
        ({}, "bundled:tiny-draft", "belongs to another model: "),
        ({"base_model_name_or_path": "bundled:tiny"}, None, "mine: its base model: no bundled model is named 'tiny' (did you mean"),
        ({}, "/no/such/folder", "mine: no such directory: /no/such/folder"),
        ({"peft_type": "IA3"}, None, "mine: cannot be merged: its adapter_config.json says peft_type: IA3, and only LORA is supported"),
    ],
)
def test_what_cannot_be_merged(tmp_path: Path, config: dict[str, Any], model: str | None, says: str) -> None:
    adapter = write_adapter(tmp_path / "mine", noise(0), **config)
    with pytest.raises(UsageError) as caught:
        merge(str(adapter), tmp_path / "out", model)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bundled_adapters_are_known_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^bundled:tiny-target: cannot be merged: no bundled adapter is named 'tiny-target' \("):
        merge("bundled:tiny-target", tmp_path / "out")
    with pytest.raises(UsageError, match="was trained on bundled:tiny-target, and the model is bundled:wordy-target"):
        merge("bundled:tiny-selection", tmp_path / "out", "bundled:wordy-target")


def test_a_folder_that_holds_something_stays_as_it_is(tmp_path: Path) -> None:
    adapter = noisy(tmp_path / "mine")
    shutil.copytree(adapter, tmp_path / "out")
    with pytest.raises(UsageError, match="out: already exists; choose another folder with -o"):
        merge(str(adapter), tmp_path / "out", "bundled:tiny-target")
