"""`pipeline list KIND` and `prepare NAME`: what goes by name, and a published data set as a file of problems."""

import re
from collections.abc import Iterator
from importlib import import_module
from itertools import takewhile
from pathlib import Path

import click
import msgspec

from pipeline.analysis.tables import Table
from pipeline.cli.console import PlainConsole, print_table
from pipeline.cli.options import LocalPath, check_reachable, json_option, option
from pipeline.cli.terminal import print_line, print_notice, print_page
from pipeline.graph.files import FileKind, bundled_files

KINDS: dict[str, tuple[str, FileKind | None]] = {
    "graphs": ("what `run GRAPH` solves with: the systems of the papers, and the target alone", "graph"),
    "engines": ("engines files, for --engines: the bundled models, and simulated GPUs", "engines file"),
    "presets": ("settings of a paper, for --preset", "preset"),
    "prompts": ("prompts, for the param `prompts` of a graph", "prompts file"),
    "rewards": ("process reward models, for `score --prm`", "reward model"),
    "training": ("training files, for `train`", "training file"),
    "studies": ("the papers' tables and figures as plans of runs, for `sweep`", "study file"),
    "data": ("recipes of data sets, for `prepare`", None),
    "tables": ("tables of the papers, for `compare --table`", None),
}
"""What is listed: what it is, and of files their kind."""
MAIN = ("speccot", "specreason", "scot", "target")
"""The graphs that are listed first: the papers' systems, and their baseline."""


@click.command()
@click.argument("kind", type=click.Choice(tuple(KINDS)), metavar="[KIND]", required=False)
@json_option
def list_(kind: str | None, as_json: bool) -> None:
    """List what is bundled of KIND, by the names that other commands accept; without it, the kinds.

    KIND is graphs, engines, presets, prompts, rewards, training, studies, data or tables.
    """
    found = {name: about for name, (about, _) in KINDS.items()} if kind is None else dict(_items(kind))
    if as_json:
        print_page(msgspec.json.encode([{"name": name, "about": about} for name, about in found.items()]))
        return
    rows = tuple((name, about.partition(". ")[0].rstrip(".")) for name, about in found.items())
    print_table(Table("", (kind or "kind", "what it is"), rows), PlainConsole())


def _items(kind: str) -> Iterator[tuple[str, str]]:
    """The names of what is bundled, each with what it is in a few sentences, of which the first is printed."""
    form = KINDS[kind][1]
    if form is not None:
        files = bundled_files(form)
        for name in sorted(files, key=lambda name: (MAIN.index(name) if name in MAIN else len(MAIN), name)):
            yield name, _head_comment(files[name])
    elif kind == "tables":
        for name, query in import_module("pipeline.analysis.tables").named_queries().items():
            yield name, f"{query.source}: {query.title}"
    else:
        for name, recipe in sorted(import_module("pipeline.data.prepare").RECIPES.items()):
            place = f"hub: {recipe.hub.partition(':')[0]}" if recipe.hub else "bundled" if name == "arith" else "on no hub"
            yield name, f"{recipe.title}; {recipe.rows} problems, grader {recipe.grader}; {place} ({recipe.license})"


def _head_comment(path: Path) -> str:
    """The first paragraph of the comment at the head of a YAML file, up to the first line that is a command; hints to editors left out."""
    lines = (line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("# yaml-language-server:"))
    return " ".join(line[1:].strip() for line in takewhile(re.compile(r"#\s*(?!pipeline )\S").match, lines))


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
