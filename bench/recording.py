"""What a results file says about how its figures came to be: command, commit, date, machine, and digests of the code they depend on.

A script of this folder calls `begin` before it measures and `Recording.write` afterwards; bench/figures.toml says on which files
its figures depend. `changed` tells from the digests whether those files still do the same, without the history of git.
"""

import ast
import json
import os
import shlex
import subprocess
import sys
import time
import tokenize
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Struct, structs

from pipeline.trace.run_file import host, versions

ROOT = Path(__file__).parent.parent
RESULTS = Path("bench/results")
KEPT = "measured.json"
UNMEASURED = "never measured"
UNRECORDED = "measured before its files were recorded"


class Table(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One results file and how it is made."""

    minutes: float
    arguments: str = ""
    quick: bool = False
    needs: str | None = None
    """A package without which it cannot be measured."""
    page: str | None = None
    """A Markdown file that the script writes as a whole."""
    files: tuple[str, ...] = ()
    """Globs, beside those of the script."""


class Script(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One script of this folder."""

    files: tuple[str, ...]
    shows: tuple[str, ...] = ()
    """Globs of what makes tables of kept results and measures nothing: what counts is how it was when the tables were written."""
    tables: dict[str, Table]


def declared(root: Path = ROOT) -> dict[str, Script]:
    """What bench/figures.toml says, by the names of the scripts."""
    path = root / "bench/figures.toml"
    try:
        return msgspec.toml.decode(path.read_bytes(), type=dict[str, Script])
    except msgspec.ValidationError as error:
        raise click.ClickException(f"{path}: {error}") from None


def digests(patterns: Iterable[str], root: Path = ROOT) -> dict[str, str]:
    """A digest of the files of each glob: of their places, and of what in them can change a figure."""
    return {pattern: _digest(pattern, root) for pattern in patterns}


def _digest(pattern: str, root: Path) -> str:
    found = sha256()
    for path in sorted(path for path in root.glob(pattern) if path.is_file() and "__pycache__" not in path.parts):
        found.update(f"{path.relative_to(root).as_posix()}\0{sha256(_content(path)).hexdigest()}\n".encode())
    return found.hexdigest()[:16]


def _content(path: Path) -> bytes:
    """What of a file can change a figure: all of it; of a Python module its code."""
    return _code(path.read_bytes()) if path.suffix == ".py" else path.read_bytes()


@cache
def _code(content: bytes) -> bytes:
    """A Python module without its comments and docstrings."""
    lines: list[str | None] = [*content.decode().split("\n")]
    for token in tokenize.tokenize(iter(content.splitlines(keepends=True)).__next__):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = (lines[row - 1] or "")[:column].rstrip() or None
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for row in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines[row - 1] = None
    return "\n".join(line for line in lines if line is not None).encode()


def changed(script: Script, name: str, root: Path = ROOT) -> list[str]:
    """The globs whose files are not those that table `name` was measured with; a page that was edited since counts, too."""
    path = root / RESULTS / f"{name}.json"
    if not path.exists():
        return [UNMEASURED]
    measured, table = json.loads(path.read_bytes()).get("measured", {}), script.tables[name]
    flaws = []
    if table.page and measured and measured["page"] != _digest(table.page, root):
        flaws.append(f"{table.page}, which is not as it was written")
    if "files" not in measured:
        return [*flaws, UNRECORDED]
    now = digests((*script.files, *script.shows, *table.files), root)
    return [*flaws, *(pattern for pattern, digest in now.items() if measured["files"].get(pattern) != digest)]


class Recording:
    """The circumstances of a measurement, as they were when it began."""

    def __init__(self, script: str, root: Path = ROOT) -> None:
        self.script, self.root = declared(root)[script], root
        patterns = [*self.script.files, *(pattern for table in self.script.tables.values() for pattern in table.files)]
        self.digests = digests(patterns, root)
        self.measured: dict[str, Any] = {
            "command": _command(script),
            "commit": _git(root, "rev-parse", "HEAD"),
            "uncommitted": bool(_git(root, "status", "--porcelain", "--", *(f":(glob){pattern}" for pattern in patterns))),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "load": round(os.getloadavg()[0], 1),
            "host": structs.asdict(host()),
            "versions": versions(),
            "files": self.digests,
        }

    def write(self, output: Path, results: dict[str, Any], page: str | None = None) -> dict[str, Any]:
        """Write `results` with their circumstances to `output`, and the page of the table, if it has one; what was written."""
        table = self.script.tables.get(output.stem)
        patterns = (*self.script.files, *(table.files if table else ()))
        files = {pattern: self.digests[pattern] for pattern in patterns} | digests(self.script.shows, self.root)
        measured = self.measured | {"files": files}
        if page is not None and table is not None and table.page:
            (self.root / table.page).write_text(page)
            measured["page"] = _digest(table.page, self.root)
        whole = {name: value for name, value in results.items() if name != "measured"} | {"measured": measured}
        output.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
        return whole


def begin(file: str) -> Recording:
    """The recording of the script at the path `file`; to be called before anything is measured."""
    return Recording(Path(file).stem)


def go_on(file: str, folder: Path) -> Recording:
    """The recording of a script that keeps what it finished in `folder`: how things were when the first of it was begun.

    Raises `click.ClickException` where the folder has something of which that is not known.
    """
    recording, kept = begin(file), folder / KEPT
    if kept.exists():
        recording.measured, recording.digests = json.loads(kept.read_bytes())
        recording.measured["files"] = recording.digests
    elif folder.exists() and any(folder.iterdir()):
        raise click.ClickException(f"{folder} has results of a state of the code that is not recorded: move it away")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps([recording.measured, recording.digests]))
    return recording


def _command(script: str) -> str:
    """As it was typed, without the file that the results go to."""
    words = iter(sys.argv[1:])
    kept = [word for word in words if not (word == "--output" and next(words))]
    return shlex.join(["python", f"bench/{script}.py", *kept])


def _git(root: Path, *arguments: str) -> str | None:
    """What git says; None outside a repository."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None
