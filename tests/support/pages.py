"""The blocks of a Markdown page, run in order in one folder, as a reader would.

- a block `sh` is run, a block `python` is executed, each after the blocks before it;
- a block with `title="NAME"` is written into the file NAME;
- a block behind `<!-- not run: REASON -->` is left out; its commands are parsed;
- `<!-- run first: COMMAND -->` is run and not shown: it makes what the page assumes;
- all other blocks, such as output, are for the eye.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cached_property
from itertools import count
from pathlib import Path

from msgspec import Struct

from tests.support.paths import ROOT
from tests.support.patience import HANGS_S

PIECE = re.compile(
    r"<!-- (?P<remark>not run|run first): (?P<said>.*?) -->[^\S\n]*\n(?:[^\S\n]*\n)*"
    r"|^(?P<indent> *)```(?P<info>[^\n]*)\n(?P<body>.*?)^(?P=indent)```$\s*",
    re.DOTALL | re.MULTILINE,
)
END = "END_OF_THE_BLOCK"


class Block(Struct, frozen=True):
    """A fenced block of a page, or a hidden command."""

    language: str
    body: str
    title: str | None = None
    """The file that it is written into."""
    left_out: str | None = None
    """Why it is not run."""

    @property
    def is_run(self) -> bool:
        """Whether something is executed."""
        return self.language in ("sh", "python") and self.title is None and self.left_out is None


class Page(Struct, frozen=True, dict=True):
    """A Markdown file."""

    path: Path
    text: str

    @classmethod
    def read(cls, path: Path) -> "Page":
        return cls(path, path.read_text())

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def blocks(self) -> list[Block]:
        """In their order."""
        return list(_blocks(self.text))

    @property
    def is_run(self) -> bool:
        """Whether anything on it is executed."""
        return any(block.is_run for block in self.blocks)

    def commands(self) -> Iterator[str]:
        """The `pipeline` commands of its blocks, each on one line; also of those that are not run."""
        for block in self.blocks:
            for line in block.body.replace("\\\n", " ").splitlines() if block.language == "sh" else ():
                if re.match(r"\s*pipeline \w", line):
                    yield line.strip()

    def script(self) -> str:
        """A program for bash that does all that the page shows."""
        return "\n".join(["set -euo pipefail", *(_lines(block, number) for number, block in zip(count(1), self.blocks, strict=False))])


def _blocks(text: str) -> Iterator[Block]:
    reason, behind = None, -1
    for piece in PIECE.finditer(text):
        if piece["remark"] == "run first":
            yield Block("sh", piece["said"])
        elif piece["remark"]:
            reason, behind = piece["said"], piece.end()
        else:
            language, _, rest = piece["info"].strip().partition(" ")
            title = re.search(r'title="([^"]+)"', rest)
            left_out = reason if behind == piece.start() else None
            yield Block(language, _dedented(piece["body"], piece["indent"]), title and title[1], left_out)


def _dedented(body: str, indent: str) -> str:
    return "".join(line.removeprefix(indent) for line in body.splitlines(keepends=True))


def _lines(block: Block, number: int) -> str:
    if block.title:
        return f"mkdir -p \"$(dirname '{block.title}')\"\ncat > '{block.title}' <<'{END}'\n{block.body}{END}"
    if not block.is_run:
        return ""
    shown = f"echo '== block {number}' >&2"
    if block.language == "python":
        return f"{shown}\ncat > block_{number}.py <<'{END}'\n{block.body}{END}\npython block_{number}.py"
    return f"{shown}\n{block.body}"


def newcomers_folder(place: Path, environment: Path | None = None) -> Path:
    """An empty folder with some problems of the kind that the toy models know, and next to it the commands `pipeline` and `python`: of an
    `environment` into which the package was installed, or of this checkout."""
    import pyarrow.csv
    import pyarrow.parquet

    folder, programs = place / "folder", place / "bin"
    folder.mkdir()
    programs.mkdir()
    problems = pyarrow.parquet.read_table(ROOT / "datasets/arith/test.parquet").select(["problem", "answer"]).slice(0, 10)
    pyarrow.csv.write_csv(problems, folder / "problems.csv")
    pyarrow.parquet.write_table(problems, folder / "data.parquet")
    problems.to_pandas().to_json(folder / "data.jsonl", orient="records", lines=True)
    (folder / "datasets").symlink_to(ROOT / "datasets")
    for name, arguments in (("pipeline", "-m pipeline.cli.main"), ("python", "")):
        checkout = f'PYTHONPATH="{ROOT}:$PYTHONPATH" exec {sys.executable} {arguments} "$@"'
        installed = f'unset PYTHONPATH\nexec {environment}/bin/{name} "$@"'
        (programs / name).write_text(f"#!/bin/sh\n{installed if environment else checkout}\n")
        (programs / name).chmod(0o755)
    return folder


def run_page(page: Page, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run all that `page` shows in a folder of `newcomers_folder`, without the network."""
    paths = [str(folder.parent / "bin"), os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(["bash", "-c", page.script()], cwd=folder, env=environment, capture_output=True, text=True, timeout=4 * HANGS_S)
