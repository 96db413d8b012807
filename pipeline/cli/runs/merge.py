"""`pipeline runs merge RUN... --output RUN`: the runs of all shards of an input become one run."""

import click

from pipeline.cli.commands import command, option
from pipeline.cli.located import Located, RunFolder, written_run
from pipeline.cli.terminal import print_line
from pipeline.cluster.merge import merge as merged


@command()
@click.argument("runs", nargs=-1, required=True, type=RunFolder(), metavar="RUN...")
@option("-o", "--output", type=click.Path(), required=True, metavar="DIR", help="Run folder to write, or its s3:// or gs:// URL.")
def merge(runs: tuple[Located, ...], output: str) -> None:
    """Merge the finished runs of all shards of an input (`pipeline run --shard`) into one run.

    The shards must be of the same graph, engines, input and options; their folders stay as they are.
    """
    run = merged([run.path for run in runs], written_run(output, new=True).path)
    print_line(f"{output}: {len(runs)} shards, {run.input.rows:,} problems, {run.totals.chains:,} chains")
