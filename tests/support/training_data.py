"""Small training data about the bundled problems, in the form of SCoT's published files and as `pipeline export` writes it."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.support.paths import ROOT

ARITH = ROOT / "datasets/arith/validation.parquet"
BEGIN, USER, SAYS = "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"  # noqa: RUF001 - as published
ASKED = (
    "I will provide several Reasons for the Question. Please choose the best reasoning path and give the serial Number directly (you can"
    " only choose one). \n\nQuestion: {problem}\n\nHere are the reasoning paths:\n\n{reasons}"
    "Reason {none}: All reasoning paths above are wrong.\n\n{says}Number of the best reasoning path: "
)
ORIGIN = {"chain_id": "p#0", "step_index": 0, "correct": True, "run_id": "r1", "graph": "scot", "input_sha256": "0" * 64}


def arith(count: int, begin: int = 0) -> list[tuple[str, list[str]]]:
    """So many problems, each with the right steps of its thought."""
    table = pq.read_table(ARITH, columns=["problem", "steps"]).slice(begin, count)
    return [(row["problem"], row["steps"]) for row in table.to_pylist()]


def thought(steps: Sequence[str]) -> str:
    """Steps as the bundled models write them, without the mark that closes a thought."""
    return "".join(f"{step}\n\n" for step in steps)


def wrong(steps: Sequence[str], draw: random.Random) -> list[str]:
    """Steps whose last result is another one."""
    *before, last = steps
    head, _, result = last.rstrip(".").rpartition(" ")
    other = draw.choice([number for number in range(31) if number != int(result)])
    return [*before, f"{head} {other}."]


def published_thoughts(path: Path, count: int = 8, begin: int = 0) -> Path:
    """A file in the form of SCoT's published thoughts."""
    rows = ({"pred": f"{BEGIN}{BEGIN}{USER}{problem}{SAYS}<think>\n{thought(steps)}</think>"} for problem, steps in arith(count, begin))
    return write_lines(path, rows)


def published_choice(problem: str, thoughts: Sequence[str], label: Any) -> dict[str, Any]:
    """A row in the form of SCoT's published choices."""
    reasons = "".join(f"Reason {number}: {each}\n\n" for number, each in enumerate(thoughts, 1))
    return {"input": ASKED.format(problem=problem, reasons=reasons, none=len(thoughts) + 1, says=SAYS), "label": label}


def choices(count: int, begin: int = 0, drafts: int = 3) -> list[tuple[str, list[str], list[int]]]:
    """So many problems, each with drafted thoughts and the indices of the right ones; of every fourth problem none is right."""
    draw, found = random.Random(begin), []
    for place, (problem, steps) in enumerate(arith(count, begin)):
        right = [] if place % 4 == 3 else sorted(draw.sample(range(drafts), draw.randint(1, drafts - 1)))
        thoughts = [thought(steps if index in right else wrong(steps, draw)).rstrip() for index in range(drafts)]
        found.append((problem, thoughts, right))
    return found


def published_choices(path: Path, count: int = 8, begin: int = 0) -> Path:
    """A file in the form of SCoT's published choices."""
    rows = (
        published_choice(problem, thoughts, [index + 1 for index in right] or [len(thoughts) + 1])
        for problem, thoughts, right in choices(count, begin)
    )
    return write_lines(path, rows)


def write_lines(path: Path, rows: Any) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
    return path


def write_config(path: Path, **values: Any) -> Path:
    """A training file; JSON is YAML."""
    path.write_text(json.dumps(values))
    return path


def selection_row(**values: Any) -> dict[str, Any]:
    """A row of `pipeline export --as selection`, about nothing in particular."""
    said: Mapping[str, Any] = {
        **ORIGIN, "split": "train", "problem_id": "p", "model": "bundled:tiny-target", "prompt": "", "input_ids": [5, 6],
        "option_ids": [7, 8], "options": ["0", "1"], "right": [1], "none": 0,
    }  # fmt: skip
    return {**said, **values}


def tokens_row(**values: Any) -> dict[str, Any]:
    """A row of `pipeline export --as sft --tokens`, about nothing in particular."""
    said = {**ORIGIN, "split": "train", "problem_id": "p", "model": "bundled:tiny-draft"}
    said |= {"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}
    return {**said, **values}


def messages_row(asked: str, reply: str, **values: Any) -> dict[str, Any]:
    """A row of `pipeline export --as sft`."""
    prompt, completion = [{"role": "user", "content": asked}], [{"role": "assistant", "content": reply}]
    said = {**ORIGIN, "split": "train", "problem_id": "p", "model": "bundled:tiny-draft", "prompt": prompt, "completion": completion}
    return {**said, **values}
