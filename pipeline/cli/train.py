"""`pipeline train draft` and `select`: LoRA adapters for a draft and a target; `pipeline train merge`: one in the weights of its model."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import click

from pipeline.cli.located import problems_of
from pipeline.cli.main import print_line
from pipeline.cli.terminal.notices import print_notice
from pipeline.cli.terminal.places import LocalPath
from pipeline.training.lora.config import CONFIGS, Task, load_config
from pipeline.training.lora.merge import DType, MergeRequest
from pipeline.training.lora.merge import merge as merged
from pipeline.training.lora.train import TrainRequest
from pipeline.training.lora.train import train as trained


@click.group()
def train() -> None:
    """Train LoRA adapters for the draft and the target, as Speculative Chain-of-Thought does, and merge them into their models."""


TRAINING = (
    click.argument("config", type=click.Path(path_type=Path)),
    click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a key of CONFIG, as in lora.rank=16. Repeatable."),
    click.option("--output", type=LocalPath(), metavar="DIR", help="Folder of the adapter, instead of CONFIG's output."),
    click.option("--resume", is_flag=True, help="Go on from the last checkpoint in the folder."),
)
debug_option = click.option("--debug", is_flag=True, help="Show tracebacks.")


def of_training(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the argument and the options of both trainings."""
    for parameter in reversed((*TRAINING, debug_option)):
        command = parameter(command)
    return command


@train.command()
@of_training
def draft(**options: Any) -> None:
    """Train a draft model on what its target thought (thinking behaviour alignment, SCoT 3.3), by the training file CONFIG.

    Its data are files of `pipeline export --format sft`, or SCoT's published thoughts as they are. Serve the adapter, or merge it.

    Exit codes: 0 trained; 1 the training could not go on, --resume goes on with it; 2 something is wrong with CONFIG, data or model, and
    nothing was begun; 130 interrupted.
    """
    _train("draft", **options)


@train.command()
@of_training
def select(**options: Any) -> None:
    """Train a target to choose among drafts, to reject them all, or to score a step (SCoT 3.4), by the training file CONFIG.

    Its data are files of `pipeline export --format selection`, or SCoT's published choices as they are.

    Exit codes: 0 trained; 1 the training could not go on, --resume goes on with it; 2 something is wrong with CONFIG, data or model, and
    nothing was begun; 130 interrupted.
    """
    _train("select", **options)


@train.command()
@click.argument("adapter", type=LocalPath())
@click.option("-o", "--output", type=LocalPath(), required=True, metavar="DIR", help="Folder of the merged model.")
@click.option("--model", metavar="MODEL", help="Base model: folder, hub name or bundled:NAME.  [default: the one that ADAPTER names]")
@click.option(
    "--dtype", type=click.Choice(get_args(DType)), default="auto", show_default=True, help="Number type of the weights; auto: the model's."
)
@click.option("--trust-remote-code", is_flag=True, help="Let code run that comes with the model.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def merge(adapter: Path, output: Path, model: str | None, dtype: DType, trust_remote_code: bool, debug: bool) -> None:
    """Write the model of ADAPTER, a folder or bundled:NAME, with the adapter in its weights, tokenizer and chat template included.

    Exit codes: 0 written; 1 DIR cannot be written; 2 ADAPTER and its model do not fit together, or DIR is in use.
    """
    words = ["pipeline", "train", "merge", str(adapter), "-o", str(output), *(["--model", model] if model else [])]
    words += ["--dtype", dtype] if dtype != "auto" else []
    merged(
        MergeRequest(
            adapter=adapter, output=output, model=model, dtype=dtype, trust_remote_code=trust_remote_code, command=shlex.join(words)
        )
    )
    print_line(f"{output}: merged; name this folder as the `model` of an engine")


def _train(task: Task, config: Path, settings: Sequence[str], output: Path | None, resume: bool, debug: bool) -> None:
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
        print_notice(f"interrupted; --resume goes on from the last checkpoint in {request.folder}")
        raise
    if is_first:
        print_line(f"{request.folder}: adapter, card and report written; pipeline train merge {request.folder} -o DIR merges it")
