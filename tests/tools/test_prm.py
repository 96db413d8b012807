"""The bundled reward model is what its card says: the target's first layers with two rows of its own."""

from importlib import import_module
from typing import Any

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def train_prm() -> Any:
    return import_module("train_prm")


def test_all_but_two_rows_are_the_targets(train_prm: Any) -> None:
    import torch
    from safetensors.torch import load_file

    ours, target = (load_file(ROOT / f"pipeline/models/{name}/model.safetensors") for name in ("tiny-prm", "tiny-target"))
    embedding = "model.embed_tokens.weight"
    assert {name for name in target if name not in ours} == {
        name for name in target if name.startswith(("model.layers.5.", "model.layers.6."))
    }
    assert [name for name in ours if not torch.equal(ours[name], target[name])] == [embedding]
    changed = (ours[embedding] != target[embedding]).any(1).nonzero().flatten().tolist()
    assert changed == sorted(train_prm.Judge(0).builder.option_ids)


def test_a_head_learns_what_can_be_told_apart(train_prm: Any) -> None:
    import torch

    generator = torch.Generator().manual_seed(0)
    right = torch.rand(400, generator=generator) < 0.5
    seen = torch.randn(400, 8, generator=generator) + 3 * (2.0 * right[:, None] - 1) * torch.eye(8)[0]
    rows = train_prm.train(seen[:300], right[:300], torch.zeros(20, 8), (4, 7))
    figures = train_prm.measure(seen[300:], right[300:], rows)
    assert figures["auc"] > 0.95
    assert figures["reward_right"] > 0.8 > 0.2 > figures["reward_wrong"]
