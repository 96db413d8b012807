"""Trains the bundled draft and target models, on a CPU in about an hour or on a GPU in minutes.

    python tools/train_tiny.py draft  --out pipeline/models/tiny-draft
    python tools/train_tiny.py target --out build/tiny-target-reasoning          # chain of thought alone
    python tools/train_tiny.py verify --out pipeline/models/tiny-target --start build/tiny-target-reasoning \
        --draft pipeline/models/tiny-draft
    python tools/train_tiny.py draft --pair rambling --out pipeline/models/rambling-draft    # its target is wordy-target

The draft stops on purpose once it solves half of the validation problems. The target learns to reason first and to
verify afterwards; everything mixed from the start is far slower. The test set is never read here.
"""

import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import tiny_eval
import tiny_tokenizer
import torch
from make_wordy import GAINS, LOSSES
from make_wordy import WORDS as MORE_WORDS
from tiny_examples import NONE, Example, Examples
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Qwen3Config
from wordy_examples import MOST, WordyExamples

from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.torch.spec import cpu_has_bfloat16

SHAPES = {
    "draft": {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "num_attention_heads": 2},
    "target": {"hidden_size": 128, "num_hidden_layers": 7, "intermediate_size": 384, "num_attention_heads": 4},
}
ATTENTION = "eager"
"""While training: its backward pass is faster on a CPU than that of `sdpa`, for sequences of a few hundred tokens."""
WORDS = (*MORE_WORDS, *GAINS, *LOSSES)
"""Words that the tokenizer of the pair `wordy` has also at the beginning of a text."""
MOST_SHOWN = {"tiny": 5, "wordy": MOST, "rambling": MOST}
"""Candidates of a choice in training, by pair."""
RATES = {"draft": (0.02, 0.003), "target": (0.02, 0.003), "verify": (0.006, 0.001), "reward": (0.006, 0.001)}
"""Learning rates of Muon (matrices) and AdamW (the rest); higher ones damage what the target has learnt."""
FORESEES, COMPARES, JUDGES = 4, 5, 6
"""Layers told what a right candidate says next, whether the candidate says it, and what it deserves so far."""
DRAFT_LOOKS_BELOW = {"tiny": 0.1, "wordy": 0.2, "rambling": math.inf}
"""Loss under which the draft is worth an evaluation, by pair; it gets too good within seconds then."""
LOOK_EVERY = {"draft": 0.008, "target": 0.3, "verify": 0.34, "rambling": 0.2}
"""Evaluations, as shares of the time, by role; a rambling draft may be trained to the end, as it talks itself out of right totals."""
LOOK_PROBLEMS = 150
"""Of an evaluation on the way."""
REASONING = {"tiny": 0.125, "wordy": 0.2}
"""Share of the sequences that are chains of thought while a target learns to verify, by pair: those of `tiny` have one before every
verification, too."""
BATCH = {"tiny": {"draft": 64, "target": 64, "verify": 48}, "wordy": {"draft": 64, "target": 24, "verify": 16}, "rambling": {"draft": 32}}
"""Sequences of a step, by pair and role; those of `wordy` are two to three times as long."""


class Pool:
    """Situations with what the draft really wrote there; it grows while it is used, so that none is learnt by heart."""

    FIRST, MORE, EVERY, MOST = 1500, 300, 5000, 12_000
    """Situations at the start; new ones after so many uses; the oldest go beyond so many."""

    def __init__(self, draft: Any, examples: Any, most: int) -> None:
        """`most`: candidates of a choice."""
        self.most = most
        self._draft, self._examples, self._uses = draft, examples, 0
        self._entries: list[tuple[Any, list[tuple[int, ...]]]] = []
        for _ in range(0, self.FIRST, self.MORE):
            self._grow()

    def draw(self) -> tuple[Any, list[tuple[int, ...]]]:
        self._uses += 1
        if self._uses % self.EVERY == 0:
            self._grow()
        return self._examples.rng.choice(self._entries)

    def _grow(self) -> None:
        """Most situations in which every sample is right are left out: they teach little."""
        rng, situations = self._examples.rng, [self._examples.situation() for _ in range(self.MORE)]
        contexts, temperature = [s.context for s in situations], rng.choice([0.6, 0.6, 0.8])
        examples = self._examples
        drafted = tiny_eval.sample_steps(self._draft, contexts, self.most + 1, temperature, examples.builder, examples.limits)
        both = zip(situations, drafted, strict=True)
        self._entries += [(s, d) for s, d in both if not all(examples.is_right(s, each) for each in d) or rng.random() < 0.3]
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


def collate(batch: Sequence[Example], device: str) -> dict[str, Tensor]:
    """Examples as right-padded tensors."""
    width = max(len(each.ids) for each in batch)

    def pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
        return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], device=device)

    return {
        "ids": pad([each.ids for each in batch], 0),
        "next_token": pad([each.next_token for each in batch], NONE),
        "right_token": pad([each.right_token for each in batch], NONE),
        "match": pad([each.match for each in batch], NONE),
        "verdict": pad([each.verdict for each in batch], NONE),
    }


def loss_of(model: Any, body: Any, batch: Sequence[Example], device: str, verifies: bool) -> Tensor:
    """Next tokens at the last layer; when it `verifies`, also what middle layers are told, and the decisions. `body` is the model below
    its head, compiled or not."""
    tensors = collate(batch, device)
    out = body(input_ids=tensors["ids"], use_cache=False, output_hidden_states=verifies)
    logits = model.lm_head(out.last_hidden_state).float()
    told = tensors["next_token"].flatten()
    summed = nn.functional.cross_entropy(logits.flatten(0, 1), told, ignore_index=NONE, reduction="sum")
    loss = summed / (told != NONE).sum().clamp(min=1)
    if not verifies:
        return loss
    for layer, name in ((FORESEES, "right_token"), (COMPARES, "match"), (JUDGES, "verdict")):
        at = tensors[name] != NONE
        if at.any():
            said = model.lm_head(model.model.norm(out.hidden_states[layer][at])).float()
            loss = loss + 0.5 * nn.functional.cross_entropy(said, tensors[name][at])
    return loss + decision_loss(logits, batch)


def decision_loss(logits: Tensor, batch: Sequence[Example]) -> Tensor:
    """-log of the summed probability of all right options, at the end of each verification."""
    asked = [(row, len(each.ids) - 1, each.options) for row, each in enumerate(batch) if each.options]
    if not asked:
        return logits.new_zeros(())
    rows, ends, options = zip(*asked, strict=True)
    logprobs = logits[list(rows), list(ends)].log_softmax(-1)
    right = torch.zeros_like(logprobs, dtype=torch.bool)
    for row, ids in enumerate(options):
        right[row, list(ids)] = True
    return -logprobs.masked_fill(~right, -math.inf).logsumexp(-1).mean()


def processor_s() -> float:
    """Seconds of this process on a processor, per thread: a training may be paused, or share its cores, and is no shorter for it."""
    return time.process_time() / torch.get_num_threads()


class Trainer:
    """One model, its optimisers on a cosine that ends with the time given, and its log."""

    def __init__(self, model: Any, role: str, minutes: float, device: str, compiled: bool = False) -> None:
        self.model, self.device, self.seconds = model.to(device), device, minutes * 60
        self._body = torch.compile(model.model, dynamic=True) if compiled else model.model
        self.rates, self.verifies = RATES[role], role in ("verify", "reward")
        matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
        rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
        self.optimisers = [
            torch.optim.Muon(matrices, lr=self.rates[0], momentum=0.95, weight_decay=0.01),
            torch.optim.AdamW(rest, lr=self.rates[1], betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.started, self.steps, self.tokens, self.loss = processor_s(), 0, 0, math.inf

    @property
    def share(self) -> float:
        """Of the time that is used up."""
        return min(1.0, (processor_s() - self.started) / self.seconds)

    @property
    def seconds_so_far(self) -> int:
        """Since the start, as `processor_s` counts them."""
        return round(processor_s() - self.started)

    def step(self, batch: Sequence[Example]) -> float:
        scale = min(1.0, (self.steps + 1) / 50) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * self.share)))
        for optimiser, rate in zip(self.optimisers, self.rates, strict=True):
            optimiser.param_groups[0]["lr"] = rate * scale
            optimiser.zero_grad(set_to_none=True)
        self.model.train()
        with torch.autocast(
            self.device.split(":")[0], dtype=torch.bfloat16, enabled=not self.device.startswith("cpu") or cpu_has_bfloat16()
        ):
            loss = loss_of(self.model, self._body, batch, self.device, self.verifies)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
        self.steps += 1
        self.tokens += sum(len(each.ids) for each in batch)
        self.loss = float(loss.detach())
        return self.loss


def reasoning_batches(examples: Any, size: int) -> Iterator[list[Example]]:
    """Chains of thought alone."""
    while True:
        yield from by_length([examples.reasoning(next(examples.problems)) for _ in range(4 * size)], size, examples.rng)


def by_length(drawn: list[Example], size: int, rng: random.Random) -> list[list[Example]]:
    """Batches of sequences of about the same length, to pad less, in random order."""
    drawn.sort(key=lambda each: len(each.ids))
    batches = [drawn[i : i + size] for i in range(0, len(drawn), size)]
    rng.shuffle(batches)
    return batches


def verify_batches(examples: Any, pool: Pool, size: int, reasoning: float) -> Iterator[list[Example]]:
    """A share of chains of `reasoning`, then scores and choices, two to five; four batches at a time, by length, to pad less."""
    rng = examples.rng
    while True:
        drawn = [examples.reasoning(next(examples.problems)) for _ in range(round(4 * size * reasoning))]
        for i in range(4 * size - len(drawn)):
            situation, candidates = candidates_of(examples, pool)
            drawn.append(examples.score(situation, rng.choice(candidates)) if i % 7 < 2 else examples.choose(situation, candidates))
        yield from by_length(drawn, size, rng)


def candidates_of(examples: Any, pool: Pool) -> tuple[Any, list[tuple[int, ...]]]:
    """Up to `pool.most` different candidates, in random order, as a draft would have sampled them."""
    rng = examples.rng
    if rng.random() < 0.6:
        situation, drafted = pool.draw()
        candidates = list(dict.fromkeys(rng.sample(drafted, rng.choice([*range(1, pool.most + 1), pool.most]))))
    else:
        situation = examples.situation()
        candidates = [examples.corrupt(situation) for _ in range(rng.choice([1, 1, 2, 3, 4]))]
        candidates += [examples.right_candidate(situation)] if rng.random() < 0.5 else []
    if len(candidates) > 1 and rng.random() < 0.25:  # none is right: rare with a good draft, and must be learnt
        candidates = [each for each in candidates if not examples.is_right(situation, each)] or candidates
    candidates = list(dict.fromkeys(candidates))
    rng.shuffle(candidates)
    return situation, candidates[: pool.most]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says."""

    role: str
    pair: str
    out: Path
    start: Path | None
    draft: Path | None
    minutes: float
    solves: float
    device: str
    seed: int
    threads: int
    compile: bool

    @property
    def look_every(self) -> float:
        """The share of the time between evaluations."""
        return LOOK_EVERY["rambling" if self.pair == "rambling" else self.role]


@click.command()
@click.argument("role", type=click.Choice(["draft", "target", "verify"]))
@click.option("--pair", type=click.Choice(list(MOST_SHOWN)), default="tiny", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--start", type=click.Path(path_type=Path), help="verify: the target that reasons.")
@click.option("--draft", type=click.Path(path_type=Path), help="verify: the draft whose samples are judged.")
@click.option("--minutes", type=float, default=5.0, show_default=True, help="Of processor time, per thread.")
@click.option("--solves", type=float, default=0.42, show_default=True, help="draft: stop at this share of validation problems.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--threads", type=int, default=1, show_default=True)
@click.option("--compile", is_flag=True, help="Compile the model: a CPU takes a minute for it, and less time from then on.")
def main(**given: Any) -> None:
    """Train one model and write it, with its log, to --out."""
    options = Options(**given)
    if options.role == "verify" and not (options.start and options.draft):
        raise click.UsageError("verify needs --start, the target that reasons, and --draft")
    if options.pair == "rambling" and options.role != "draft":
        raise click.UsageError("rambling has only a draft of its own; its target is that of the pair wordy")
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    fast, examples = new_examples(options)
    if options.start:
        model = tiny_eval.load(options.start, options.device, ATTENTION)
    else:
        model = new_model(options.role, len(fast), fast.eos_token_id)
    batches = reasoning_batches(examples, BATCH[options.pair][options.role])
    if options.draft:
        pool = Pool(tiny_eval.load(options.draft, options.device), examples, MOST_SHOWN[options.pair])
        batches = verify_batches(examples, pool, BATCH[options.pair][options.role], REASONING[options.pair])
    train(options, Trainer(model, options.role, options.minutes, options.device, options.compile), batches, examples)


def new_examples(options: Options) -> tuple[Any, Any]:
    """The tokenizer of the pair, which is written next to the model, and what draws its training sequences."""
    if options.pair == "tiny":
        return tiny_tokenizer.save(options.out), Examples(HFTokenizer(str(options.out)), options.seed)
    fast = tiny_tokenizer.save(options.out, WORDS, MOST)
    writer = "target" if options.role != "draft" else "draft" if options.pair == "wordy" else "rambling"
    return fast, WordyExamples(HFTokenizer(str(options.out)), options.seed, writer)


def train(options: Options, trainer: Trainer, batches: Iterator[list[Example]], examples: Any) -> None:
    """Until the time is up, or, for the draft, until it is good enough; the weights are written at every evaluation."""
    problems, next_look = tiny_eval.PAIRS[options.pair].split("validation"), options.look_every
    while trainer.share < 1:
        loss = trainer.step(next(batches))
        if trainer.share < next_look or (options.role == "draft" and loss > DRAFT_LOOKS_BELOW[options.pair]):
            continue
        next_look = trainer.share + options.look_every
        save(trainer.model, options.out)
        value = look(options, trainer, problems[:LOOK_PROBLEMS], examples)
        if options.role == "draft" and value >= options.solves:
            break
    save(trainer.model, options.out)
    look(options, trainer, problems, examples)


def look(options: Options, trainer: Trainer, problems: Sequence[Any], examples: Any) -> float:
    """Evaluate and log; returns how good the draft is."""
    figures = tiny_eval.look(options.role, trainer.model, options.draft, problems, examples)
    row = {"seconds": trainer.seconds_so_far, "steps": trainer.steps, "tokens": trainer.tokens, "loss": round(trainer.loss, 4), **figures}
    with (options.out / "training.jsonl").open("a") as log:
        log.write(json.dumps(row) + "\n")
    click.echo(json.dumps(row))
    return figures.get("draft", 0.0)


def save(model: Any, out: Path) -> None:
    """Write bfloat16 weights; the model itself stays as it is."""
    copy = AutoModelForCausalLM.from_config(model.config, dtype=torch.bfloat16)
    copy.load_state_dict(model.state_dict())
    copy.save_pretrained(out)


if __name__ == "__main__":
    main()
