"""A draft padded to another vocabulary writes the same text; what cannot be padded is refused, and nothing is left."""

import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.paths import MODELS

pytestmark = pytest.mark.torch
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
SIZE, USED = 560, 554
"""Ids of the bundled models, and how many of them their tokenizer uses."""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(import_module("pad_vocabulary").main, [str(each) for each in arguments])


def copied(folder: Path, **config: Any) -> Path:
    """A copy of the bundled draft whose configuration says something else."""
    shutil.copytree(MODELS / "tiny-draft", folder)
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said | config))
    return folder


def test_a_padded_draft_has_further_rows_and_is_the_same_otherwise(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    out = tmp_path / "padded"
    done = run(MODELS / "tiny-draft", SIZE + 16, out)
    assert done.exit_code == 0, done.output
    assert "576 ids instead of 560" in done.output
    before, after = (load_file(folder / "model.safetensors") for folder in (MODELS / "tiny-draft", out))
    assert [name for name in before if not torch.equal(before[name], after[name][: len(before[name])])] == []
    assert {name for name in before if before[name].shape != after[name].shape} == {EMBEDDING}
    further = before[EMBEDDING][USED:].double().mean(0).bfloat16()
    assert torch.equal(after[EMBEDDING][SIZE:], further.expand(16, -1))
    assert json.loads((out / "config.json").read_text())["vocab_size"] == SIZE + 16
    assert (out / "tokenizer.json").read_bytes() == (MODELS / "tiny-draft/tokenizer.json").read_bytes()


@pytest.mark.parametrize("unused", [[5, 7, 8, 9], []])
def test_a_further_id_is_never_the_likeliest_and_rarer_than_what_it_is_the_mean_of(unused: list[int]) -> None:
    import torch
    from pad_vocabulary import padded

    generator = torch.Generator().manual_seed(0)
    rows, states = torch.randn(40, 8, generator=generator), 10 * torch.randn(2000, 8, generator=generator)
    logits = states @ padded(rows, 48, unused).T
    probabilities = logits.double().softmax(-1)
    assert torch.equal(logits[:, :40], states @ rows.T)
    assert int(logits.argmax(-1).max()) < 40
    own = probabilities[:, unused].mean(-1) if unused else probabilities[:, :40].mean(-1)
    assert bool((probabilities[:, 40:].amax(-1) <= own * (1 + 1e-4)).all())


def test_a_head_that_is_not_the_embedding_is_padded_too_wherever_it_is(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    source, out = copied(tmp_path / "source", tie_word_embeddings=False), tmp_path / "out"
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    files = {f"model-{number}.safetensors": part for number, part in enumerate((tensors, {HEAD: -tensors[EMBEDDING]}))}
    for name, part in files.items():
        save_file(part, source / name, {"format": "pt"})
    places = {tensor: name for name, part in files.items() for tensor in part}
    (source / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    assert run(source, 600, out).exit_code == 0
    assert [path.name for path in out.glob("*.safetensors*")] == ["model.safetensors"]
    made = load_file(out / "model.safetensors")
    assert made[HEAD].shape == (600, 64)
    assert torch.equal(made[HEAD], -made[EMBEDDING])


def test_what_cannot_be_padded_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    draft, headless, biased = MODELS / "tiny-draft", copied(tmp_path / "headless", tie_word_embeddings=False), copied(tmp_path / "biased")
    tensors = load_file(biased / "model.safetensors")
    save_file(tensors | {"lm_head.bias": torch.zeros(SIZE)}, biased / "model.safetensors", {"format": "pt"})
    weightless, speechless, unsized = (copied(tmp_path / name) for name in ("weightless", "speechless", "unsized"))
    (weightless / "model.safetensors").unlink()
    (speechless / "tokenizer.json").unlink()
    (unsized / "config.json").write_text('{"model_type": "llava"}')
    for source, target, said in (
        (draft, 500, "has 560 ids already, and 500 are asked for: padding only adds ids"),
        (draft, MODELS / "tiny-target", "has 560 ids already, and 560 are asked for"),
        (headless, 600, "lm_head.weight is missing or cannot be padded"),
        (biased, 600, "lm_head.bias is missing or cannot be padded"),
        (weightless, 600, "weightless: cannot be read: "),
        (speechless, 600, "speechless: has no tokenizer; expected one of tokenizer.json, "),
        (draft, unsized, "unsized: its configuration has no `vocab_size`; name the size"),
        (draft, tmp_path, "cannot be read: "),
    ):
        done = run(source, target, tmp_path / "out")
        assert (done.exit_code, said in done.output.replace("\n", ""), (tmp_path / "out").exists()) == (2, True, False), done.output
