"""The option `--order`: its word enters, the lengths of thoughts that an earlier run recorded leave."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.errors import UsageError
from pipeline.runtime.admission.order import InputOrder, IsOver, LongestFirst, StartOrder
from pipeline.store.events import UNFINISHED
from pipeline.store.read import read_batches

INPUT, LONGEST = "input", "longest"
Thoughts = Mapping[str, Sequence[int]]
"""Tokens of the finished thoughts of an earlier run, by `problem_id`."""


def earlier_run(order: str) -> Path | None:
    """The run folder that `longest:RUN` names; None for the other orders. Raises `UsageError` for what is no order."""
    word, colon, run = order.partition(":")
    if word == LONGEST and bool(colon) == bool(run):
        return Path(run) if run else None
    if order == INPUT:
        return None
    raise UsageError(f"--order {order}: expected {INPUT}, {LONGEST}, or {LONGEST}:RUN with the folder of an earlier run")


def earlier_thoughts(order: str) -> Thoughts:
    """The thoughts of the run that `order` names, empty where it names none; raises `UsageError` where it has none, `InputError` where its
    chains cannot be read."""
    run, found = earlier_run(order), dict[str, list[int]]()
    if run is None:
        return found
    for batch in read_batches(run, "chains", ["problem_id", "stop_reason", "thought_tokens"]):
        for row in batch.to_pylist():
            if row["stop_reason"] not in UNFINISHED:
                found.setdefault(row["problem_id"], []).append(row["thought_tokens"])
    if not found:
        raise UsageError(f"--order {order}: there is no finished chain in {run}; name the folder of a run that has some")
    return found


def start_order(order: str, samples: int, is_over: IsOver, earlier: Thoughts) -> StartOrder:
    """What decides which chain begins next; `earlier` are the `earlier_thoughts` of `order`."""
    return InputOrder(samples, is_over) if order == INPUT else LongestFirst(samples, is_over, earlier)
