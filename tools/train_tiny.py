"""Trains the bundled draft and target models, on one CPU core in about an hour.

    python tools/train_tiny.py draft  --out pipeline/models/tiny-draft
    python tools/train_tiny.py target --out build/tiny-target-reasoning          # chain of thought alone
    python tools/train_tiny.py verify --out pipeline/models/tiny-target --start build/tiny-target-reasoning \
        --draft pipeline/models/tiny-draft

The draft stops on purpose once it solves half of the validation problems. The target learns to reason first and to
verify afterwards; everything mixed from the start is far slower. The test set is never read here.
"""

import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import make_arith
import tiny_tokenizer
import torch
from tiny_examples import NONE, Example, Examples, Situation
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Qwen3Config

from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.torch.model import cpu_has_bfloat16
from pipeline.grading.stated import boxed
from pipeline.graph.prompts import DELIMITER

SHAPES = {
    "draft": {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "num_attention_heads": 2},
    "target": {"hidden_size": 128, "num_hidden_layers": 7, "intermediate_size": 384, "num_attention_heads": 4},
}
ATTENTION = "eager"
"""While training: its backward pass is faster on a CPU than that of `sdpa`, for sequences of a few hundred tokens."""
SHOWN = 5
"""Candidates of a choice."""
RATES = {"draft": (0.02, 0.003), "target": (0.02, 0.003), "verify": (0.006, 0.001)}
"""Learning rates of Muon (matrices) and AdamW (the rest); higher ones damage what the target has learnt."""
TOLD = {4: "right_token", 5: "match", 6: "verdict"}
"""Layers told what a right candidate says next, whether the candidate says it, and what it deserves so far."""
LOOK_BELOW, LOOK_EVERY, LOOK_PROBLEMS = 0.1, 0.008, 150
"""Once its loss is below the first the draft is evaluated after each such share of the time, on that many problems: it gets too good in
seconds."""
REASONING = 0.125
"""Share of the sequences that are chains of thought while the target learns to verify: the others have one before the verification, too."""
BATCH = {"draft": 64, "target": 64, "verify": 48}
"""Sequences of a step, by role."""
TEMPERATURE = 0.6
"""Of evaluations."""
STEP_TOKENS, RESPONSE_TOKENS = 20, 96
"""More than a step and a whole response take."""


class Pool:
    """Situations with what the draft really wrote there; it grows while it is used, so that none is learnt by heart."""

    FIRST, MORE, EVERY, MOST = 1500, 300, 5000, 12_000
    """Situations at the start; new ones after so many uses; the oldest go beyond so many."""

    def __init__(self, draft: Any, examples: Examples) -> None:
        self._draft, self._examples, self._uses = draft, examples, 0
        self._entries: list[tuple[Situation, list[tuple[int, ...]]]] = []
        for _ in range(0, self.FIRST, self.MORE):
            self._grow()

    def draw(self) -> tuple[Situation, list[tuple[int, ...]]]:
        self._uses += 1
        if self._uses % self.EVERY == 0:
            self._grow()
        return self._examples.rng.choice(self._entries)

    def _grow(self) -> None:
        """Most situations in which every sample is right are left out: they teach little."""
        rng, situations = self._examples.rng, [self._examples.situation() for _ in range(self.MORE)]
        contexts, temperature = [s.context for s in situations], rng.choice([0.6, 0.6, 0.8])
        builder = self._examples.builder
        stop = [builder.tokenizer.encode(DELIMITER)[0], builder.think_close_id or 0]
        drafted = sample(self._draft, contexts, SHOWN + 1, temperature, STEP_TOKENS, stop)
        both = zip(situations, drafted, strict=True)
        self._entries += [(s, d) for s, d in both if any(each != s.gold for each in d) or rng.random() < 0.3]
        del self._entries[: -self.MOST]


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
    return AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION)


def loss_of(model: Any, batch: Sequence[Example], verifies: bool) -> Tensor:
    """Next tokens at the last layer; when it `verifies`, also what middle layers are told, and -log of the summed probability of all right
    options at the end of each verification."""

    def padded(name: str, value: int = NONE) -> Tensor:
        return nn.utils.rnn.pad_sequence([torch.tensor(getattr(each, name)) for each in batch], batch_first=True, padding_value=value)

    out = model.model(input_ids=padded("ids", 0), use_cache=False, output_hidden_states=verifies)
    logits = model.lm_head(out.last_hidden_state).float()
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), padded("next_token").flatten(), ignore_index=NONE)
    for layer, name in TOLD.items() if verifies else ():
        labels = padded(name)
        if (at := labels != NONE).any():
            said = model.lm_head(model.model.norm(out.hidden_states[layer][at])).float()
            loss = loss + 0.5 * nn.functional.cross_entropy(said, labels[at])
    ends = [(logits[row, len(each.ids) - 1].log_softmax(-1), list(each.options)) for row, each in enumerate(batch) if each.options]
    return loss - torch.stack([logprobs[right].logsumexp(-1) for logprobs, right in ends]).mean() if ends else loss


class Trainer:
    """One model, its optimisers on a cosine that ends with the time given, and its log."""

    def __init__(self, model: Any, role: str, minutes: float) -> None:
        self.model, self.seconds = model, minutes * 60
        self.rates, self.verifies = RATES[role], role == "verify"
        matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
        rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
        self.optimisers = [
            torch.optim.Muon(matrices, lr=self.rates[0], momentum=0.95, weight_decay=0.01),
            torch.optim.AdamW(rest, lr=self.rates[1], betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.started, self.steps, self.tokens, self.loss = time.process_time(), 0, 0, math.inf

    @property
    def used_s(self) -> float:
        """Seconds on a processor: a training may be paused, or share its core, and is no shorter for it."""
        return time.process_time() - self.started

    @property
    def share(self) -> float:
        """Of the time that is used up."""
        return min(1.0, self.used_s / self.seconds)

    def step(self, batch: Sequence[Example]) -> None:
        scale = min(1.0, (self.steps + 1) / 50) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * self.share)))
        for optimiser, rate in zip(self.optimisers, self.rates, strict=True):
            optimiser.param_groups[0]["lr"] = rate * scale
            optimiser.zero_grad(set_to_none=True)
        self.model.train()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cpu_has_bfloat16()):
            loss = loss_of(self.model, batch, self.verifies)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
        self.steps += 1
        self.tokens += sum(len(each.ids) for each in batch)
        self.loss = float(loss.detach())


def batches(examples: Examples, pool: Pool | None, size: int) -> Iterator[list[Example]]:
    """Chains of thought; with a `pool` a share of them, then scores and choices, two to five. Four batches at a time, each of sequences of
    about the same length, to pad less."""
    rng = examples.rng
    while True:
        thoughts = round(4 * size * (REASONING if pool else 1))
        drawn = [examples.reasoning() for _ in range(thoughts)]
        for i in range(4 * size - thoughts if pool else 0):
            situation, candidates = candidates_of(examples, pool)
            drawn.append(examples.score(situation, rng.choice(candidates)) if i % 7 < 2 else examples.choose(situation, candidates))
        drawn.sort(key=lambda each: len(each.ids))
        cut = [drawn[i : i + size] for i in range(0, len(drawn), size)]
        rng.shuffle(cut)
        yield from cut


def candidates_of(examples: Examples, pool: Pool) -> tuple[Situation, list[tuple[int, ...]]]:
    """Up to `SHOWN` different candidates, in random order, as a draft would have sampled them."""
    rng = examples.rng
    if rng.random() < 0.6:
        situation, drafted = pool.draw()
        candidates = list(dict.fromkeys(rng.sample(drafted, rng.choice([*range(1, SHOWN + 1), SHOWN]))))
    else:
        situation = examples.situation()
        candidates = [examples.corrupt(situation) for _ in range(rng.choice([1, 1, 2, 3, 4]))]
        candidates += [situation.gold] if rng.random() < 0.5 else []
    if len(candidates) > 1 and rng.random() < 0.25:  # none is right: rare with a good draft, and must be learnt
        candidates = [each for each in candidates if each != situation.gold] or candidates
    candidates = list(dict.fromkeys(candidates))
    rng.shuffle(candidates)
    return situation, candidates[:SHOWN]


def load(folder: Path, attention: str = "sdpa") -> Any:
    """A model in float32, ready to sample, or to train with another `attention`."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)


@torch.no_grad()
def sample(
    model: Any, prompts: Sequence[Sequence[int]], n: int, temperature: float, max_tokens: int, stop: Sequence[int]
) -> list[list[tuple[int, ...]]]:
    """`n` continuations of each prompt, each cut after its first id of `stop`."""
    model.eval()
    width, pad = max(map(len, prompts)), model.config.pad_token_id
    out = model.generate(
        input_ids=torch.tensor([[*[pad] * (width - len(p)), *p] for p in prompts]),
        attention_mask=torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts]),
        **{"do_sample": temperature > 0, "temperature": temperature or None, "top_k": 0 if temperature else None, "top_p": None},
        **{"num_return_sequences": n, "max_new_tokens": max_tokens, "eos_token_id": list(stop), "pad_token_id": pad},
    )[:, width:].tolist()
    ends = [next((i for i, token in enumerate(row) if token in stop), len(row) - 1) for row in out]
    rows = [tuple(row[: end + 1]) for row, end in zip(out, ends, strict=True)]
    return [rows[i * n : (i + 1) * n] for i in range(len(prompts))]


@click.command()
@click.argument("role", type=click.Choice(["draft", "target", "verify"]))
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--start", type=click.Path(path_type=Path), help="verify: the target that reasons.")
@click.option("--draft", type=click.Path(path_type=Path), help="verify: the draft whose samples are judged.")
@click.option("--minutes", type=float, default=5.0, show_default=True, help="Of processor time.")
@click.option("--solves", type=float, default=0.42, show_default=True, help="draft: stop at this share of validation problems.")
def main(role: str, out: Path, start: Path | None, draft: Path | None, minutes: float, solves: float) -> None:
    """Train one model until the time is up, or the draft is good enough; write it, with its log, to --out."""
    if role == "verify" and not (start and draft):
        raise click.UsageError("verify needs --start, the target that reasons, and --draft")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    out.mkdir(parents=True, exist_ok=True)
    fast = tiny_tokenizer.save(out)
    examples = Examples(HFTokenizer(str(out)), 0)
    model = load(start, ATTENTION) if start else new_model(role, len(fast), fast.eos_token_id)
    judged = load(draft) if draft else None
    drawn = batches(examples, Pool(judged, examples) if judged else None, BATCH[role])
    trainer, problems, next_look = Trainer(model, role, minutes), make_arith.split("validation"), 0.0
    while trainer.share < 1:
        trainer.step(next(drawn))
        if role == "draft" and trainer.loss < LOOK_BELOW and trainer.share >= next_look:
            next_look = trainer.share + LOOK_EVERY
            if look(trainer, problems[:LOOK_PROBLEMS], examples, out) >= solves:
                break
    look(trainer, problems, examples, out)
    model.to(torch.bfloat16).save_pretrained(out)


def look(trainer: Trainer, problems: Sequence[make_arith.Problem], examples: Examples, out: Path) -> float:
    """Evaluate and log; returns the share of `problems` that the model solves by itself."""
    prompts, tokenizer = [examples.builder.generation(each.text) for each in problems], examples.builder.tokenizer
    said = sample(trainer.model, prompts, 1, TEMPERATURE, RESPONSE_TOKENS, list(tokenizer.eos_ids))
    right = sum(boxed(tokenizer.decode(rows[0])) == str(each.answer) for each, rows in zip(problems, said, strict=True))
    figures = {"steps": trainer.steps, "tokens": trainer.tokens, "loss": round(trainer.loss, 4), "solved": round(right / len(problems), 4)}
    row = json.dumps({"seconds": round(trainer.used_s)} | figures)
    with (out / "training.jsonl").open("a") as log:
        log.write(row + "\n")
    click.echo(row)
    return figures["solved"]


if __name__ == "__main__":
    main()
