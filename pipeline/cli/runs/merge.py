"""`pipeline merge RUN... --output RUN`: the runs of all shards of an input become one run."""

from pathlib import Path

import click

from pipeline.cli.main import print_line
from pipeline.cluster.merge import merge as merged


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Run folder to write.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def merge(runs: tuple[Path, ...], output: Path, debug: bool) -> None:
    """Merge the finished runs of all shards of an input (`pipeline run --shard`) into one run.

    The shards must be of the same graph, engines, input and options; their folders stay as they are.
    """
    run = merged(runs, output)
    print_line(f"{output}: {len(runs)} shards, {run.input.rows:,} problems, {run.totals.chains:,} chains")
