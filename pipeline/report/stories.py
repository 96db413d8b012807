"""Chains to read in full: the chains and steps tables and, where it still is what it was, the input file enter, stories leave.

Only the chains asked for are held.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.analysis.capabilities import read_steps
from pipeline.data.problems import open_problems
from pipeline.errors import BadRow, InputError
from pipeline.report.chain_list import ChainList
from pipeline.report.setup import Setup
from pipeline.report.story_steps import STEP_COLUMNS, Step, shown, step_of
from pipeline.trace.read import read_batches

MOST_STORIES = 8_000_000
"""Characters of all stories of a run together; from there on stories are left out."""
CHAIN_COLUMNS = (
    "chain_id",
    "problem_id",
    "sample_index",
    "input_row",
    "answer",
    "answer_text",
    "reference_answer",
    "correct",
    "stop_reason",
    "error_type",
    "error_message",
    "error_stage",
    "steps",
    "accepted_steps",
    "fallback_steps",
    "thought_tokens",
    "chain_time_s",
    "wait_time_s",
)


class Story(Struct, frozen=True, kw_only=True):
    """One chain, in full."""

    chain_id: str
    why: tuple[str, ...]
    """Why it is shown: `failed`, `wrong`, `slowest`."""
    verdict: str
    """`right`, `wrong`, `failed` or `not graded`."""
    problem: str | None
    """Null where the input file is gone or another one."""
    answer: str | None
    answer_text: str | None
    reference: str | None
    ended: str
    facts: str
    steps: tuple[Step, ...]


class Stories(Struct, frozen=True):
    """Stories, and how many more were asked for than fit."""

    stories: tuple[Story, ...]
    left_out: int = 0


def read_stories(run: Path, setup: Setup, chains: ChainList, reasons: Mapping[int, Sequence[str]]) -> Stories:
    """The stories of the chains at the places that `reasons` names, in its order."""
    why = {chains.names[place]: tuple(each) for place, each in reasons.items()}
    rows = {row["chain_id"]: row for row in _rows(read_batches(run, "chains", CHAIN_COLUMNS), list(why))}
    steps: dict[str, list[Step]] = {}
    size = 0
    for row in _rows(read_steps(run, STEP_COLUMNS), list(why)):
        if size < MOST_STORIES or row["chain_id"] in steps:
            step = step_of(row)
            steps.setdefault(row["chain_id"], []).append(step)
            size += len(step.text) + sum(len(each.text) for each in step.candidates)
    kept = [name for name in why if name in steps or not rows[name]["steps"] or size < MOST_STORIES]
    problems = _problems(setup, [rows[name]["input_row"] for name in kept])
    stories = [_story(rows[name], why[name], problems, steps.get(name, [])) for name in kept]
    return Stories(tuple(stories), len(why) - len(kept))


def _rows(batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of the chains named, in the order of the table."""
    wanted = pa.array(names, pa.string())
    for batch in batches:
        mine = pc.is_in(batch.column("chain_id"), wanted)
        if pc.any(mine).as_py():
            yield from batch.filter(mine).to_pylist()


def _problems(setup: Setup, rows: Sequence[int]) -> dict[int, str]:
    """Text of the problems in these rows of the input; nothing where that file is not there or not the same."""
    path = Path(setup.options.get("input") or setup.input["file"])
    try:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != setup.input.get("sha256"):
                return {}
        left, found = set(rows), {}
        for item in open_problems(path, setup.input.get("columns"), setup.input.get("limit")):
            if item.row in left:
                left.discard(item.row)
                found[item.row] = item.what if isinstance(item, BadRow) else item.problem
            if not left:
                break
    except (OSError, ValueError, InputError):
        return {}
    return found


def _story(row: Mapping[str, Any], why: tuple[str, ...], problems: Mapping[int, str], steps: Sequence[Step]) -> Story:
    return Story(
        chain_id=shown(row["chain_id"]),
        why=why,
        verdict=_verdict(row),
        problem=_maybe(problems.get(row["input_row"])),
        answer=_maybe(row["answer"]),
        answer_text=_maybe(row["answer_text"]),
        reference=_maybe(row["reference_answer"]),
        ended=shown(_ended(row)),
        facts=_facts(row),
        steps=tuple(sorted(steps, key=lambda step: step.index)),
    )


def _verdict(row: Mapping[str, Any]) -> str:
    if row["error_type"] is not None or row["stop_reason"] == "cancelled":
        return "failed"
    return {True: "right", False: "wrong", None: "not graded"}[row["correct"]]


def _ended(row: Mapping[str, Any]) -> str:
    if row["error_type"] is None:
        return str(row["stop_reason"])
    return f"{row['error_type']} in {row['error_stage'] or 'no stage'}: {row['error_message'] or ''}"


def _facts(row: Mapping[str, Any]) -> str:
    return (
        f"{row['chain_time_s']:.3g} s, of that {row['wait_time_s']:.3g} s waiting; {row['steps']} steps, {row['accepted_steps']} accepted, "
        f"{row['fallback_steps']} fallback; {row['thought_tokens']:,} tokens of thought"
    )


def _maybe(text: str | None) -> str | None:
    return None if text is None else shown(text)
