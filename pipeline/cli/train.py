"""`pipeline train draft` and `select`: LoRA adapters for a draft and a target; `pipeline train merge`: one in the weights of its model."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import click

from pipeline.cli.commands import command, option
from pipeline.cli.located import LocalPath, problems_of
from pipeline.cli.terminal import print_line, print_notice
from pipeline.training.lora.config import CONFIGS, Task, load_config
from pipeline.training.lora.merge import DType, MergeRequest
from pipeline.training.lora.merge import merge as merged
from pipeline.training.lora.train import TrainRequest
from pipeline.training.lora.train import train as trained

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

    CONFIG names the data: files of `pipeline export --as sft`, or SCoT's published thoughts as they are. Serve the adapter, or merge it.
    """
    _train("draft", **options)


@command()
@of_training
def select(**options: Any) -> None:
    """Train a target to choose among drafts, to reject them all, or to score a step (SCoT 3.4), as the training file CONFIG says.

    CONFIG names the data: files of `pipeline export --as selection`, or SCoT's published choices as they are.
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
    words = ["pipeline", "train", "merge", str(adapter), "-o", str(output), *(["--model", model] if model else [])]
    words += ["--dtype", dtype] if dtype != "auto" else []
    merged(
        MergeRequest(
            adapter=adapter, output=output, model=model, dtype=dtype, trust_remote_code=trust_remote_code, command=shlex.join(words)
        )
    )
    print_line(f"{output}: merged; name this folder as the `model` of an engine")


def _train(task: Task, config: Path, settings: Sequence[str], output: Path | None, resume: bool) -> None:
    """Train by a config file, and print where the adapter is."""
    loaded = load_config(config, CONFIGS[task], settings=settings, output=output)
    words = ["pipeline", "train", task, str(config), *(word for each in settings for word in ("--set", each))]
    words += [*(["--output", str(output)] if output else []), *(["--resume"] if resume else [])]
    request = TrainRequest(
        task=task,
        config=loaded,
        files=list(zip(loaded.data, problems_of(*loaded.data), strict=True)),
        test_sets={name: problems_of(name) for name in loaded.test_sets},
        resume=resume,
        command=shlex.join(words),
    )
    try:
        is_first = trained(request, print_notice)
    except KeyboardInterrupt:
        print_notice(f"interrupted; --resume continues from the last checkpoint in {request.folder}")
        raise
    if is_first:
        print_line(f"{request.folder}: adapter, card and report written; pipeline train merge {request.folder} -o DIR merges it")
