"""Makes a copy of a draft model whose vocabulary has the target's size: vLLM's method `draft_model` accepts no other. Both must
have the same tokenizer.

    python tools/pad_vocabulary.py deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B Qwen/QwQ-32B ./padded/DeepSeek-R1-Distill-Qwen-1.5B-152064

Models of one family share a tokenizer and round the size of their embeddings differently. The copy's further ids stand for no text. Each
of their rows is the mean of the rows of the ids that the tokenizer does not use, or of all rows where it uses all:

- The logits of all other ids are what they were.
- The logit of a further id is a mean of others, so never above the largest: greedy text is the same. vLLM's drafts propose greedily.
- A further id is no likelier than those of its mean are on average, because the exponential is convex. With k further ids and m unused
  ones, sampling meets the further ones at most k/m times as often as it meets the unused ones, and else draws as before. Where all ids
  are used, their share is at most k over the size of the vocabulary.
- vLLM's target rejects what it would not have written itself, so that its text never depends on these rows.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import torch
from huggingface_hub import snapshot_download
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

BESIDE = ("*.json", "*.jinja", "*.txt", "*.model", "*.py")
"""Files of a model next to its weights: configuration, tokenizer, chat template."""

VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Files of a tokenizer; where there is none, transformers makes one that knows hardly a token."""


def padded(rows: Tensor, size: int, unused: Sequence[int]) -> Tensor:
    """`rows` and further ones up to `size`, each the mean of the `unused` ones or, where there are none, of all."""
    mean = (rows[list(unused)] if unused else rows).double().mean(0, keepdim=True).to(rows.dtype)
    return torch.cat([rows, mean.expand(size - len(rows), -1)])


@contextmanager
def readable(name: str) -> Iterator[None]:
    """The model of this name is read; raises `click.UsageError` where it cannot be."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{name}: cannot be read: {str(error).partition(chr(10))[0]}") from error


@click.command()
@click.argument("source")
@click.argument("target")
@click.argument("out", type=click.Path(path_type=Path))
def main(source: str, target: str, out: Path) -> None:
    """Write a copy of SOURCE to OUT with a vocabulary of the size of TARGET: a model, or a number. Models are folders or hub names."""
    with readable(target):
        size = int(target) if target.isdecimal() else getattr(AutoConfig.from_pretrained(target), "vocab_size", None)
    if size is None:
        raise click.UsageError(f"{target}: its configuration has no `vocab_size`; name the size")
    with readable(source):
        folder = Path(source if Path(source).is_dir() else snapshot_download(source, allow_patterns=[*BESIDE, "*.safetensors"]))
        if not any((folder / name).is_file() for name in VOCABULARIES):
            raise click.UsageError(f"{source}: has no tokenizer; expected one of {', '.join(VOCABULARIES)}")
        model, found = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    if size <= (old := model.config.vocab_size):
        raise click.UsageError(f"{source} has {old} ids already, and {size} are asked for: padding only adds ids")
    if wrong := sorted(
        {*found["missing_keys"], *found["unexpected_keys"]} | {name for name, _ in model.named_parameters() if "head.bias" in name}
    ):
        raise click.UsageError(f"{source}: {wrong[0]} is missing or cannot be padded; embed_tokens.weight and lm_head.weight can")
    unused = sorted({*range(old)} - {*tokenizer.get_vocab().values()})
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):  # which may share their weights
        layer.weight.data = padded(layer.weight.data[:old], size, unused)
    out.mkdir(parents=True)
    model.save_pretrained(out)
    for path in (path for pattern in BESIDE for path in folder.glob(pattern) if not path.name.endswith(".index.json")):
        shutil.copy(path, out)
    config = json.loads((folder / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"vocab_size": size}, indent=2) + "\n")
    click.echo(f"{out}: {size} ids instead of {old}")


if __name__ == "__main__":
    main()
