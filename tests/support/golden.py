"""A small run on simulated engines, the same every time, and what SIGKILL would have left of it at each of its writes.

Before every write, rename and removal in its folder all files are noted, so that two moments that follow one another differ by
one operation. A file that was being written then may end at any of its new bytes.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import Struct

from pipeline.options import RunOptions
from pipeline.run.prepare import resume_options
from pipeline.run.run import run
from pipeline.store import recorder, store
from tests.support.paths import ROOT, SIM
from tests.support.runs import write_problems

TABLES = ("calls", "steps", "chains")
Files = dict[str, bytes]
"""The content of each file in a folder, by its path in it."""
_CHANGES = {"os.rename", "os.remove", "os.truncate", "os.mkdir"}
_COSTS = ("answer", "correct", "stop_reason", "steps", "accepted_steps", "calls", "output_tokens")
_STEP = ("step_index", "decision", "step_text", "candidate_texts", "draft_tokens", "step_tokens")


class History(Struct, frozen=True):
    """A run folder at each moment of a session, and after it."""

    folder: Path
    moments: list[Files]
    rows: dict[str, pa.Table]
    """All rows of each table at the end."""

    def put(self, moment: Files, target: Path) -> Path:
        """`target` as the run folder was at a moment."""
        shutil.rmtree(target, ignore_errors=True)
        for name, content in moment.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(content)
        return target


class _Watch:
    """Notes the files of the folder that is watched before anything is changed in it."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.moments: list[Files] = []
        self._known: dict[tuple[str, int, int, int], bytes] = {}
        self._pwrite = os.pwrite
        sys.addaudithook(self._audit)

    @contextmanager
    def over(self, folder: Path) -> Iterator[list[Files]]:
        """Watch `folder` inside; the moments, the last one at the end."""
        self.folder, self.moments, self._known = folder, [], {}
        os.pwrite = self._traced_pwrite
        try:
            yield self.moments
            self._note()
        finally:
            os.pwrite = self._pwrite
            self.folder = None

    def _traced_pwrite(self, *arguments: Any) -> int:
        self._note()
        return self._pwrite(*arguments)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None or (event not in _CHANGES and not (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR))):
            return
        if str(arguments[0]).startswith(str(self.folder)):
            self._note()

    def _note(self) -> None:
        folder, self.folder = self.folder, None  # what is read here is no event
        if folder is None:
            return
        found = {str(path.relative_to(folder)): self._content(path) for path in sorted(folder.rglob("*")) if path.is_file()}
        if found and (not self.moments or self.moments[-1] != found):
            self.moments.append(found)
        self.folder = folder

    def _content(self, path: Path) -> bytes:
        about = path.stat()
        key = (str(path), about.st_ino, about.st_size, about.st_mtime_ns)
        if key not in self._known:
            self._known[key] = path.read_bytes()
        return self._known[key]


_WATCH = _Watch()


def golden_run(folder: Path, engines: Path = SIM) -> History:
    """A run of four problems in `folder/run`, whose tables have several parts each."""
    options = RunOptions(
        graph=ROOT / "graphs/speccot.yaml", engines=engines, input=(str(write_problems(folder, 4)),), output=folder / "run", batch_size=3
    )
    return _watched(options)


def resumed(history: History, moment: Files, folder: Path) -> History:
    """The run at a `moment` of its `history`, resumed in `folder` to its end."""
    return _watched(resume_options(history.put(moment, folder)))


def _watched(options: RunOptions) -> History:
    assert options.output is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "WRITE_ROWS", 24)
        patch.setattr(store, "ROWS_AT_ONCE", 8)
        patch.setattr(store, "GROUP_ROWS", 16)
        patch.setattr(store, "PART_BYTES", 40_000)
        with _WATCH.over(options.output) as moments:
            assert run(options).exit_code == 0
    return History(options.output, moments, {table: whole(options.output, table) for table in (*TABLES, "problems")})


def cuts(before: Files, after: Files, every: int) -> Iterator[tuple[str, Files]]:
    """The moment `after`, with the file that was written since the moment `before` ending at each of its new bytes, and its name.

    At one in `every`, from the first, and at the last one.
    """
    written = [name for name, content in after.items() if before.get(name) != content]
    if len(written) != 1 or (before.keys() - after.keys()):
        return  # a rename or a removal, which is there or not
    [name] = written
    old, new = before.get(name, b""), after[name]
    start = len(old) if new.startswith(old) else 0
    for end in range(start, len(new)):
        if end == len(new) - 1 or (end - start) % every == 0:
            yield name, after | {name: new[:end]}


def whole(folder: Path, table: str) -> pa.Table:
    """All rows in the finished parts of a table."""
    parts = sorted((folder / table).glob("part-*.parquet"))
    return pa.concat_tables([pq.ParquetFile(part).read() for part in parts]).replace_schema_metadata() if parts else pa.table({})


def said(folder: Path) -> dict[str, Any]:
    """What the chains of a finished run said and what it cost, without the times; the same however often it was resumed."""
    steps: dict[str, list[Any]] = {}
    for row in whole(folder, "steps").to_pylist():
        steps.setdefault(row["chain_id"], []).append([row[name] for name in _STEP])
    calls: dict[str, list[Any]] = {}
    for row in whole(folder, "calls").to_pylist():
        calls.setdefault(row["chain_id"], []).append((row["call_index"], row["request_id"], row["output_token_ids"]))
    chains = whole(folder, "chains").to_pylist()
    assert len({row["chain_id"] for row in chains}) == len(chains)
    return {row["chain_id"]: ([row[name] for name in _COSTS], steps[row["chain_id"]], sorted(calls[row["chain_id"]])) for row in chains}
