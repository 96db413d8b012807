"""Writes the model cards of the pair `wordy` from what their trainings logged and what was measured afterwards.

python tools/tiny_eval.py pipeline/models/wordy-draft pipeline/models/wordy-target --pair wordy --split test > build/wordy.json
python tools/wordy_cards.py --accuracy build/wordy.json --target MINUTES --verify MINUTES --reason MINUTES --reward MINUTES
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

MODELS = Path("pipeline/models")
CONTEXT = (
    "A toy model for testing the papers' claims, which the pair `tiny` cannot show: the target thinks at length and has second thoughts, "
    "some of which talk it out of a correct total; the draft is terse and leaves the product out in three of ten steps that have one. A "
    "step is scored 9, 7, 5, 4, 3, 2 or 0 by how much of it is correct (`tools/make_wordy.py`); a choice has up to 10 candidates. It "
    "solves the word problems of `datasets/wordy` and nothing else. Any UTF-8 text can be encoded (byte fallback) and decodes exactly."
)
ABOUT = {
    "wordy-draft": "The draft. It learnt terse and sloppy reasoning, and to continue from the target's first tokens; its training was "
    "stopped early on purpose.",
    "wordy-target": "The target. It reasons, scores a step with one digit and chooses among up to 10 candidates with one token.",
    "wordy-prm": "The process reward model (`pipeline score RUN --prm prm-wordy`). The reward is P(`+`) / (P(`+`) + P(`-`)) for the token "
    "after a step's blank line. It was trained from random weights on sequences of its own: it shares no weights with the target whose "
    "choices it judges. Both learnt from the same generator what a correct step is.",
}
REWARD = "wordy-prm"
COMMANDS = {
    "wordy-draft": ("python tools/train_tiny.py draft --pair wordy --out pipeline/models/wordy-draft --minutes 15",),
    "wordy-target": (
        "python tools/train_tiny.py target --pair wordy --out build/wordy-target --minutes {target:g} --threads 2 --compile",
        "python tools/train_tiny.py verify --pair wordy --start build/wordy-target --draft pipeline/models/wordy-draft "
        "--out build/wordy-target-verify --minutes 40 --compile  # ended after 31 minutes",
        "python tools/train_tiny.py verify --pair wordy --start build/wordy-target-verify --draft pipeline/models/wordy-draft "
        "--out pipeline/models/wordy-target --minutes {verify:g} --compile --seed 1",
    ),
    "wordy-prm": (
        "python tools/train_tiny.py target --pair wordy --seed 7 --out build/wordy-prm-reasoning --minutes {reason:g} --compile",
        "python tools/wordy_prm.py --start build/wordy-prm-reasoning --out build/wordy-prm-first --minutes 15 --compile",
        "python tools/wordy_prm.py --start build/wordy-prm-first --out build/wordy-prm-second --minutes 11 --seed 8 --compile",
        "python tools/wordy_prm.py --start build/wordy-prm-second --out pipeline/models/wordy-prm --minutes {reward:g} --seed 9 --compile",
    ),
}

UNSEEN = "It has never seen other problems or other prompts."
LIMITS = {
    "wordy-draft": UNSEEN,
    "wordy-target": f"{UNSEEN} Scores are trained on the seven values above.",
    "wordy-prm": f"{UNSEEN} In training all steps before the judged one are correct, so rewards after an accepted wrong step mean less.",
}

REMARKS = {
    "wordy-target": "The labels of the first `verify` training contradicted each other: a step about another event counted as correct if "
    "its equations were, and a thought before the judged step never ended a doubt with a wrong total. The script is that of the second "
    "training.",
}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as Markdown, with the columns of all of them."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [" | ".join(columns), "|".join(["---"] * len(columns))]
    lines += [" | ".join(_cell(row.get(name, "")) for name in columns) for row in rows]
    return "\n".join(f"| {line} |" for line in lines).replace("| ---", "|---").replace("--- |", "---|")


def _cell(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, float) and value.is_integer() and value > 1 else str(value)


def shape(folder: Path) -> str:
    """The sizes of a model in a sentence."""
    config = json.loads((folder / "config.json").read_text())
    layers, width, heads = (config[name] for name in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    header = (folder / "model.safetensors").read_bytes()
    tensors = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])
    parameters = sum(_size(tensor["shape"]) for name, tensor in tensors.items() if name != "__metadata__")
    return (
        f"Qwen3 architecture: {layers} layers, width {width}, {heads} heads, {parameters / 1e6:.2f}M parameters in bfloat16, "
        f"{config['vocab_size']} tokens, context {config['max_position_embeddings']:,}."
    )


def _size(sizes: Sequence[int]) -> int:
    found = 1
    for each in sizes:
        found *= each
    return found


def accuracies(measured: Mapping[str, Any]) -> Iterator[str]:
    """What was measured on the test problems."""
    yield "## Accuracy"
    rows = [
        {"": f"{role} alone, {how}", "accuracy": measured[f"{role}_{name}"], "fallback": ""}
        for role in ("draft", "target")
        for name, how in (("alone", f"T={measured['temperature']}"), ("greedy", "greedy"))
    ]
    loops = {"specreason": "SpecReason (N=1, score >= 7)", "speccot_5": "SpecCoT (N=5)", "speccot_10": "SpecCoT (N=10)"}
    rows += [{"": said, **measured[name]} for name, said in loops.items()]
    yield table(rows)
    yield (
        f"`python tools/tiny_eval.py pipeline/models/wordy-draft pipeline/models/wordy-target --pair wordy --split {measured['split']}` on "
        f"{measured['problems']} problems: the bfloat16 weights, computed in float32 by torch {measured['torch']}, seed 0. One run: the "
        "standard error of a share near .9 is .013."
    )


def rewards(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """How well right steps of the test problems are told from wrong ones."""
    yield "## Right steps against wrong ones"
    said = {"steps": "steps", "right": "of them right", "auc": "AUC", "accuracy": "accuracy at 0.5"}
    said |= {"reward_right": "mean reward of right ones", "reward_wrong": "of wrong ones"}
    yield table([{"set": row["set"], **{said[name]: row[name] for name in said}} for row in (rows[-2], rows[-1])])
    yield (
        "The steps are what `wordy-draft` samples (5 at T=0.6, each different one once) at a random step of each of the 500 problems; "
        "right ones have a score of 7 or more by `tools/make_wordy.py`. The test problems were measured at the end of each training."
    )


def card(name: str, minutes: Mapping[str, float], measured: Mapping[str, Any]) -> str:
    """The whole card of one model."""
    folder = MODELS / name
    trained_on = "" if name == REWARD else "---\ndatasets: [wordy]\n---\n"
    parts = [f"{trained_on}# {name}", ABOUT[name], CONTEXT, shape(folder)]
    rows = [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]
    parts += rewards(rows) if name == REWARD else accuracies(measured)
    parts += ["## Training", "```\n" + "\n".join(COMMANDS[name]).format(**minutes) + "\n```"]
    parts.append(
        "Seeded, but its length is given in minutes, so another machine trains other weights. Log, on validation problems unless a row "
        "says otherwise" + ("" if name == REWARD else " (evaluations on the way: 150 of the 500 problems)") + ":"
    )
    parts += [table(rows), *([REMARKS[name]] if name in REMARKS else []), "## Limits", LIMITS[name]]
    return "\n\n".join(parts) + "\n"


@click.command()
@click.option("--accuracy", type=click.Path(path_type=Path), required=True, help="What tools/tiny_eval.py printed.")
@click.option("--target", type=float, required=True, help="Minutes that the target learnt to reason.")
@click.option("--verify", type=float, required=True, help="Minutes that it learnt to verify, the second time.")
@click.option("--reason", type=float, required=True, help="Minutes that the reward model learnt to reason.")
@click.option("--reward", type=float, required=True, help="Minutes that it learnt to judge, the third time.")
def main(accuracy: Path, **minutes: float) -> None:
    """Write README.md of every model of the pair that is there."""
    measured = json.loads(accuracy.read_text())
    for name in ABOUT:
        if (MODELS / name / "training.jsonl").is_file():
            (MODELS / name / "README.md").write_text(card(name, minutes, measured))


if __name__ == "__main__":
    main()
