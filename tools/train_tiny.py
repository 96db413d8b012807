"""Trains the bundled draft and target models, on a CPU in about an hour or on a GPU in minutes.

    python tools/train_tiny.py draft  --out pipeline/models/tiny-draft
    python tools/train_tiny.py target --out build/tiny-target-reasoning          # chain of thought alone
    python tools/train_tiny.py verify --out pipeline/models/tiny-target --start build/tiny-target-reasoning \
        --draft pipeline/models/tiny-draft

The draft stops on purpose once it solves half of the validation problems. The target learns to reason first and to
verify afterwards; everything mixed from the start is far slower. The test set is never read here.
"""

import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import make_arith
import tiny_eval
import tiny_tokenizer
import torch
from tiny_examples import NONE, Example, Examples, Situation
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Qwen3Config

from pipeline.engines.tokenizer import HFTokenizer

SHAPES = {
    "draft": {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "num_attention_heads": 2},
    "target": {"hidden_size": 128, "num_hidden_layers": 7, "intermediate_size": 384, "num_attention_heads": 4},
}
RATES = {"draft": (0.02, 0.003), "target": (0.02, 0.003), "verify": (0.006, 0.0008)}
"""Learning rates of Muon (matrices) and AdamW (the rest); higher ones damage what the target has learnt."""
PREDICTS, COMPARES = 4, (5, 6)
"""Layers told what a right candidate would say, and whether the candidate says it."""
DRAFT_LOOKS_BELOW = 0.1
"""Loss under which the draft is worth an evaluation; it gets too good within seconds then."""
LOOK_EVERY = {"draft": 0.008, "target": 0.05, "verify": 0.05}
"""Evaluations, as shares of the time."""
BATCH = {"draft": 64, "target": 64, "verify": 48}


@dataclass
class Pool:
    """Situations with what the draft really wrote there."""

    entries: list[tuple[Situation, list[tuple[int, ...]]]]


def new_model(role: str, vocab_size: int, eos_id: int) -> Any:
    """A Qwen3 of the role's shape with random weights."""
    shape = SHAPES[role]
    config = Qwen3Config(
        vocab_size=-(-vocab_size // 8) * 8,
        head_dim=32,
        num_key_value_heads=shape["num_attention_heads"],
        max_position_embeddings=tiny_tokenizer.CONTEXT,
        tie_word_embeddings=True,
        eos_token_id=eos_id,
        pad_token_id=eos_id,
        bos_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        **shape,
    )
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def collate(batch: Sequence[Example], device: str) -> dict[str, Tensor]:
    """Examples as right-padded tensors."""
    width = max(len(each.ids) for each in batch)

    def pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
        return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], device=device)

    return {
        "ids": pad([each.ids for each in batch], 0),
        "next_token": pad([each.next_token for each in batch], NONE),
        "right_token": pad([each.right_token for each in batch], NONE),
        "right_so_far": pad([each.right_so_far for each in batch], NONE),
    }


def loss_of(model: Any, batch: Sequence[Example], flags: Tensor, device: str) -> Tensor:
    """Next tokens at the last layer; right tokens and comparisons at middle ones; -log of all right options together."""
    tensors = collate(batch, device)
    verifies = any(each.options for each in batch)
    out = model.model(input_ids=tensors["ids"], use_cache=False, output_hidden_states=verifies)
    logits = model.lm_head(out.last_hidden_state).float()
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tensors["next_token"].flatten(), ignore_index=NONE)
    if not verifies:
        return loss

    def early(layer: int, labels: Tensor) -> tuple[Tensor, Tensor]:
        at = labels != NONE
        return model.lm_head(model.model.norm(out.hidden_states[layer][at])).float(), labels[at]

    loss = loss + 0.5 * nn.functional.cross_entropy(*early(PREDICTS, tensors["right_token"]))
    for layer in COMPARES:
        said, right = early(layer, tensors["right_so_far"])
        loss = loss + 0.5 * nn.functional.cross_entropy(said[:, flags], right)
    return loss + decision_loss(logits, batch)


def decision_loss(logits: Tensor, batch: Sequence[Example]) -> Tensor:
    """-log of the summed probability of all right options, at the end of each verification."""
    asked = [(row, len(each.ids) - 1, each.options) for row, each in enumerate(batch) if each.options]
    rows, ends, options = zip(*asked, strict=True)
    logprobs = logits[list(rows), list(ends)].log_softmax(-1)
    right = torch.zeros_like(logprobs, dtype=torch.bool)
    for row, ids in enumerate(options):
        right[row, list(ids)] = True
    return -logprobs.masked_fill(~right, -math.inf).logsumexp(-1).mean()


class Trainer:
    """One model, its optimisers on a cosine that ends with the time given, and its log."""

    def __init__(self, model: Any, rates: tuple[float, float], minutes: float, device: str) -> None:
        self.model, self.device, self.seconds = model.to(device), device, minutes * 60
        matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
        rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
        self.optimisers = [
            torch.optim.Muon(matrices, lr=rates[0], momentum=0.95, weight_decay=0.01),
            torch.optim.AdamW(rest, lr=rates[1], betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.rates, self.started, self.steps, self.tokens = rates, time.monotonic(), 0, 0

    @property
    def share(self) -> float:
        """Of the time that is used up."""
        return min(1.0, (time.monotonic() - self.started) / self.seconds)

    def step(self, batch: Sequence[Example], flags: Tensor) -> float:
        scale = min(1.0, (self.steps + 1) / 50) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * self.share)))
        for optimiser, rate in zip(self.optimisers, self.rates, strict=True):
            optimiser.param_groups[0]["lr"] = rate * scale
            optimiser.zero_grad(set_to_none=True)
        self.model.train()
        with torch.autocast(self.device.split(":")[0], dtype=torch.bfloat16):
            loss = loss_of(self.model, batch, flags, self.device)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
        self.steps += 1
        self.tokens += sum(len(each.ids) for each in batch)
        return float(loss.detach())


def reasoning_batches(examples: Examples, size: int) -> Iterator[list[Example]]:
    """Chains of thought alone."""
    while True:
        yield [examples.reasoning(next(examples.problems)) for _ in range(size)]


def verify_batches(examples: Examples, pool: Callable[[], Pool], size: int) -> Iterator[list[Example]]:
    """A quarter chains of thought, a quarter scores, half choices; candidates half drafted, half made up."""
    rng = examples.rng
    while True:
        batch = [examples.reasoning(next(examples.problems)) for _ in range(size // 4)]
        for i in range(size - len(batch)):
            situation, candidates = _candidates(examples, pool(), rng)
            batch.append(examples.score(situation, rng.choice(candidates)) if i % 3 == 0 else examples.choose(situation, candidates))
        yield batch


def _candidates(examples: Examples, pool: Pool, rng: random.Random) -> tuple[Situation, list[tuple[int, ...]]]:
    """Up to five different candidates, in random order, as a draft would have sampled them."""
    if rng.random() < 0.6:
        situation, drafted = rng.choice(pool.entries)
        candidates = list(dict.fromkeys(rng.sample(drafted, rng.choice([1, 2, 3, 4, 5, 5]))))
    else:
        situation = examples.situation()
        candidates = [examples.corrupt(situation) for _ in range(rng.choice([1, 1, 2, 3, 4]))]
        candidates += [situation.gold] if rng.random() < 0.5 else []
    if len(candidates) > 1 and rng.random() < 0.25:  # none is right: rare with a good draft, and must be learnt
        candidates = [each for each in candidates if each != situation.gold] or candidates
    candidates = list(dict.fromkeys(candidates))
    rng.shuffle(candidates)
    return situation, candidates[:5]


def draw_pool(draft: Any, examples: Examples, size: int, device: str) -> Pool:
    """What the draft writes in `size` situations, six samples each."""
    entries = []
    for _ in range(0, size, 250):
        situations = [examples.situation() for _ in range(250)]
        temperature = examples.rng.choice([0.6, 0.6, 0.8])
        drafted = tiny_eval.sample_steps(draft, [s.context for s in situations], 6, temperature, examples.dialect)
        entries += list(zip(situations, drafted, strict=True))
    return Pool(entries)


@click.command()
@click.argument("role", type=click.Choice(["draft", "target", "verify"]))
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--start", type=click.Path(path_type=Path), help="verify: the target that reasons.")
@click.option("--draft", type=click.Path(path_type=Path), help="verify: the draft whose samples are judged.")
@click.option("--minutes", type=float, default=5.0, show_default=True)
@click.option("--solves", type=float, default=0.55, show_default=True, help="draft: stop at this share of validation problems.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--threads", type=int, default=1, show_default=True)
def main(
    role: str, out: Path, start: Path | None, draft: Path | None, minutes: float, solves: float, device: str, seed: int, threads: int
) -> None:
    """Train one model and write it, with its log, to --out."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    out.mkdir(parents=True, exist_ok=True)
    fast = tiny_tokenizer.save(out)
    examples = Examples(HFTokenizer(str(out)), seed)
    model = tiny_eval.load(start, device) if start else new_model(role, len(fast), fast.eos_token_id)
    trainer = Trainer(model, RATES[role], minutes, device)
    flags = torch.tensor([examples.dialect.score([], []).option_ids[i] for i in (0, 9)], device=device)
    batches = reasoning_batches(examples, BATCH[role])
    if role == "verify":
        batches = verify_batches(examples, _fresh_pool(tiny_eval.load(draft, device), examples, device), BATCH[role])
    _train(role, trainer, batches, flags, examples, out, solves, draft)


def _fresh_pool(draft: Any, examples: Examples, device: str) -> Callable[[], Pool]:
    """A pool that is drawn anew now and then, so that no situation is learnt by heart."""
    state: dict[str, Any] = {"uses": 0, "pool": None}

    def pool() -> Pool:
        if state["uses"] % 60_000 == 0:
            state["pool"] = draw_pool(draft, examples, 4000, device)
        state["uses"] += 1
        found: Pool = state["pool"]
        return found

    return pool


def _train(
    role: str,
    trainer: Trainer,
    batches: Iterator[list[Example]],
    flags: Tensor,
    examples: Examples,
    out: Path,
    solves: float,
    draft: Path | None,
) -> None:
    """Until the time is up, or the draft is good enough; the weights of the best evaluation are kept."""
    problems, best, next_look = make_arith.split("validation"), -1.0, 0.0
    while trainer.share < 1:
        loss = trainer.step(next(batches), flags)
        if trainer.share < next_look or (role == "draft" and loss > DRAFT_LOOKS_BELOW):
            continue
        next_look = trainer.share + LOOK_EVERY[role]
        figures = tiny_eval.look(role, trainer.model, draft, problems[:200], examples)
        _log(out, trainer, loss, figures)
        if role == "draft" and figures["draft"] >= solves:
            break
        value = figures.get("speccot", 0) + figures.get("specreason", 0) + figures.get("target", 0)
        if role != "draft" and value >= best:
            best = value
            save(trainer.model, out)
    if role == "draft":
        save(trainer.model, out)
    figures = tiny_eval.look(role, trainer.model, draft, problems, examples)
    _log(out, trainer, math.nan, figures)
    if role != "draft" and figures.get("speccot", 0) + figures.get("specreason", 0) + figures.get("target", 0) >= best - 0.02:
        save(trainer.model, out)


def _log(out: Path, trainer: Trainer, loss: float, figures: dict[str, float]) -> None:
    row = {
        "seconds": round(time.monotonic() - trainer.started),
        "steps": trainer.steps,
        "tokens": trainer.tokens,
        "loss": round(loss, 4),
        **figures,
    }
    with (out / "training.jsonl").open("a") as log:
        log.write(json.dumps(row) + "\n")
    click.echo(json.dumps(row))


def save(model: Any, out: Path) -> None:
    """Write bfloat16 weights; the model itself stays as it is."""
    copy = AutoModelForCausalLM.from_config(model.config, dtype=torch.bfloat16)
    copy.load_state_dict(model.state_dict())
    copy.save_pretrained(out)


if __name__ == "__main__":
    main()
