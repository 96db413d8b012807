"""`pipeline train draft` and `select`: LoRA adapters for a draft and a target; `pipeline train merge`: one in the weights of its model."""

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import click

from pipeline.cli.commands import command, option
from pipeline.cli.located import LocalPath, problems_of
from pipeline.cli.terminal import print_line, print_notice
from pipeline.engines.models import check_model, read_card, resolve
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import GraphError, MissingExtra, UsageError
from pipeline.training.lora.config import CONFIGS, RECORD, Task, TrainConfig, load_config
from pipeline.training.lora.data import read_data
from pipeline.training.lora.merge import DType
from pipeline.training.lora.merge import merge as merged
from pipeline.training.problems import HeldOutProblems

NEEDED = ("trl", "peft", "datasets")
"""Packages of the extra `train`."""
QUIET = {"HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Set before the libraries that read them are imported: TRL reports every trainer to the hub otherwise, and tokenizers warn of forks."""
NO_LIMIT = 1 << 40
"""The context length, in tokens, of a model that states none."""
TRAINING = (
    click.argument("config", type=click.Path(path_type=Path)),
    option("-s", "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set a key of CONFIG: lora.rank=16. May be repeated."),
    option("-o", "--output", type=LocalPath(), metavar="DIR", help="Folder of the adapter, instead of CONFIG's output."),
    option("--resume", is_flag=True, help="Continue from the last checkpoint in the folder."),
)


def of_training(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the argument and the options of both trainings."""
    for parameter in reversed(TRAINING):
        function = parameter(function)
    return function


@command()
@of_training
def draft(**options: Any) -> None:
    """Train a draft model on its target's reasoning (thinking behaviour alignment, SCoT 3.3), as the training file CONFIG says.

    CONFIG names the data: files of `pipeline export --as sft`. Serve the adapter, or merge it.
    """
    _train("draft", **options)


@command()
@of_training
def select(**options: Any) -> None:
    """Train a target to choose among drafts, to reject them all, or to score a step (SCoT 3.4), as the training file CONFIG says.

    CONFIG names the data: files of `pipeline export --as selection`.
    """
    _train("select", **options)


@command()
@click.argument("adapter", type=LocalPath())
@option("-o", "--output", type=LocalPath(), required=True, metavar="DIR", help="Folder of the merged model.")
@option("--model", metavar="MODEL", help="Base model: folder, hub name or bundled:NAME.  [default: the one that ADAPTER names]")
@option(
    "--dtype",
    type=click.Choice(get_args(DType)),
    metavar="NAME",
    default="auto",
    show_default=True,
    help="Data type of the weights: auto (the model's), float32, bfloat16 or float16.",
)
@option("--trust-remote-code", is_flag=True, help="Run code that comes with the model.")
def merge(adapter: Path, output: Path, model: str | None, dtype: DType, trust_remote_code: bool) -> None:
    """Write a copy of ADAPTER's model with the adapter merged into its weights. ADAPTER is a folder or bundled:NAME."""
    merged(str(adapter), output, model, dtype, trust_remote_code=trust_remote_code)
    print_line(f"{output}: merged; name this folder as the `model` of an engine")


def _train(task: Task, config: Path, settings: Sequence[str], output: Path | None, resume: bool) -> None:
    """Check everything that can be checked without the model, then train. Of several processes that train together
    (`accelerate launch`) each comes here, and the first one alone tells."""
    said = load_config(config, CONFIGS[task], settings=settings, output=output)
    is_first = int(os.environ.get("RANK") or 0) == 0
    tell = print_notice if is_first else lambda line: None
    folder = Path(str(said.output))
    if not (folder / RECORD).is_file() and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: already exists and holds no training; choose another folder with --output")
    paths, test_sets = problems_of(*said.data), {name: problems_of(name) for name in said.test_sets}
    for package in NEEDED:
        if (found := find_spec(package)) is None or found.origin is None:  # a folder `datasets` may pass for the package
            raise MissingExtra("pipeline train", package, "train")
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        model = resolve("model", said.model)
    except GraphError as error:
        raise GraphError(f"model: {said.model}", error.what) from error
    longest = _longest(said, model)
    tokenizer = HFTokenizer(model, trust_remote_code=said.trust_remote_code)
    data = read_data(task, said, paths, HeldOutProblems(test_sets), tokenizer, longest)
    for notice in data.notices:
        tell(notice)
    trainer: Any = import_module("pipeline.training.lora.trainer")
    base_name = str(Path(model).absolute()) if model == said.model and Path(model).is_dir() else said.model
    try:
        trainer.train(said, model, base_name, data, resume=resume, tell=tell)
    except KeyboardInterrupt:
        tell(f"interrupted; --resume continues from the last checkpoint in {folder}")
        raise
    if is_first:
        print_line(f"{folder}: adapter and card written; pipeline train merge {folder} -o DIR merges it")


def _longest(config: TrainConfig, model: str) -> int:
    """The maximum number of tokens of an example. Raises `GraphError` for a model that is not here and cannot be had, or whose files are
    damaged, and for a `max_length` beyond it."""
    check_model("model", model)
    card = read_card(model)
    if config.max_length is not None and card.max_model_len is not None and config.max_length > card.max_model_len:
        raise GraphError("max_length", f"is {config.max_length:,}, and {config.model} was made for {card.max_model_len:,} tokens")
    return config.max_length or card.max_model_len or NO_LIMIT
