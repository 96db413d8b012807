"""Runs that a script of this folder keeps: what is finished is not done again."""

import shutil

import click
import msgspec

from pipeline.session.options import RunOptions
from pipeline.session.preflight import load_plan
from pipeline.session.run import run


def make(options: RunOptions, name: str) -> None:
    """Make the run of `options`, called `name`, unless it is in its folder, whole; what else is there is removed."""
    if is_finished(options):
        return
    assert options.output is not None
    shutil.rmtree(options.output, ignore_errors=True)
    click.echo(f"  {name}", err=True)
    result = run(options)
    if result.exit_code not in (0, 3):  # 3: chains failed, which the tables say or count as wrong
        raise click.ClickException(f"{name}: {result.error}")


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
