"""Measures the figures of the docs and writes them there: every table between markers is what its results file says.

    python bench/figures.py [NAME...]      measure these tables, by default all, and write them into the docs
    python bench/figures.py --render       write docs and pages from the results files as they are
    python bench/figures.py --list         the tables, and the minutes that each takes

bench/figures.toml declares the tables. A machine that does something else at the same time measures that, too.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

import click
import frontier_page
import scaling_page
from grids import Results, origin
from recording import RESULTS, ROOT, Script, declared, results_of
from tables import TABLES
from views import PICTURE, VIEWS, picture

PAGES: dict[str, Callable[[Results], str]] = {"scaling": scaling_page.page, "frontier": frontier_page.page}
"""Pages that are written from their results files alone."""
MARK = "<!-- figures: "
BLOCK = re.compile(r"<!-- figures: (\S+) -->\n.*?<!-- /figures -->", re.DOTALL)


def scripts(root: Path = ROOT) -> dict[str, tuple[str, Script]]:
    """The script of each table, by the table's name."""
    return {name: (key, script) for key, script in declared(root).items() for name in script.tables}


def docs(root: Path = ROOT) -> list[Path]:
    """The documents that have tables."""
    found = [*root.glob("*.md"), *root.glob("graphs/*.md"), *root.glob("bench/*.md"), *root.glob("docs/pages/**/*.md")]
    return sorted(path for path in found if MARK in path.read_text())


def block(name: str, root: Path = ROOT) -> str:
    """What stands in the docs for the table `name`, with its markers."""
    if name in VIEWS:
        return f"{MARK}{name} -->\n{VIEWS[name](root)}\n<!-- /figures -->"
    if name not in scripts(root):
        raise click.ClickException(f"figures: {name}: no such table; bench/figures.toml has {', '.join(sorted(scripts(root)))}")
    key, script = scripts(root)[name]
    path = root / RESULTS / f"{name}.json"
    if path.exists():
        results = json.loads(path.read_bytes())
        parts = [origin(results["measured"])] if "measured" in results else []
        parts += [TABLES[key](results)] if key in TABLES else []
        text = "\n\n".join(parts)
    else:
        text = f"Not measured yet: `python bench/figures.py {name}` takes {script.tables[name].minutes:g} minutes."
    return f"{MARK}{name} -->\n{text}\n<!-- /figures -->"


def rendered(text: str, root: Path = ROOT) -> str:
    """A document with every table as its results file has it."""
    return BLOCK.sub(lambda match: block(match[1], root), text)


def render(root: Path = ROOT) -> None:
    """Write the tables into the docs, and the pages."""
    for path in docs(root):
        if (text := path.read_text()) != (new := rendered(text, root)):
            path.write_text(new)
    for name, (_, script) in scripts(root).items():
        if name in PAGES and (page := script.tables[name].page):
            (root / page).write_text(PAGES[name](results_of(name, root)))
    if (root / PICTURE).exists():
        (root / PICTURE).write_text(picture(root))


def measure(name: str, root: Path = ROOT) -> bool:
    """Run the script of one table; whether that went well, or was left out for a package that is not here."""
    key, script = scripts(root)[name]
    table = script.tables[name]
    if table.needs and find_spec(table.needs) is None:
        click.echo(f"{name}: left out, {table.needs} is not installed")
        return True
    output = () if table.page else ("--output", str(root / RESULTS / f"{name}.json"))
    command = [f"bench/{key}.py", *shlex.split(table.arguments)]
    click.echo(f"{name}: {shlex.join(['python', *command])}, about {table.minutes:g} minutes")
    return subprocess.run([sys.executable, *command, *output], cwd=root).returncode == 0


def chosen(names: Iterable[str], root: Path = ROOT) -> list[str]:
    """`names`, or all tables; a name that is none is refused."""
    known = scripts(root)
    if unknown := sorted(set(names) - known.keys()):
        raise click.UsageError(f"{unknown[0]}: no such table; bench/figures.toml has {', '.join(sorted(known))}")
    return list(names) or list(known)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--render", "only_render", is_flag=True, help="Measure nothing, write the docs.")
@click.option("--list", "only_list", is_flag=True, help="Measure nothing, name the tables.")
@click.option("--root", type=click.Path(path_type=Path), default=ROOT, hidden=True)
def main(names: tuple[str, ...], only_render: bool, only_list: bool, root: Path) -> None:
    """Measure tables and write them into the docs."""
    if only_list:
        for name, (key, script) in scripts(root).items():
            table = script.tables[name]
            click.echo(f"{name:<20} {table.minutes:>5g} min  bench/{key}.py {table.arguments}")
    elif only_render:
        render(root)
    else:
        failed = [name for name in chosen(names, root) if not measure(name, root)]
        render(root)
        if failed:
            raise click.ClickException(f"not measured: {', '.join(failed)}; why stands above")


if __name__ == "__main__":
    main()
