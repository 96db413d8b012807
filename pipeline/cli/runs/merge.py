"""`pipeline runs merge RUN... --output RUN`: the runs of all shards of an input become one run."""

from pathlib import Path

import click

from pipeline.cli.commands import command, option
from pipeline.cli.located import RunFolder, run_folder
from pipeline.cli.main import print_line
from pipeline.cluster.merge import merge as merged


@command()
@click.argument("runs", nargs=-1, required=True, type=RunFolder(), metavar="RUN...")
@option("-o", "--output", type=click.Path(), required=True, metavar="DIR", help="Run folder to write, or its s3:// or gs:// URL.")
def merge(runs: tuple[Path, ...], output: str) -> None:
    """Merge the finished runs of all shards of an input (`pipeline run --shard`) into one run.

    The shards must be of the same graph, engines, input and options; their folders stay as they are.
    """
    run = merged(runs, run_folder(output, new=True))
    print_line(f"{output}: {len(runs)} shards, {run.input.rows:,} problems, {run.totals.chains:,} chains")
