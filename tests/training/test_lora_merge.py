"""Adapters merged into their models."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.engines.model_card import read_card
from pipeline.engines.models import adapter_folder, resolve
from pipeline.errors import UsageError
from pipeline.training.lora.merge import MergeRequest, merge
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

    examples = list(trained.validation())[:6]
    prompts = [list(each.ids) for each in examples]
    beside, base = logits(TARGET, trained.folder, prompts), logits(TARGET, None, prompts)
    merge(MergeRequest(adapter=trained.folder, output=tmp_path / "exact", dtype="float32", command="pipeline train merge ..."))
    assert torch.allclose(logits(tmp_path / "exact", None, prompts), beside, atol=2e-4)
    assert not torch.allclose(base, beside, atol=0.1)
    merge(MergeRequest(adapter=trained.folder, output=tmp_path / "saved"))
    card = read_card(str(tmp_path / "saved"))
    assert (card.flaws, card.dtype, card.parameters) == ((), "bfloat16", read_card(str(TARGET)).parameters)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (tmp_path / "saved" / name).read_bytes() == (TARGET / name).read_bytes()
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "saved").iterdir()} == {0o644}
    asked = [request(each.ids, option_ids=each.option_ids, max_tokens=1) for each in examples]
    answers = Bench(model=str(tmp_path / "saved")).run(asked)
    with_adapter = Bench(adapters={"mine": str(trained.folder)}).run([request(**_of(each), adapter="mine") for each in asked])
    assert [chosen(one.option_logprobs) for one in answers] == [chosen(two.option_logprobs) for two in with_adapter]
    assert "pipeline train merge ..." in (tmp_path / "exact/README.md").read_text()


@pytest.mark.torch
def test_a_bundled_adapter_is_merged_by_its_name(tmp_path: Path) -> None:
    import torch

    merge(MergeRequest(adapter=Path("bundled:tiny-selection"), output=tmp_path / "out", dtype="float32"))
    beside = logits(TARGET, adapter_folder("bundled:tiny-selection"), [[5, 6, 7]])
    assert torch.allclose(logits(tmp_path / "out", None, [[5, 6, 7]]), beside, atol=2e-4)
    assert "with the weights of the adapter `bundled:tiny-selection` in its own" in (tmp_path / "out/README.md").read_text()


def _of(asked: Any) -> dict[str, Any]:
    return {"prompt": asked.prompt_ids, "option_ids": asked.option_ids, "max_tokens": 1}


@pytest.mark.torch
def test_an_adapter_that_peft_cannot_put_together(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "odd", noise(0), target_modules=["c_attn"])
    with pytest.raises(UsageError, match=r"does not fit .*tiny-target: Target modules"):
        merge(MergeRequest(adapter=adapter, output=tmp_path / "out", model="bundled:tiny-target"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["odd"], "nothing is left behind"


def test_an_adapter_of_another_model(tmp_path: Path) -> None:
    adapter = noisy(tmp_path / "mine")
    with pytest.raises(UsageError) as caught:
        merge(MergeRequest(adapter=adapter, output=tmp_path / "out", model="bundled:tiny-draft"))
    assert f"the adapter {adapter} belongs to another model: " in str(caught.value)
    assert "(bundled:tiny-draft); name an adapter that was trained on this model" in str(caught.value)


def test_other_weights_of_the_same_shape(tmp_path: Path) -> None:
    adapter = noisy(tmp_path / "mine")
    record = {"task": "select", "model": "m", "weights_sha256": "a" * 64, "files": [], "processes": 1, "versions": {}, "commands": []}
    (adapter / "training.json").write_text(json.dumps(record))
    with pytest.raises(
        UsageError, match=r"mine: was trained on other weights than bundled:tiny-target has \(sha256 aaaaaaaaaaaaaaaa\.\.\.\)"
    ):
        merge(MergeRequest(adapter=adapter, output=tmp_path / "out", model="bundled:tiny-target"))


@pytest.mark.parametrize(
    ("config", "model", "says"),
    [
        ({}, None, "mine: does not name the model that it was trained on; name it with --model"),
        ({"base_model_name_or_path": "bundled:tiny"}, None, "mine: its base model: no bundled model is named 'tiny' (did you mean"),
        ({}, "/no/such/folder", "mine: no such directory: /no/such/folder; name a folder with the model's files, or a model on the hub"),
        ({"peft_type": "IA3"}, None, "mine: cannot be merged: its adapter_config.json says peft_type: IA3, and only LORA is supported"),
    ],
)
def test_what_cannot_be_merged(tmp_path: Path, config: dict[str, Any], model: str | None, says: str) -> None:
    adapter = write_adapter(tmp_path / "mine", noise(0), **config)
    with pytest.raises(UsageError) as caught:
        merge(MergeRequest(adapter=adapter, output=tmp_path / "out", model=model))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_bundled_adapter(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^bundled:tiny-target: cannot be merged: no bundled adapter is named 'tiny-target' \("):
        merge(MergeRequest(adapter=Path("bundled:tiny-target"), output=tmp_path / "out"))


def test_the_adapter_of_another_bundled_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        merge(MergeRequest(adapter=Path("bundled:tiny-selection"), output=tmp_path / "out", model="bundled:wordy-target"))
    assert str(caught.value) == (
        "the adapter bundled:tiny-selection belongs to another model: its adapter_config.json says that it was trained on "
        "bundled:tiny-target, and the model is bundled:wordy-target; name an adapter that was trained on this model"
    )


def test_a_folder_that_holds_something_stays_as_it_is(tmp_path: Path) -> None:
    adapter = noisy(tmp_path / "mine")
    shutil.copytree(adapter, tmp_path / "out")
    with pytest.raises(UsageError, match="out: already exists; choose another folder with -o"):
        merge(MergeRequest(adapter=adapter, output=tmp_path / "out", model="bundled:tiny-target"))
    assert resolve("target", "bundled:tiny-target") == str(TARGET)
