"""A training on the bundled target, as it was carried out: its data, its folder, and the examples that it was measured on."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, NamedTuple

from tests.support.commands import pipeline
from tests.support.training_data import choices, replies, write_config, write_lines


class Training(NamedTuple):
    """A training of the bundled target on choices among whole thoughts, which it was never taught."""

    config: Path
    folder: Path

    def words(self, folder: Path, *more: str) -> list[str]:
        """The command that carries it out in `folder`."""
        return ["train", "select", str(self.config), "--output", str(folder), *more]

    def validation(self) -> list[dict[str, Any]]:
        """The rows that it was measured on."""
        return [row for row in choices(120) if row["split"] == "validation"]


def training(folder: Path, **values: object) -> Training:
    """Choices and a config in `folder`, and where an undisturbed training of it will be: 26 steps of one process."""
    data = write_lines(folder / "choices.jsonl", choices(120))
    said: dict[str, object] = {"model": "bundled:tiny-target", "data": [str(data)], "output": str(folder / "straight")}
    said |= {"learning_rate": 3e-3, "epochs": 2, "batch_size": 8}
    return Training(write_config(folder / "select.yaml", **{**said, **values}), folder / "straight")


def train(*words: str | Path) -> CompletedProcess[str]:
    """Carry a command out in this process, which loads TRL once; TRL warns of much that is not ours."""
    import torch

    torch.set_num_threads(1)  # as every training has it, results are the same to the bit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pipeline(*words)


def draft_config(folder: Path, count: int = 24, **values: object) -> Path:
    """A config of a short training of the bundled draft."""
    data = write_lines(folder / "thoughts.jsonl", replies(count))
    said = {"model": "bundled:tiny-draft", "data": [str(data)], "output": str(folder / "out")}
    return write_config(folder / "draft.yaml", **{**said, "epochs": 1, **values})


def log_of(folder: Path) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """What the trainer logged of its steps, and of its validations."""
    rows = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [row for row in rows if "loss" in row], [row for row in rows if "eval_loss" in row]


def chosen(logprobs: Sequence[float]) -> int:
    """The likeliest option."""
    return max(range(len(logprobs)), key=logprobs.__getitem__)
