"""Makes a costlier model with the same function: wider by zeros, deeper by layers that add nothing.

    python tools/inflate.py pipeline/models/tiny-target build/inflated-target

A pair of toy models costs 3 to 1, a real pair about 20 to 1; benchmarks of scheduling need the latter. The result is
never committed, and always named as what it is: an inflated toy model.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import make_arith
import torch
import train_tiny
from transformers import AutoConfig, AutoModelForCausalLM

from pipeline.engines.tokenizer import HFTokenizer
from pipeline.reasoning.prompts import PromptBuilder

LENGTHS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
"""What grows with the width; a head keeps its size, so that its rotary frequencies and its scale stay the same."""
WIDTH, LAYERS = 4, 30
"""Factor of the width, and layers in all."""
PROBLEMS = 50
"""Problems on which both models must write the same greedy answers."""


@torch.no_grad()
def inflate(model: Any) -> Any:
    """The same function at `WIDTH` times the width and with `LAYERS` layers in all.

    Whatever is new is zero, so new channels, heads and layers add nothing to the residual stream. Its mean square
    falls by `WIDTH`: the weights of its norms fall by the root of that, their epsilon by `width`. (The norms of single
    heads share that epsilon, which is far below rounding there.)
    """
    config = AutoConfig.for_model(**model.config.to_dict())
    for name in LENGTHS:
        setattr(config, name, getattr(config, name) * WIDTH)
    config.num_hidden_layers, config.layer_types = LAYERS, ["full_attention"] * LAYERS
    config.rms_norm_eps /= WIDTH
    large = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    for parameter in large.parameters():
        parameter.zero_()
    grown = dict(large.named_parameters())
    for name, small in model.named_parameters():
        of_residuals = small.ndim == 1 and grown[name].shape != small.shape  # a norm over the residual stream, known by its growth
        grown[name][tuple(slice(length) for length in small.shape)] = small * WIDTH**-0.5 if of_residuals else small
    return large.eval()


def greedy(model: Any, builder: PromptBuilder) -> Sequence[Any]:
    """What the model writes on the first validation problems."""
    prompts = [builder.generation(each.text) for each in make_arith.split("validation")[:PROBLEMS]]
    return train_tiny.sample(model, prompts, 1, 0.0, 128, list(builder.tokenizer.eos_ids))


@click.command()
@click.argument("source", type=click.Path(path_type=Path, exists=True))
@click.argument("out", type=click.Path(path_type=Path))
def main(source: Path, out: Path) -> None:
    """Write an inflated copy of SOURCE to OUT, once it answers the same."""
    small, builder = train_tiny.load(source), PromptBuilder(HFTokenizer(str(source)))
    large = inflate(small)
    if greedy(small, builder) != greedy(large, builder):
        raise click.ClickException("the inflated model answers differently; nothing was written")
    large.to(torch.bfloat16).save_pretrained(out)
    for path in [*source.glob("tokenizer*"), *source.glob("*.jinja")]:
        shutil.copy(path, out)
    click.echo(f"{out}: {large.num_parameters() / 1e6:.1f}M parameters, same greedy answers on {PROBLEMS} problems")


if __name__ == "__main__":
    main()
