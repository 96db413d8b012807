"""Accuracies of the bundled models: alone, under SpecReason and under SpecCoT, batched over all problems at once.

    python tools/tiny_eval.py pipeline/models/tiny-draft pipeline/models/tiny-target --split test

A plain second reading of the two loops, over transformers' own `generate`: the package is measured against it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import make_arith
import make_wordy
import torch
from make_arith import Limits
from transformers import AutoModelForCausalLM

from pipeline.engines.tokenizer import HFTokenizer
from pipeline.grading.stated import boxed
from pipeline.graph.prompts import DELIMITER
from pipeline.reasoning.prompts import OptionPrompt, PromptBuilder

TEMPERATURE, THRESHOLD, SITUATIONS, TINY = 0.6, 7, 200, make_arith.LIMITS
PAIRS: dict[str, Any] = {"tiny": make_arith, "wordy": make_wordy, "rambling": make_wordy}
"""The module with the problems of each pair."""
CANDIDATES = {"tiny": (5,), "wordy": (5, 10), "rambling": (5,)}
"""Candidates of a choice that each pair is measured with."""
LIMITS = {"tiny": TINY, "wordy": make_wordy.LIMITS, "rambling": make_wordy.RAMBLING_LIMITS}


def load(folder: Path | None, device: str = "cpu", attention: str = "sdpa") -> Any:
    """A model in float32, ready to sample, or to train with another `attention`."""
    assert folder is not None
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).to(device)


@torch.no_grad()
def sample(
    model: Any, prompts: Sequence[Sequence[int]], n: int, temperature: float, max_tokens: int, stop: Sequence[int]
) -> list[list[tuple[int, ...]]]:
    """`n` continuations of each prompt, each cut after its first id of `stop`."""
    model.eval()
    device, width, pad = model.device, max(map(len, prompts)), model.config.pad_token_id
    ids = torch.tensor([[*[pad] * (width - len(p)), *p] for p in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
    out = model.generate(
        input_ids=ids,
        attention_mask=mask,
        do_sample=temperature > 0,
        temperature=temperature or None,
        top_k=0 if temperature else None,
        top_p=None,
        num_return_sequences=n,
        max_new_tokens=max_tokens,
        eos_token_id=list(stop),
        pad_token_id=pad,
    )[:, width:].tolist()
    rows = [_cut(row, stop) for row in out]
    return [rows[i * n : (i + 1) * n] for i in range(len(prompts))]


def _cut(row: Sequence[int], stop: Sequence[int]) -> tuple[int, ...]:
    at = next((i for i, token in enumerate(row) if token in stop), len(row) - 1)
    return tuple(row[: at + 1])


def sample_steps(
    model: Any, contexts: Sequence[Sequence[int]], n: int, temperature: float, builder: PromptBuilder, limits: Limits = TINY
) -> list[list[tuple[int, ...]]]:
    """`n` next steps of each context."""
    return sample(model, contexts, n, temperature, limits.step, [builder.tokenizer.encode(DELIMITER)[0], builder.think_close_id or 0])


@torch.no_grad()
def decide(model: Any, prompts: Sequence[OptionPrompt]) -> list[int]:
    """Index of the likeliest option of each verification."""
    model.eval()
    chosen: list[int] = []
    for start in range(0, len(prompts), 100):
        part = prompts[start : start + 100]
        width = max(len(each.ids) for each in part)
        batch = torch.tensor([[*each.ids, *[0] * (width - len(each.ids))] for each in part], device=model.device)
        hidden = model.model(input_ids=batch, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[range(len(part)), [len(each.ids) - 1 for each in part]])
        chosen += [int(logits[i, list(each.option_ids)].argmax()) for i, each in enumerate(part)]
    return chosen


def alone(model: Any, problems: Sequence[Any], builder: PromptBuilder, temperature: float = TEMPERATURE, limits: Limits = TINY) -> float:
    """Share of `problems` that one model solves by itself."""
    eos = list(builder.tokenizer.eos_ids)
    said = sample(model, [builder.generation(p.text) for p in problems], 1, temperature, limits.response, eos)
    return _share(boxed(builder.tokenizer.decode(rows[0])) == str(p.answer) for p, rows in zip(problems, said, strict=True))


def loop(
    draft: Any, target: Any, problems: Sequence[Any], builder: PromptBuilder, candidates: int, limits: Limits = TINY
) -> dict[str, float]:
    """SpecCoT with several candidates, SpecReason with one: accuracy, fallback rate, and how good the verdicts are."""
    contexts = [builder.generation(p.text) for p in problems]
    if candidates > 1:
        for context, [guidance] in zip(contexts, sample(target, contexts, 1, TEMPERATURE, 8, [builder.think_close_id or 0]), strict=True):
            context += guidance
    live, steps, rejected = list(range(len(problems))), 0, 0
    for _ in range(limits.steps):
        if not live:
            break
        drafted = sample_steps(draft, [contexts[i] for i in live], candidates, TEMPERATURE, builder, limits)
        chosen = verdicts(target, [contexts[i] for i in live], drafted, builder, score=candidates == 1)
        fall = [i for i, step in zip(live, chosen, strict=True) if step is None]
        own = (
            dict(zip(fall, sample_steps(target, [contexts[i] for i in fall], 1, TEMPERATURE, builder, limits), strict=True)) if fall else {}
        )
        for i, step in zip(live, chosen, strict=True):
            contexts[i] += own[i][0] if step is None else step
        steps, rejected = steps + len(live), rejected + len(fall)
        live = [i for i in live if contexts[i][-1] != builder.think_close_id]
    closed = [c if c[-1] == builder.think_close_id else [*c, *builder.close_thought_ids] for c in contexts]
    said = sample(target, closed, 1, TEMPERATURE, limits.answer, list(builder.tokenizer.eos_ids))
    right = _share(boxed(builder.tokenizer.decode(rows[0])) == str(p.answer) for p, rows in zip(problems, said, strict=True))
    return {"accuracy": right, "fallback": round(rejected / steps, 4)}


def verdicts(
    target: Any, contexts: Sequence[Sequence[int]], drafted: Sequence[Sequence[tuple[int, ...]]], builder: PromptBuilder, *, score: bool
) -> list[tuple[int, ...] | None]:
    """The accepted candidate of each context, or None; with `score`, of one candidate each."""
    if score:
        prompts = [builder.score(c, d[0]) for c, d in zip(contexts, drafted, strict=True)]
        return [d[0] if digit >= THRESHOLD else None for d, digit in zip(drafted, decide(target, prompts), strict=True)]
    distinct = [list(dict.fromkeys(d)) for d in drafted]
    prompts = [builder.choose(c, d) for c, d in zip(contexts, distinct, strict=True)]
    return [d[best - 1] if best else None for d, best in zip(distinct, decide(target, prompts), strict=True)]


def look(role: str, model: Any, draft: Path | None, problems: Sequence[Any], examples: Any) -> dict[str, float]:
    """The figures that matter while a model is trained."""
    limits = examples.limits
    if role != "verify":
        return {role: alone(model, problems, examples.builder, limits=limits)}
    drafter = load(draft, str(model.device))
    speccot, specreason = (loop(drafter, model, problems, examples.builder, n, limits) for n in (5, 1))
    return {
        **verification(drafter, model, examples),
        "target": alone(model, problems, examples.builder, limits=limits),
        "speccot": speccot["accuracy"],
        "speccot_fallback": speccot["fallback"],
        "specreason": specreason["accuracy"],
        "specreason_fallback": specreason["fallback"],
    }


def verification(draft: Any, target: Any, examples: Any) -> dict[str, float]:
    """One-token verdicts on the draft's samples: right where a candidate is right, and where none is.

    From every second set the right candidates are taken out, as they are rarely all wrong.
    """
    builder, situations = examples.builder, [examples.situation() for _ in range(SITUATIONS)]
    drafted = sample_steps(draft, [s.context for s in situations], 5, TEMPERATURE, builder, examples.limits)
    figures: dict[str, float] = {}
    for name, shown in (("choose", 5), ("score", 1)):
        rows = []
        for place, (situation, steps) in enumerate(zip(situations, drafted, strict=True)):
            wrong = [each for each in steps[:shown] if not examples.is_right(situation, each)]
            rows.append((situation, (wrong or steps[:shown]) if place % 2 else steps[:shown]))
        chosen = verdicts(target, [each.context for each, _ in rows], [steps for _, steps in rows], builder, score=shown == 1)
        found = [
            (step is not None and examples.is_right(each, step), step is None, any(examples.is_right(each, one) for one in steps))
            for step, (each, steps) in zip(chosen, rows, strict=True)
        ]
        figures[f"{name}_right"] = _share(right for right, _, possible in found if possible)
        figures[f"{name}_none"] = _share(none for _, none, possible in found if not possible)
    return figures


def _share(right: Any) -> float:
    values = list(right)
    return round(sum(values) / max(1, len(values)), 4)


@click.command()
@click.argument("draft", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--pair", type=click.Choice(list(PAIRS)), default="tiny", show_default=True)
@click.option("--split", type=click.Choice(["validation", "test"]), default="validation", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--device", default="cpu", show_default=True)
def main(draft: Path, target: Path, pair: str, split: str, seed: int, device: str) -> None:
    """Print the accuracies of a pair of models as one JSON line."""
    torch.manual_seed(seed)
    builder, problems = PromptBuilder(HFTokenizer(str(target))), PAIRS[pair].split(split)
    limits = LIMITS[pair]
    models = {"draft": load(draft, device), "target": load(target, device)}
    figures: dict[str, Any] = {f"{role}_alone": alone(model, problems, builder, limits=limits) for role, model in models.items()}
    figures |= {f"{role}_greedy": alone(model, problems, builder, 0.0, limits) for role, model in models.items()}
    figures["specreason"] = loop(*models.values(), problems, builder, 1, limits)
    figures |= {f"speccot_{count}": loop(*models.values(), problems, builder, count, limits) for count in CANDIDATES[pair]}
    click.echo(json.dumps({"split": split, "problems": len(problems), "temperature": TEMPERATURE, "torch": torch.__version__, **figures}))


if __name__ == "__main__":
    main()
