"""Runs of the scripts of this folder: one with failed chains that nobody asked for is refused, and what is finished is not done again."""

import shutil
from typing import TypeVar

import click
import msgspec

from pipeline.session.options import RunOptions
from pipeline.session.prepare import load_plan
from pipeline.session.run import SessionResult, run
from pipeline.sweep.sweep import SweepResult

R = TypeVar("R", SessionResult, SweepResult)


def whole(result: R, name: str = "") -> R:
    """`result`, where every chain of the run or sweep is done. Raises `click.ClickException` where chains failed: the time of dead chains
    is no speed, and their answers are no accuracy; and the error that ended it early."""
    if result.error is not None:
        raise result.error
    if result.failed:
        raise click.ClickException(f"{name or result.folder}: {result.failed} chains failed; no figure is made of such a run")
    return result


def make(options: RunOptions, name: str) -> None:
    """Make the run of `options`, called `name`, unless it is in its folder, whole; what else is there is removed."""
    if is_finished(options):
        return
    assert options.output is not None
    shutil.rmtree(options.output, ignore_errors=True)
    click.echo(f"  {name}", err=True)
    whole(run(options), name)


def is_finished(options: RunOptions) -> bool:
    """Whether this very run is in its folder, whole."""
    assert options.output is not None
    try:
        card = msgspec.json.decode((options.output / "run.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return False
    decided = {"batch_size": options.batch_size, "samples": options.samples, "seed": options.seed, "status": "finished"}
    same_graph = card["graph_digest"] == load_plan(options.graph, options.engines, options.settings).digest
    return same_graph and card["input"]["limit"] == options.limit and all(card[name] == value for name, value in decided.items())
