"""What faults left of a run: is every chain there, once, whole, and does it say what it said before?"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
from msgspec import Struct

from pipeline.errors import InputError
from pipeline.store.store import read_batches

CHAIN = ("chain_id", "answer_text", "stop_reason", "steps", "calls")
Said = dict[str, tuple[str | None, str]]
"""The answer's text and the end of each chain."""


class Ground(Struct, frozen=True, kw_only=True):
    """What is struck: a run, and what it should leave."""

    engines: str
    """How the report calls the engines."""
    begin: tuple[str, ...]
    """The arguments of the command, without the run folder."""
    chains: frozenset[str]
    """The ids of all chains."""
    whole: Path | None = None
    """A run that nothing disturbed; None where engines never answer the same twice."""

    def command(self, folder: Path) -> list[str]:
        """The arguments of the command that starts the run, or goes on with it where it has begun."""
        return ["resume", str(folder)] if (folder / "run.json").exists() else [*self.begin, "--output", str(folder)]


class Toll(Struct, frozen=True, kw_only=True):
    """What faults did to runs. All from `lost` to `wrong_ends` should be 0; the page of the bench says what each counts."""

    fault: str
    engines: str
    faults: int
    """How often the fault struck."""
    runs: int = 1
    chains: int = 0
    """That the runs should have."""
    lost: int = 0
    doubled: int = 0
    torn: int = 0
    changed: int | None = None
    """None where that cannot be told."""
    failed: int = 0
    tracebacks: int = 0
    """Printed by a command."""
    wrong_ends: int = 0
    resume_s: tuple[float, ...] = ()
    """Real seconds from the start of a process that goes on until its chains could start."""

    @property
    def harmless(self) -> bool:
        """Did the faults do nothing?"""
        return not (self.lost or self.doubled or self.torn or self.changed or self.failed or self.tracebacks or self.wrong_ends)


def toll(fault: str, ground: Ground, folder: Path, log: Path, *, faults: int = 1, said: Said | None = None, **more: Any) -> Toll:
    """Look at a finished run; `said` is what chains had said before a fault struck. Without either, what changed cannot be told."""
    rows = _rows(folder, "chains", CHAIN)
    ours = {row["chain_id"]: row for row in rows}
    before = said if ground.whole is None else {row["chain_id"]: _said(row) for row in _rows(ground.whole, "chains", CHAIN)}
    changed = None if before is None else sum(_said(ours[chain]) != words for chain, words in before.items() if chain in ours)
    steps = Counter((row["chain_id"], row["step_index"]) for row in _rows(folder, "steps", ("chain_id", "step_index")))
    calls = _rows(folder, "calls", ("chain_id", "request_id", "error_type"))
    answered = Counter((row["chain_id"], row["request_id"]) for row in calls if row["error_type"] is None)
    attempts = Counter(row["chain_id"] for row in calls)
    asked = Counter(chain for chain, _ in {(chain, request.rpartition("/")[0]) for chain, request in answered})
    # A step that is counted needs an answered call; guidance, step 0, is not counted.
    whole = (
        attempts[chain] == row["calls"] and asked[chain] >= row["steps"] and all((chain, 1 + i) in steps for i in range(row["steps"]))
        for chain, row in ours.items()
    )
    return Toll(
        fault=fault,
        engines=ground.engines,
        faults=faults,
        chains=len(ground.chains),
        lost=len(ground.chains - ours.keys()),
        doubled=len(rows) - len(ours.keys() & ground.chains) + sum(each.total() - len(each) for each in (steps, answered)),
        torn=len(ours) - sum(whole),
        changed=changed,
        failed=sum(row["stop_reason"] == "error" for row in ours.values()),
        tracebacks=log.read_text(errors="replace").count("Traceback (most recent call last)") if log.exists() else 0,
        **more,
    )


def summed(tolls: Sequence[Toll]) -> Toll:
    """The sums of runs that the same fault struck."""
    every = [msgspec.structs.asdict(each) for each in tolls]
    sums = {name: sum((each[name] for each in every), type(value)()) for name, value in every[0].items() if isinstance(value, int | tuple)}
    return msgspec.structs.replace(tolls[0], **sums)


def over(folder: Path) -> Said:
    """What the chains say that are over in a folder that a dead process left."""
    try:
        rows = [row for batch in read_batches(folder, "chains", CHAIN) for row in batch.to_pylist()]
    except InputError:
        return {}
    return {row["chain_id"]: _said(row) for row in rows if row["stop_reason"] not in ("cancelled", "error")}


def card(folder: Path) -> Mapping[str, Any]:
    """The content of `run.json`; empty where there is none."""
    path = folder / "run.json"
    return msgspec.json.decode(path.read_bytes()) if path.exists() else {}


def _rows(folder: Path, table: str, columns: Iterable[str]) -> list[dict[str, Any]]:
    parts = sorted((folder / table).glob("part-*.parquet"))
    return [row for part in parts for row in pq.read_table(part, columns=list(columns)).to_pylist()]


def _said(row: Mapping[str, Any]) -> tuple[str | None, str]:
    return row["answer_text"], row["stop_reason"]
