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
from collections.abc import Sequence
from pathlib import Path

import click
import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer as Backend
from torch import Tensor

from pipeline.engines.models import read_json, weight_files

EMBEDDINGS = ("embed_tokens.weight", "lm_head.weight")
"""Ends of the names of the tensors with a row for each id."""
BESIDE = ("*.json", "*.jinja", "*.txt", "*.model", "*.py")
"""Files of a model next to its weights: configuration, tokenizer, chat template."""
INDEX = "model.safetensors.index.json"


def folder_of(model: str, *weights: str) -> Path:
    """The folder of a model; one on the hub is downloaded."""
    return Path(model) if Path(model).is_dir() else Path(snapshot_download(model, allow_patterns=[*BESIDE, *weights]))


def vocab_size(folder: Path) -> int:
    """The number of ids of a model."""
    size = read_json(folder / "config.json").get("vocab_size")
    if not isinstance(size, int):
        raise click.UsageError(f"{folder}: its config.json has no vocab_size; models in Llama's and Qwen's layout can be padded")
    return size


def unused_ids(folder: Path, size: int) -> list[int]:
    """Ids that stand for no token of the tokenizer."""
    if not (folder / "tokenizer.json").is_file():
        raise click.UsageError(f"{folder}: has no tokenizer.json, which says which ids are used")
    used = set(Backend.from_file(str(folder / "tokenizer.json")).get_vocab(with_added_tokens=True).values())
    return [number for number in range(size) if number not in used]


def padded(rows: Tensor, size: int, unused: Sequence[int]) -> Tensor:
    """`rows` and further ones up to `size`, each the mean of the `unused` ones or, where there are none, of all."""
    mean = (rows[list(unused)] if unused else rows).double().mean(0, keepdim=True).to(rows.dtype)
    return torch.cat([rows, mean.expand(size - len(rows), -1)])


def pad_file(path: Path, out: Path, old: int, size: int, unused: Sequence[int]) -> set[str]:
    """Write a file of weights with padded embeddings; returns their names. Raises `UsageError` for other tensors with a row for each id."""
    with safe_open(path, "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    found = {name for name, tensor in tensors.items() if name.endswith(EMBEDDINGS) and tensor.ndim == 2 and len(tensor) == old}
    sized = {name for name, tensor in tensors.items() if name.endswith((*EMBEDDINGS, "lm_head.bias")) or "embed" in name} - found
    if sized or not all(tensors[name].is_floating_point() for name in found):
        which = sorted(sized or found)[0]
        raise click.UsageError(f"{path}: {which} cannot be padded; embed_tokens.weight and lm_head.weight with {old} rows of floats can")
    save_file({name: padded(each, size, unused) if name in found else each for name, each in tensors.items()}, out, metadata)
    return found


def write(source: Path, out: Path, size: int) -> None:
    """The padded copy of the model in the folder `source`, in the folder `out`."""
    config, old, files = read_json(source / "config.json"), vocab_size(source), weight_files(source)
    if not files or any(path.suffix != ".safetensors" for path in files):
        raise click.UsageError(f"{source}: has no *.safetensors; convert the weights to that format")
    for path in (path for pattern in BESIDE for path in source.glob(pattern)):
        shutil.copy(path, out)
    unused = unused_ids(source, old)
    found = {name for path in files for name in pad_file(path, out / path.name, old, size, unused)}
    heads = {end for end in EMBEDDINGS if any(name.endswith(end) for name in found)}
    if heads != set(EMBEDDINGS) and not (config.get("tie_word_embeddings") and EMBEDDINGS[0] in heads):
        raise click.UsageError(f"{source}: has no {' and no '.join(sorted(set(EMBEDDINGS) - heads))} with a row for each id")
    (out / "config.json").write_text(json.dumps(config | {"vocab_size": size}, indent=2) + "\n")
    if (out / INDEX).exists():
        (out / INDEX).write_text(json.dumps(read_json(out / INDEX) | {"metadata": {}}, indent=2) + "\n")  # its size is another


@click.command()
@click.argument("source")
@click.argument("target")
@click.argument("out", type=click.Path(path_type=Path))
def main(source: str, target: str, out: Path) -> None:
    """Write a copy of SOURCE to OUT with a vocabulary of the size of TARGET: a model, or a number. Models are folders or hub names."""
    folder, size = folder_of(source, "*.safetensors"), int(target) if target.isdecimal() else vocab_size(folder_of(target))
    if size <= (old := vocab_size(folder)):
        raise click.UsageError(f"{source} has {old} ids already, and {size} are asked for: padding only adds ids")
    out.mkdir(parents=True)
    write(folder, out, size)
    click.echo(f"{out}: {size} ids instead of {old}")


if __name__ == "__main__":
    main()
