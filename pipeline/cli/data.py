"""`pipeline data prepare NAME` and `pipeline data list`: published data sets, as Parquet that `pipeline run` reads."""

from pathlib import Path

import click
import msgspec

from pipeline.bundled import bundled_files
from pipeline.cli.main import print_line, print_page
from pipeline.cli.terminal.notices import print_notice
from pipeline.cli.terminal.places import LocalPath
from pipeline.data.prepare import Prepared
from pipeline.data.prepare import prepare as start
from pipeline.data.recipe import Recipe, find_recipe, load_recipe


@click.group()
def data() -> None:
    """Prepare published data sets for runs, by bundled recipes or by your own."""


@data.command()
@click.argument("name")
@click.option("--from", "origin", metavar="PATH|hub", help="The published data: JSON lines, JSON, Parquet or CSV; or the hub.")
@click.option("--output", type=LocalPath(), metavar="FILE", help="Parquet file.  [default: data/NAME.parquet]")
@click.option("--force", is_flag=True, help="Accept data that differ from the recipe, and overwrite an existing file.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def prepare(name: str, origin: str | None, output: Path | None, force: bool, as_json: bool, debug: bool) -> None:
    """Prepare data set NAME (see `pipeline data list`), or by a recipe of your own, NAME.yaml.

    The number of rows and the digest must match the recipe's. Exit code 2 if anything is wrong; then nothing is written.
    """
    recipe = find_recipe(name)
    prepared = start(recipe, origin, output or Path("data") / f"{recipe.name}.parquet", force)
    if prepared.mismatch:
        print_notice(f"warning: {prepared.origin}: {prepared.mismatch}; taken as it is, results are not comparable with the published ones")
    print_page(msgspec.json.encode(prepared) if as_json else _sentence(prepared))


def _sentence(prepared: Prepared) -> str:
    digest = "unexpected" if prepared.mismatch else "as expected" if prepared.checked else "which the recipe does not know"
    left_out = f", {prepared.left_out:,} left out" if prepared.left_out else ""
    there = "" if prepared.written else ", there already"
    return f"{prepared.output}: {prepared.rows:,} problems{left_out}, digest {prepared.digest}, {digest}{there}"


@data.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print the recipes as JSON.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def list_(as_json: bool, debug: bool) -> None:
    """List the data sets there are recipes for."""
    recipes = [load_recipe(path) for path in bundled_files("data set").values()]
    if as_json:
        print_page(msgspec.json.encode(recipes, order="sorted"))
        return
    for cells in [("name", "problems", "grader", "from"), *map(_cells, recipes)]:
        print_line("  ".join(f"{cell:{width}}" for cell, width in zip(cells, (14, 8, 7, 0), strict=True)))


def _cells(recipe: Recipe) -> tuple[str, str, str, str]:
    place = f"hub: {recipe.hub.id}" if recipe.hub else "bundled"
    return recipe.name, f"{recipe.rows or '?':>8}", recipe.grader, f"{place} ({recipe.license})"
