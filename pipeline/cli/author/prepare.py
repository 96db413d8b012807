"""`pipeline prepare NAME`: a published data set as Parquet that `pipeline run` reads."""

from pathlib import Path

import click
import msgspec

from pipeline.cli.commands import command, json_option, option, overwrite_option
from pipeline.cli.located import LocalPath
from pipeline.cli.terminal import print_notice, print_page
from pipeline.data.prepare import PreparedData
from pipeline.data.prepare import prepare as start
from pipeline.data.recipe import find_recipe


@command()
@click.argument("name")
@option("--from", "origin", metavar="FILE|hub", help="The published data: JSON lines, JSON, Parquet or CSV; or hub, to download them.")
@option("-o", "--output", type=LocalPath(), metavar="FILE", help="Parquet file.  [default: data/NAME.parquet]")
@overwrite_option
@option("--allow-mismatch", is_flag=True, help="Accept data that differ from the recipe.")
@json_option
def prepare(name: str, origin: str | None, output: Path | None, overwrite: bool, allow_mismatch: bool, as_json: bool) -> None:
    """Prepare the data set NAME (see `pipeline list data`), or one of your own by its recipe, NAME.yaml.

    The number of rows and the digest must match the recipe's; otherwise nothing is written.
    """
    recipe = find_recipe(name)
    place = output or Path("data") / f"{recipe.name}.parquet"
    prepared = start(recipe, origin, place, overwrite=overwrite, allow_mismatch=allow_mismatch)
    if prepared.mismatch:
        print_notice(f"warning: {prepared.origin}: {prepared.mismatch}; results are not comparable with the published ones")
    print_page(msgspec.json.encode(prepared) if as_json else _sentence(prepared))


def _sentence(prepared: PreparedData) -> str:
    digest = "unexpected" if prepared.mismatch else "as expected" if prepared.checked else "which the recipe does not know"
    left_out = f", {prepared.left_out:,} left out" if prepared.left_out else ""
    there = "" if prepared.written else ", there already"
    return f"{prepared.output}: {prepared.rows:,} problems{left_out}, digest {prepared.digest}, {digest}{there}"
