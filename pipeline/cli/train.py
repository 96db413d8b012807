"""`pipeline train draft` and `select`: LoRA adapters for a draft and a target."""

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from pipeline.cli.options import LocalPath, option, problems_of
from pipeline.cli.terminal import print_line, print_notice
from pipeline.engines.models import check_model, read_card, resolve
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import GraphError, UsageError, require
from pipeline.training.config import CONFIGS, Task, TrainConfig, load_config
from pipeline.training.data import read_data
from pipeline.training.examples import read_held_out

QUIET = {"HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Set before the libraries that read them are imported: TRL reports every trainer to the hub otherwise, and tokenizers warn of forks."""
NO_LIMIT = 1 << 40
"""The context length, in tokens, of a model that states none."""


def _training(function: Callable[..., None]) -> click.Command:
    """A command with the argument and the options of both trainings."""
    folder = "Folder of the adapter, instead of CONFIG's output."
    setting = "Set a key of CONFIG: lora.rank=16. May be repeated."
    function = option("--resume", is_flag=True, help="Continue from the last checkpoint in the folder.")(function)
    function = option("-o", "--output", type=LocalPath(), metavar="DIR", help=folder)(function)
    function = option("-s", "--set", "settings", multiple=True, metavar="KEY=VALUE", help=setting)(function)
    return click.command()(click.argument("config", type=click.Path(path_type=Path))(function))


@_training
def draft(**options: Any) -> None:
    """Train a draft model on its target's reasoning (thinking behaviour alignment, SCoT 3.3), as the training file CONFIG says.

    CONFIG names the data: files of `pipeline export --as sft`.
    """
    _train("draft", **options)


@_training
def select(**options: Any) -> None:
    """Train a target to choose among drafts, to reject them all, or to score a step (SCoT 3.4), as the training file CONFIG says.

    CONFIG names the data: files of `pipeline export --as selection`.
    """
    _train("select", **options)


def _train(task: Task, config: Path, settings: Sequence[str], output: Path | None, resume: bool) -> None:
    """Check everything that can be checked without the model, then train."""
    said = load_config(config, CONFIGS[task], settings=settings, output=output)
    folder = Path(str(said.output))
    if folder.exists() and not resume and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: already exists; add --resume to continue, or choose another folder with --output")
    paths, test_sets = problems_of(*said.data), {name: problems_of(name) for name in said.test_sets}
    require("pipeline train", "train", "trl", "peft", "datasets")
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        model = resolve("model", said.model)
    except GraphError as error:
        raise GraphError(f"model: {said.model}", error.what) from error
    longest = _longest(said, model)
    tokenizer = HFTokenizer(model)
    data = read_data(task, said, paths, read_held_out(test_sets), tokenizer, longest)
    for notice in data.notices:
        print_notice(notice)
    trainer: Any = import_module("pipeline.training.trainer")
    base_name = str(Path(model).absolute()) if model == said.model and Path(model).is_dir() else said.model
    try:
        trainer.train(said, model, base_name, data, resume=resume, tell=print_notice)
    except KeyboardInterrupt:
        print_notice(f"interrupted; --resume continues from the last checkpoint in {folder}")
        raise
    print_line(f"{folder}: adapter written; name it under `adapters` in an engines file")


def _longest(config: TrainConfig, model: str) -> int:
    """The maximum number of tokens of an example. Raises `GraphError` for a model that is not here and cannot be had, or whose files are
    damaged, and for a `max_length` beyond it."""
    check_model("model", model)
    card = read_card(model)
    if config.max_length is not None and card.max_model_len is not None and config.max_length > card.max_model_len:
        raise GraphError("max_length", f"is {config.max_length:,}, and {config.model} was made for {card.max_model_len:,} tokens")
    return config.max_length or card.max_model_len or NO_LIMIT
