"""`pipeline list KIND` and `pipeline prepare NAME`: what goes by name, and a published data set as Parquet that `pipeline run` reads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Struct
from rich.table import Table

from pipeline.analysis.compare.papers import bundled_tables, read_layout
from pipeline.bundled import FileKind, bundled_files
from pipeline.cli.commands import command, option
from pipeline.cli.console import PlainConsole
from pipeline.cli.located import LocalPath
from pipeline.cli.options import json_option, overwrite_option
from pipeline.cli.terminal import print_notice, print_page
from pipeline.data.prepare import PreparedData
from pipeline.data.prepare import prepare as start
from pipeline.data.recipe import find_recipe, load_recipe
from pipeline.graph.yaml_file import head_comment, read_yaml

FILES: dict[str, FileKind] = {
    "graphs": "graph",
    "engines": "engines file",
    "presets": "preset",
    "prompts": "prompts file",
    "rewards": "reward model",
    "training": "training file",
    "studies": "study file",
}
KINDS = {
    "graphs": "what `run GRAPH` solves with: the systems of the papers, and the target alone",
    "engines": "engines files, for --engines: the bundled models, and simulated GPUs",
    "presets": "settings of a paper, for --preset",
    "prompts": "prompts, for the param `prompts` of a graph",
    "rewards": "process reward models, for `score --prm`",
    "training": "training files, for `train`",
    "studies": "the papers' tables and figures as plans of runs, for `study`",
    "data": "recipes of data sets, for `prepare`",
    "tables": "tables of the papers, for `compare --table`",
}
MAIN = ("speccot", "specreason", "scot", "target")
"""The graphs that are listed first: the papers' systems, and their baseline."""


class Item(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something bundled."""

    name: str
    about: str
    """What it is; the first sentence is printed."""
    params: dict[str, Any] = {}
    """Of a graph: its params with their values."""


@command()
@click.argument("kind", type=click.Choice(tuple(KINDS)), metavar="[KIND]", required=False)
@json_option
def list_(kind: str | None, as_json: bool) -> None:
    """List what is bundled of KIND, by the names that other commands accept; without it, the kinds. With --json: all that is known.

    KIND is graphs, engines, presets, prompts, rewards, training, studies, data or tables.
    """
    items = [Item(name=name, about=about) for name, about in KINDS.items()] if kind is None else list(_items(kind))
    if as_json:
        print_page(msgspec.json.encode(items))
        return
    table = Table(kind or "kind", box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.columns[0].no_wrap = True
    for title in ("what it is", *(["params"] if kind == "graphs" else [])):
        table.add_column(title)
    for item in items:
        params = [", ".join(f"{name}={_value(value)}" for name, value in item.params.items())] if kind == "graphs" else []
        table.add_row(item.name, item.about.partition(". ")[0].rstrip("."), *params)
    PlainConsole().print(table)


def _items(kind: str) -> Iterator[Item]:
    if kind == "tables":
        layouts = {name: read_layout(file) for name, file in bundled_tables().items()}
        yield from (Item(name=name, about=f"{layout.source}: {layout.title}") for name, layout in layouts.items())
    elif kind == "data":
        for path in bundled_files("data set").values():
            recipe = load_recipe(path)
            place = f"hub: {recipe.hub.id}" if recipe.hub else "bundled" if recipe.file else "on no hub"
            about = f"{recipe.title}; {recipe.rows or '?'} problems, grader {recipe.grader}; {place} ({recipe.license})"
            yield Item(name=recipe.name, about=about)
    else:
        files = bundled_files(FILES[kind])
        for name in sorted(files, key=lambda name: (MAIN.index(name) if name in MAIN else len(MAIN), name)):
            params = read_yaml(files[name]).get("params") or {} if kind == "graphs" else {}
            yield Item(name=name, about=head_comment(files[name]), params=params)


def _value(value: Any) -> str:
    """A value as a YAML file has it."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


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
