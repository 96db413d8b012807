"""`pipeline list KIND`: what comes with the package and goes by name."""

from collections.abc import Iterator
from typing import Any

import click
import msgspec
from msgspec import Struct
from rich.table import Table

from pipeline.analysis.compare.paper_shapes import SHAPES
from pipeline.bundled import FileKind, bundled_files
from pipeline.cli.commands import command
from pipeline.cli.main import print_page
from pipeline.cli.options import json_option
from pipeline.cli.terminal.console import PlainConsole
from pipeline.data.recipe import load_recipe
from pipeline.graph.yaml_file import head_comment, read_yaml

FILES: dict[str, FileKind] = {
    "graphs": "graph",
    "engines": "engines file",
    "presets": "preset",
    "prompts": "prompts file",
    "rewards": "reward model",
    "training": "training file",
}
KINDS = (*FILES, "data", "tables")
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
@click.argument("kind", type=click.Choice(KINDS), metavar="KIND")
@json_option
def list_(kind: str, as_json: bool) -> None:
    """List what is bundled of KIND, by the names that other commands accept. With --json: all that is known.

    KIND is graphs, engines, presets (settings of a paper), prompts, rewards (reward models), training (training files), data (recipes of
    data sets, for `prepare`), or tables (of papers, for `compare --table`).
    """
    items = list(_items(kind))
    if as_json:
        print_page(msgspec.json.encode(items))
        return
    table = Table(kind, box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.columns[0].no_wrap = True
    for title in ("what it is", *(["params"] if kind == "graphs" else [])):
        table.add_column(title)
    for item in items:
        params = [", ".join(f"{name}={_value(value)}" for name, value in item.params.items())] if kind == "graphs" else []
        table.add_row(item.name, item.about.partition(". ")[0].rstrip("."), *params)
    PlainConsole().print(table)


def _items(kind: str) -> Iterator[Item]:
    if kind == "tables":
        yield from (Item(name=name, about=f"{shape.source}: {shape.title}") for name, shape in SHAPES.items())
    elif kind == "data":
        for path in bundled_files("data set").values():
            recipe = load_recipe(path)
            place = f"hub: {recipe.hub.id}" if recipe.hub else "bundled"
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
