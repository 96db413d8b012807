"""`pipeline prepare NAME`: a published data set as Parquet that `pipeline run` reads."""

from pathlib import Path

import click
import msgspec

from pipeline.cli.commands import command, json_option, option
from pipeline.cli.located import LocalPath
from pipeline.cli.terminal import print_notice, print_page
from pipeline.data.prepare import prepare as start


@command()
@click.argument("name")
@option("--from", "origin", metavar="FILE|hub", help="The published data: JSON lines, JSON, Parquet or CSV; or hub, to download them.")
@option("-o", "--output", type=LocalPath(), metavar="FILE", help="Parquet file.  [default: data/NAME.parquet]")
@json_option
def prepare(name: str, origin: str | None, output: Path | None, as_json: bool) -> None:
    """Prepare the published data set NAME (see `pipeline list data`).

    A warning says where the number of rows or the digest is not the known one.
    """
    prepared = start(name, origin, output or Path("data") / f"{name}.parquet")
    if prepared.mismatch:
        print_notice(f"warning: {prepared.mismatch}")
    print_page(msgspec.json.encode(prepared) if as_json else f"{prepared.output}: {prepared.rows:,} problems, digest {prepared.digest}")
