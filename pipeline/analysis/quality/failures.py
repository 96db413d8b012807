"""Why chains of a run failed: the chains table of a run folder enters, its failed chains grouped by cause leave."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from pipeline.errors import InputError
from pipeline.store.read import read_batches

EXAMPLES = 5
"""How many chains are named for each cause."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Failure(Struct, frozen=True, kw_only=True):
    """Chains that failed for one cause: the same error in the same stage, with the same message but for its numbers."""

    error_type: str
    stage: str | None
    """Null where the chain failed before its first stage."""
    message: str
    """The message of the first of them."""
    count: int
    """How many chains failed so."""
    examples: tuple[str, ...]
    """The first few `chain_id`s."""


def failures(run: Path) -> list[Failure]:
    """The failed chains of the run folder, most frequent cause first; raises `InputError` where there are no chains to read."""
    if not (run / "chains").is_dir():
        raise InputError(str(run), "is not a run folder; expected chains in it")
    groups: dict[tuple[str, str | None, str], list[Any]] = {}
    for row in _failed(run):
        message = row["error_message"] or ""
        group = groups.setdefault((row["error_type"], row["error_stage"], _NUMBER.sub("#", message)), [message, 0, []])
        group[1] += 1
        if len(group[2]) < EXAMPLES:
            group[2].append(row["chain_id"])
    found = [
        Failure(error_type=error, stage=stage, message=message, count=count, examples=tuple(examples))
        for (error, stage, _), (message, count, examples) in groups.items()
    ]
    return sorted(found, key=lambda failure: -failure.count)


def _failed(run: Path) -> Iterator[dict[str, Any]]:
    """Rows of failed chains, including those that were resumed and succeeded: such a chain has a second row."""
    for batch in read_batches(run, "chains", ["chain_id", "error_type", "error_message", "error_stage", "stop_reason"]):
        yield from batch.filter(batch.column("error_type").is_valid()).to_pylist()
