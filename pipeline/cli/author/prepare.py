"""`pipeline prepare NAME`: a published data set as Parquet that `pipeline run` reads."""

from pathlib import Path

import click
import msgspec

from pipeline.cli.commands import command, json_option, option, overwrite_option
from pipeline.cli.located import LocalPath
from pipeline.cli.terminal import print_notice, print_page
from pipeline.data.prepare import PreparedData
from pipeline.data.prepare import prepare as start


@command()
@click.argument("name")
@option("--from", "origin", metavar="FILE|hub", help="The published data: JSON lines, JSON, Parquet or CSV; or hub, to download them.")
@option("-o", "--output", type=LocalPath(), metavar="FILE", help="Parquet file.  [default: data/NAME.parquet]")
@overwrite_option
@option("--allow-mismatch", is_flag=True, help="Accept other rows than the known ones.")
@json_option
def prepare(name: str, origin: str | None, output: Path | None, overwrite: bool, allow_mismatch: bool, as_json: bool) -> None:
    """Prepare the published data set NAME (see `pipeline list data`).

    The number of rows and the digest must be the known ones; otherwise nothing is written.
    """
    place = output or Path("data") / f"{name}.parquet"
    prepared = start(name, origin, place, overwrite=overwrite, allow_mismatch=allow_mismatch)
    if prepared.mismatch:
        print_notice(f"warning: {prepared.origin}: {prepared.mismatch}; results are not comparable with the published ones")
    print_page(msgspec.json.encode(prepared) if as_json else _sentence(prepared))


def _sentence(prepared: PreparedData) -> str:
    return f"{prepared.output}: {prepared.rows:,} problems, digest {prepared.digest}{', unexpected' if prepared.mismatch else ''}"
