"""The bundled reward model is what its card says: the target's first layers with two rows of its own."""

import pytest

from pipeline.engines.tokenizer import HFTokenizer
from tests.support.paths import MODELS

pytestmark = pytest.mark.torch


def test_all_but_two_rows_are_the_targets() -> None:
    import torch
    from safetensors.torch import load_file

    ours, target = (load_file(MODELS / f"{name}/model.safetensors") for name in ("tiny-prm", "tiny-target"))
    embedding = "model.embed_tokens.weight"
    assert {name for name in target if name not in ours} == {
        name for name in target if name.startswith(("model.layers.5.", "model.layers.6."))
    }
    assert [name for name in ours if not torch.equal(ours[name], target[name])] == [embedding]
    changed = (ours[embedding] != target[embedding]).any(1).nonzero().flatten().tolist()
    assert sorted(HFTokenizer(str(MODELS / "tiny-prm")).decode([each]) for each in changed) == ["+", "-"]
