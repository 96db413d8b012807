"""`pipeline list KIND` and `prepare NAME`: what goes by name, and a published data set as a file of problems."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Struct

from pipeline.analysis.tables import Table
from pipeline.cli.console import PlainConsole, print_table
from pipeline.cli.options import LocalPath, check_reachable, json_option, option
from pipeline.cli.terminal import print_line, print_notice, print_page
from pipeline.graph.files import FileKind, bundled_files, read_file

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
    "studies": "the papers' tables and figures as plans of runs, for `sweep`",
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


@click.command()
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
    rows = tuple((item.name, item.about.partition(". ")[0].rstrip(".")) for item in items)
    print_table(Table("", (kind or "kind", "what it is"), rows), PlainConsole())


def _items(kind: str) -> Iterator[Item]:
    if kind == "tables":
        found = import_module("pipeline.analysis.tables").named_queries()
        yield from (Item(name=name, about=f"{query.source}: {query.title}") for name, query in found.items())
    elif kind == "data":
        for name, recipe in sorted(import_module("pipeline.data.prepare").RECIPES.items()):
            place = f"hub: {recipe.hub.partition(':')[0]}" if recipe.hub else "bundled" if name == "arith" else "on no hub"
            yield Item(name=name, about=f"{recipe.title}; {recipe.rows} problems, grader {recipe.grader}; {place} ({recipe.license})")
    else:
        files = bundled_files(FILES[kind])
        for name in sorted(files, key=lambda name: (MAIN.index(name) if name in MAIN else len(MAIN), name)):
            params = read_file(files[name], FILES[kind]).get("params") or {} if kind == "graphs" else {}
            yield Item(name=name, about=_head_comment(files[name]), params=params)


def _head_comment(path: Path) -> str:
    """The first paragraph of the comment at the head of a YAML file, up to the first line that is a command; hints to editors left out."""
    said = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("#").strip()
        if line.startswith("# yaml-language-server:"):
            continue
        if not line.startswith("#") or text.startswith("pipeline ") or not text:
            break
        said.append(text)
    return " ".join(said)


@click.command()
@click.argument("name")
@option("--from", "origin", metavar="FILE|hub", help="The published data: JSON lines, JSON, Parquet or CSV; or hub, to download them.")
@option("-o", "--output", type=LocalPath(), metavar="FILE", help="Parquet file.  [default: data/NAME.parquet]")
def prepare(name: str, origin: str | None, output: Path | None) -> None:
    """Prepare the published data set NAME (see `pipeline list data`).

    A warning says where the number of rows or the digest is not the known one.
    """
    if origin == "hub":
        check_reachable(name)
    prepared = import_module("pipeline.data.prepare").prepare(name, origin, output or Path("data") / f"{name}.parquet")
    if prepared.mismatch:
        print_notice(f"warning: {prepared.mismatch}")
    print_line(f"{prepared.output}: {prepared.rows:,} problems, digest {prepared.digest}")
