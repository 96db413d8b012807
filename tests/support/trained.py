"""A training on the bundled target, as it was carried out: its data, its folder, and the examples that it was measured on."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from pipeline.bundled import find_file
from pipeline.engines.adapters import CONFIG, WEIGHTS
from pipeline.graph.loader import load_prompts
from pipeline.training.held_out import HeldOutProblems
from pipeline.training.lora.config import SelectConfig, load_config
from pipeline.training.lora.data import Data, prepare
from pipeline.training.lora.files import read_files
from pipeline.training.lora.output import last_checkpoint, read_record, write_record
from pipeline.training.lora.tokens import Encoder, SelectExample
from tests.support.chat_models import chat_model
from tests.support.commands import spawned
from tests.support.training_data import published_choices, published_thoughts, write_config

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "pipeline.cli.main"]
"""What `accelerate launch` comes to where there is no GPU: two processes that train together."""


class Training(NamedTuple):
    """A training of the bundled target on choices among whole thoughts, which it was never taught."""

    config: Path
    folder: Path

    def words(self, folder: Path, *more: str) -> list[str]:
        """The command that carries it out in `folder`."""
        return ["train", "select", str(self.config), "--output", str(folder), *more]

    def data(self) -> Data:
        """Its examples."""
        config = load_config(self.config, SelectConfig)
        files = read_files("select", [(name, Path(name)) for name in config.data])
        encoder = Encoder(chat_model("tiny-target"), config.model, load_prompts(find_file(config.prompts, "prompts file")))
        return prepare(files, config, HeldOutProblems({}), encoder, 4096)

    def validation(self) -> Iterator[SelectExample]:
        """The examples that it was measured on."""
        return (example for example in self.data().validation if isinstance(example, SelectExample))


def training(folder: Path, **values: object) -> Training:
    """Choices and a config in `folder`, and where an undisturbed training of it will be: 26 steps of one process."""
    choices = published_choices(folder / "choices.jsonl", 120)
    said: dict[str, object] = {
        "model": "bundled:tiny-target",
        "data": [str(choices)],
        "output": str(folder / "straight"),
        "prompts": "default",
    }
    said |= {"device": "cpu", "learning_rate": 3e-3, "epochs": 2, "batch_size": 8, "validation": 0.2}
    said |= {"log_every": 2, "evaluate_every": 6, "save_every": 4}
    config = write_config(folder / "select.yaml", **{**said, **values})
    return Training(config, folder / "straight")


def carried_out(folder: Path) -> Training:
    """An undisturbed training."""
    made = training(folder, loss="sum")
    done = spawned(*made.words(made.folder))
    assert done.returncode == 0, done.stderr
    return made


def draft_config(folder: Path, count: int = 24, **values: object) -> Path:
    """A config of a short training of the bundled draft."""
    data = published_thoughts(folder / "thoughts.jsonl", count)
    said = {"model": "bundled:tiny-draft", "data": [str(data)], "output": str(folder / "out"), "prompts": "default", "device": "cpu"}
    return write_config(folder / "draft.yaml", **{**said, "epochs": 1, "log_every": 1, "save_every": 2, **values})


def as_killed(folder: Path) -> int:
    """Make of the folder of a training that is over what it was one checkpoint before; the step of that."""
    last, _ = last_checkpoint(folder)
    assert last is not None
    shutil.rmtree(last)
    for name in (CONFIG, WEIGHTS):
        (folder / name).unlink()
    write_record(folder, msgspec.structs.replace(read_record(folder), outcome=None))
    return last_checkpoint(folder)[1]


def chosen(logprobs: Sequence[float]) -> int:
    """The likeliest option."""
    return max(range(len(logprobs)), key=logprobs.__getitem__)
