"""What a results file says about how its figures came to be: command, commit, date, machine and versions.

A script of this folder calls `begin` before it measures and `Recording.write` afterwards. Figures are of the commit they name, whatever
has changed since: `make release-figures` measures them again.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Struct, structs

from pipeline.store.run_file import host, versions

ROOT = Path(__file__).parent.parent
RESULTS = Path("bench/results")
KEPT = "measured.json"


class Table(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One results file and how it is made."""

    minutes: float
    arguments: str = ""
    needs: str | None = None
    """A package without which it cannot be measured."""
    page: str | None = None
    """A Markdown file that the script writes as a whole."""


class Script(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One script of this folder."""

    tables: dict[str, Table]


def declared(root: Path = ROOT) -> dict[str, Script]:
    """What bench/figures.toml says, by the names of the scripts."""
    path = root / "bench/figures.toml"
    try:
        return msgspec.toml.decode(path.read_bytes(), type=dict[str, Script])
    except msgspec.ValidationError as error:
        raise click.ClickException(f"{path}: {error}") from None


def page_digest(path: Path) -> str:
    """What tells whether a page is as its script wrote it: no figure is typed in."""
    return sha256(path.read_bytes()).hexdigest()[:16]


class Recording:
    """The circumstances of a measurement, as they were when it began."""

    def __init__(self, script: str, root: Path = ROOT) -> None:
        self.script, self.root = declared(root)[script], root
        self.measured: dict[str, Any] = {
            "command": _command(script),
            "commit": _git(root, "rev-parse", "HEAD"),
            "uncommitted": bool(_git(root, "status", "--porcelain", "--", ".", ":!bench/results", ":!*.md")),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "load": round(os.getloadavg()[0], 1),
            "host": structs.asdict(host()),
            "versions": versions(),
        }

    def write(self, output: Path, results: dict[str, Any], page: str | None = None) -> dict[str, Any]:
        """Write `results` with their circumstances to `output`, and the page of the table, if it has one; what was written."""
        table, measured = self.script.tables.get(output.stem), dict(self.measured)
        if page is not None and table is not None and table.page:
            (self.root / table.page).write_text(page)
            measured["page"] = page_digest(self.root / table.page)
        whole = {name: value for name, value in results.items() if name != "measured"} | {"measured": measured}
        output.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
        return whole


def begin(file: str) -> Recording:
    """The recording of the script at the path `file`; to be called before anything is measured."""
    return Recording(Path(file).stem)


def results_of(name: str, root: Path = ROOT) -> dict[str, Any]:
    """What the results file of the table `name` holds."""
    found: dict[str, Any] = json.loads((root / RESULTS / f"{name}.json").read_bytes())
    return found


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


def _command(script: str) -> str:
    """As it was typed, without the file that the results go to and the part that one start was limited to: what is written is of all."""
    words = iter(sys.argv[1:])
    kept = [word for word in words if not (word in ("--output", "--only") and next(words))]
    return shlex.join(["python", f"bench/{script}.py", *kept])


def _git(root: Path, *arguments: str) -> str | None:
    """What git says; None outside a repository."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None
