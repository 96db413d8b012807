"""Trains the reward model of the pair `wordy`, on one CPU core in an hour and a quarter.

    python tools/train_tiny.py target --pair wordy --seed 7 --out build/wordy-prm-reasoning --minutes 12
    python tools/wordy_prm.py --start build/wordy-prm-reasoning --out pipeline/models/wordy-prm

It shares no weights and no training sequences with the target whose choices it is to judge. It learns to reason first, from
another seed, then how likely `+` and `-` are after a step's blank line; besides that, as the target does, what a right step says next and
whether a step says it. Right and wrong steps are the generator's and what `wordy-draft` samples. The test problems are measured at the end.
"""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import make_wordy
import tiny_eval
import tiny_tokenizer
import torch
import train_prm
from tiny_examples import Example
from train_tiny import ATTENTION, WORDS, Pool, Trainer, by_length, candidates_of, save
from wordy_examples import MOST, WordyExamples

from pipeline.engines.tokenizer import HFTokenizer
from pipeline.graph.plugins import engine_specs
from pipeline.reasoning.reward_prompts import RewardPromptBuilder
from pipeline.rewards.spec import load_reward_model

DRAFT = Path("pipeline/models/wordy-draft")
PRM = Path("graphs/rewards/prm-wordy.yaml")
"""How the model is asked."""
BATCH = 24
LOOKS = 3
"""Evaluations on the way and at the end."""


class Judge:
    """Draws training sequences, through the package's own prompts, so that training and serving agree to the last id."""

    def __init__(self, folder: Path, seed: int) -> None:
        """`folder`: where the tokenizer lies."""
        tokenizer = HFTokenizer(str(folder))
        self.examples = WordyExamples(tokenizer, seed, "target")
        self.asks = RewardPromptBuilder(tokenizer, load_reward_model(PRM, engine_specs()).prompt, str(PRM))
        self.draft = tiny_eval.load(DRAFT)

    def batches(self, pool: Pool) -> Iterator[list[Example]]:
        """Candidates of all kinds, four batches at a time, by length, to pad less."""
        rng = self.examples.rng
        while True:
            drawn = []
            for _ in range(4 * BATCH):
                situation, candidates = candidates_of(self.examples, pool)
                drawn.append(self.examples.judged(situation, rng.choice(candidates), self.asks))
            yield from by_length(drawn, BATCH, rng)

    def held_out(self, split: str) -> list[Example]:
        """What the draft samples at a random step of each problem of a split, each different sample once."""
        situations = [self.examples.situation(problem) for problem in make_wordy.split(split)]
        contexts = [situation.context for situation in situations]
        drafted = tiny_eval.sample_steps(
            self.draft, contexts, train_prm.DRAFTED, tiny_eval.TEMPERATURE, self.examples.builder, self.examples.limits
        )
        both = zip(situations, drafted, strict=True)
        return [self.examples.judged(situation, step, self.asks) for situation, steps in both for step in dict.fromkeys(steps)]


@torch.no_grad()
def measure(model: Any, judged: Sequence[Example], options: tuple[int, int]) -> dict[str, float]:
    """How well the rewards tell right steps from wrong ones; `options` are the ids of the answers good and bad."""
    model.eval()
    logits = []
    for start in range(0, len(judged), train_prm.PART):
        part = judged[start : start + train_prm.PART]
        width = max(len(each.ids) for each in part)
        ids = torch.tensor([[*each.ids, *[0] * (width - len(each.ids))] for each in part])
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        logits.append(model.lm_head(hidden[range(len(part)), [len(each.ids) - 1 for each in part]])[:, list(options)])
    return train_prm.figures(torch.cat(logits), torch.tensor([each.options == options[:1] for each in judged]))


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--start", type=click.Path(path_type=Path), required=True, help="A model that has learnt to reason, and no target.")
@click.option("--minutes", type=float, default=60.0, show_default=True)
@click.option("--seed", type=int, default=7, show_default=True, help="Another one than that of the target's training.")
@click.option("--threads", type=int, default=1, show_default=True)
@click.option("--compile", "compiled", is_flag=True, help="As of train_tiny.py.")
def main(out: Path, start: Path, minutes: float, seed: int, threads: int, compiled: bool) -> None:
    """Train the reward model and write it, with its log, to --out."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    out.mkdir(parents=True, exist_ok=True)
    tiny_tokenizer.save(out, WORDS, MOST)
    judge = Judge(out, seed)
    sets = {name: judge.held_out(name) for name in ("validation", "test")}
    judge.examples.rng = random.Random(seed)
    pool = Pool(judge.draft, judge.examples, train_prm.DRAFTED - 1)
    trainer = Trainer(tiny_eval.load(start, attention=ATTENTION), "reward", minutes, "cpu", compiled)
    batches = judge.batches(pool)
    for look in range(1, LOOKS + 1):
        while trainer.share < look / LOOKS:
            trainer.step(next(batches))
        save(trainer.model, out)
        log(out, trainer, "validation", measure(trainer.model, sets["validation"], judge.asks.option_ids))
    log(out, trainer, "test", measure(tiny_eval.load(out), sets["test"], judge.asks.option_ids))


def log(out: Path, trainer: Trainer, split: str, figures: dict[str, float]) -> None:
    """Add a row to the training's log, and print it."""
    row = {"set": split, "seconds": trainer.seconds_so_far, "updates": trainer.steps, "tokens": trainer.tokens, **figures}
    with (out / "training.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    click.echo(json.dumps(row))


if __name__ == "__main__":
    main()
