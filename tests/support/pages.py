"""The blocks of a Markdown page, carried out in order in one folder and in this process, as a reader would.

- a command of a block `sh` is carried out, a block `python` is executed, each after the blocks before it;
- a block with `title="NAME"` is written into the file NAME;
- a block behind `<!-- not run: REASON -->` is left out; its commands are parsed;
- `<!-- run first: COMMAND -->` is carried out and not shown: it makes what the page assumes;
- all other blocks, such as output, are for the eye.
"""

import os
import re
import runpy
import shlex
import warnings
from collections.abc import Iterator
from contextlib import chdir
from functools import cached_property
from pathlib import Path
from textwrap import dedent

from msgspec import Struct

from tests.support.commands import pipeline
from tests.support.paths import ROOT

PIECE = re.compile(
    r"<!-- (?P<remark>not run|run first): (?P<said>.*?) -->[^\S\n]*\n(?:[^\S\n]*\n)*"
    r"|^(?P<indent> *)```(?P<info>[^\n]*)\n(?P<body>.*?)^(?P=indent)```$\s*",
    re.DOTALL | re.MULTILINE,
)


class Block(Struct, frozen=True):
    """A fenced block of a page, or a hidden command."""

    language: str
    body: str
    title: str | None = None
    """The file that it is written into."""
    left_out: bool = False

    @property
    def is_run(self) -> bool:
        """True if something is executed."""
        return self.language in ("sh", "python") and not (self.title or self.left_out)

    def lines(self) -> list[str]:
        """The commands of a block `sh`."""
        lines = self.body.replace("\\\n", " ").splitlines() if self.language == "sh" else []
        return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


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
        """True if anything on it is executed."""
        return any(block.is_run for block in self.blocks)

    def commands(self) -> Iterator[str]:
        """The `pipeline` commands of its blocks, each on one line; also of those that are not run."""
        return (line for block in self.blocks for line in block.lines() if re.match(r"pipeline \w", line))


def _blocks(text: str) -> Iterator[Block]:
    behind = -1
    for piece in PIECE.finditer(text):
        if piece["remark"] == "run first":
            yield Block("sh", piece["said"])
        elif piece["remark"]:
            behind = piece.end()
        else:
            language, _, rest = piece["info"].strip().partition(" ")
            title = re.search(r'title="([^"]+)"', rest)
            yield Block(language, dedent(piece["body"]), title and title[1], left_out=behind == piece.start())


def newcomers_folder(folder: Path) -> Path:
    """A folder with some problems of the kind that the toy models know."""
    import pyarrow.csv
    import pyarrow.parquet

    problems = pyarrow.parquet.read_table(ROOT / "datasets/arith/test.parquet").select(["problem", "answer"]).slice(0, 4)
    pyarrow.csv.write_csv(problems, folder / "problems.csv")
    pyarrow.parquet.write_table(problems, folder / "data.parquet")
    problems.to_pandas().to_json(folder / "data.jsonl", orient="records", lines=True)
    (folder / "datasets").symlink_to(ROOT / "datasets")
    return folder


def run_page(page: Page, folder: Path) -> int:
    """Do all that `page` shows in `folder`, and return the number of blocks that were executed; fails where a command does."""
    with chdir(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, block in enumerate(page.blocks):
            if block.title:
                Path(block.title).parent.mkdir(parents=True, exist_ok=True)
                Path(block.title).write_text(block.body)
            elif block.is_run and block.language == "python":
                Path(f"block_{number}.py").write_text(block.body)
                runpy.run_path(f"block_{number}.py", run_name="__main__")
            elif block.is_run:
                for line in block.lines():
                    _carry_out(line)
    return sum(block.is_run for block in page.blocks)


def _carry_out(line: str) -> None:
    match shlex.split(line, comments=True):
        case ["cd", folder]:
            os.chdir(folder)
        case ["pipeline", *words]:
            done = pipeline(*words, cwd=Path.cwd())
            assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        case _:
            raise AssertionError(f"{line}: a page shows commands of `pipeline`, and `cd`")
