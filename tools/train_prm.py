"""Trains the bundled process reward model: two rows of numbers on a frozen body, on one CPU core in a few minutes.

    python tools/train_prm.py --out pipeline/models/tiny-prm

The body is the first layers of tiny-target, unchanged; what is trained is how likely `+` and `-` are after a step's blank
line. Right steps are the generator's; wrong ones are what tiny-draft samples, and right ones with another number or step put in.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import make_arith
import torch
import train_tiny
from make_arith import Problem
from tiny_examples import Examples
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from pipeline.engines.tokenizer import HFTokenizer
from pipeline.graph.load import load_reward_model
from pipeline.reasoning.reward_prompts import RewardPromptBuilder, Thought

MODELS = Path("pipeline/models")
PRM = Path("graphs/rewards/prm-tiny.yaml")
"""How the model is asked."""
DRAFTED, TEMPERATURE = 5, 0.6
LAYERS, DECAY = 5, 1e-5
"""Chosen on the validation problems: with four layers the AUC is .87, with six no better; training.jsonl has all that was tried."""
SITUATIONS = 4000
"""Problems of the training."""
PART = 200
"""Sequences computed together."""


class Judged(NamedTuple):
    """A prompt that asks about a step, and whether the step is right."""

    ids: list[int]
    right: bool


class Judge:
    """Makes prompts with their labels, through the package's own code, so that training and serving agree to the last id."""

    def __init__(self, seed: int) -> None:
        folder = str(MODELS / "tiny-target")
        prompt = load_reward_model(PRM)[1]
        self.examples, self._end = Examples(HFTokenizer(folder), seed), prompt.thought_end
        self.builder = RewardPromptBuilder(self.examples.builder.tokenizer, prompt, str(PRM))
        self._draft = train_tiny.load(MODELS / "tiny-draft")

    def judged(self, problems: Sequence[Problem], *, made_up: bool) -> Iterator[Judged]:
        """For a random step of each problem what the draft samples there, and if `made_up` also a right and a wrong step."""
        examples = self.examples
        situations = [examples.situation(problem) for problem in problems]
        drafted = train_tiny.sample_steps(self._draft, [s.context for s in situations], DRAFTED, TEMPERATURE, examples.builder)
        for situation, samples in zip(situations, drafted, strict=True):
            extra = [situation.gold, examples.corrupt(situation)] if made_up else []
            for step in dict.fromkeys([*samples, *extra]):
                ids = self._ask(situation.problem.text, situation.context[situation.asked :], step)
                yield Judged(ids, tuple(step) == situation.gold)

    def _ask(self, problem: str, so_far: Sequence[int], step: Sequence[int]) -> list[int]:
        decode, thought = self.examples.builder.tokenizer.decode, Thought(self._end)
        thought.commit(decode(so_far))
        return self.builder.ids(problem, [*thought.steps, *thought.steps_of(decode(step))])


@torch.no_grad()
def features(target: Any, judged: Sequence[Judged]) -> Tensor:
    """What the head sees of each prompt: the body ends after `LAYERS` layers."""
    rows = []
    for start in range(0, len(judged), PART):
        part = judged[start : start + PART]
        ids = nn.utils.rnn.pad_sequence([torch.tensor(each.ids) for each in part], batch_first=True)
        hidden = target.model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states[LAYERS]
        rows.append(target.model.norm(hidden[range(len(part)), [len(each.ids) - 1 for each in part]]))
    return torch.cat(rows)


def train(seen: Tensor, right: Tensor, embedding: Tensor, options: tuple[int, int]) -> Tensor:
    """The rows of both answers that make the right one likeliest among all tokens; the other tokens' rows stay."""
    rows = embedding[list(options)].clone().requires_grad_()
    others = seen @ embedding.T
    others[:, list(options)] = -torch.inf
    rest = others.logsumexp(-1, keepdim=True)
    optimiser = torch.optim.LBFGS([rows], max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(torch.cat([seen @ rows.T, rest], 1), 1 - right.long()) + DECAY * rows.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return rows.detach().bfloat16().float()


def measure(seen: Tensor, right: Tensor, rows: Tensor) -> dict[str, float]:
    """How well the rewards of two rows tell right steps from wrong ones."""
    rewards = (seen @ rows.T).softmax(-1)[:, 0]
    good, bad = rewards[right], rewards[~right]
    above = (good[:, None] > bad).float() + 0.5 * (good[:, None] == bad).float()
    found = {
        "steps": len(right),
        "right": right.float().mean(),
        "auc": above.mean(),
        "accuracy": ((rewards > 0.5) == right).float().mean(),
        "reward_right": good.mean(),
        "reward_wrong": bad.mean(),
        "log_loss": nn.functional.binary_cross_entropy(rewards, right.float()),
    }
    return {name: round(float(value), 5) for name, value in found.items()}


def save(target: Any, rows: Tensor, options: tuple[int, int], out: Path) -> None:
    """The first layers of the target with the two rows, in bfloat16, and its tokenizer."""
    config = type(target.config)(**target.config.to_dict() | {"num_hidden_layers": LAYERS, "layer_types": None})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    kept = {name: value for name, value in target.state_dict().items() if name in model.state_dict()}
    model.load_state_dict(kept)
    with torch.no_grad():
        model.get_input_embeddings().weight[list(options)] = rows.bfloat16()
    model.save_pretrained(out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODELS / "tiny-target" / name, out / name)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(out: Path) -> None:
    """Train the reward model and write it, with its log, to --out."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    judge, target = Judge(0), train_tiny.load(MODELS / "tiny-target").eval()
    embedding, options = target.get_input_embeddings().weight.detach(), judge.builder.option_ids
    problems = [next(judge.examples.problems) for _ in range(SITUATIONS)]
    sets = {
        "training": list(judge.judged(problems, made_up=True)),
        "validation": list(judge.judged(make_arith.split("validation"), made_up=False)),
        "test": list(judge.judged(make_arith.split("test"), made_up=False)),
    }
    seen = {name: features(target, judged) for name, judged in sets.items()}
    right = {name: torch.tensor([each.right for each in judged]) for name, judged in sets.items()}
    rows = train(seen["training"], right["training"], embedding, options)
    out.mkdir(parents=True, exist_ok=True)
    save(target, rows, options, out)
    log = [{"set": name, "layers": LAYERS, "decay": DECAY, **measure(seen[name], right[name], rows)} for name in sets]
    (out / "training.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    click.echo("\n".join(map(json.dumps, log)))


if __name__ == "__main__":
    main()
