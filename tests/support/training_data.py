"""Small training data about the bundled problems, as `pipeline export` writes it."""

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline.graph.prompts import DEFAULT_PROMPTS
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.training.examples import problem_hash, split_of, tokenizer_hash
from tests.support.chat_models import chat_model
from tests.support.paths import ROOT

ARITH = ROOT / "datasets/arith/validation.parquet"


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


def origin(problem: str, validation: float = 0.2, **values: Any) -> dict[str, Any]:
    """The columns that say where a row about a problem comes from."""
    said: Mapping[str, Any] = {
        "split": split_of(problem, validation), "problem_id": "p", "chain_id": "p#0", "correct": True, "run_id": "r1", "graph": "scot",
        "problem_hash": problem_hash(problem),
    }  # fmt: skip
    return {**said, **values}


def reply(problem: str, said: str, **values: Any) -> dict[str, Any]:
    """A row of `pipeline export --as sft`."""
    prompt, completion = [{"role": "user", "content": problem}], [{"role": "assistant", "content": said}]
    return {**origin(problem), "prompt": prompt, "completion": completion, **values}


def replies(count: int, **values: Any) -> list[dict[str, Any]]:
    """Right thoughts about so many problems."""
    return [reply(problem, f"<think>\n{thought(steps)}</think>", **values) for problem, steps in arith(count)]


def choices(count: int, drafts: int = 3, **values: Any) -> list[dict[str, Any]]:
    """Rows of `pipeline export --as selection`: drafted thoughts about so many problems; of every fourth problem none is right."""
    tokenizer, draw, rows = chat_model("tiny-target"), random.Random(0), []
    builder = PromptBuilder(tokenizer, DEFAULT_PROMPTS)
    for place, (problem, steps) in enumerate(arith(count)):
        right = [] if place % 4 == 3 else sorted(draw.sample(range(drafts), draw.randint(1, drafts - 1)))
        thoughts = [thought(steps if index in right else wrong(steps, draw)).rstrip() for index in range(drafts)]
        context, shown = builder.generation(problem), [tokenizer.encode_parts(["", each]) for each in thoughts]
        asked = builder.choose(context, shown, unit="thought", problem=problem, begin=len(context))
        options = builder.options("thought", drafts, True)
        assert options.none == 0
        said = {"prompt": tokenizer.decode(asked.ids), "input_ids": list(asked.ids), "option_ids": list(asked.option_ids)}
        labels = {"options": list(options.all), "right": [index + 1 for index in right] or [0]}
        made = {"step_index": 0, "model": "bundled:tiny-target", "tokenizer": tokenizer_hash(tokenizer)}
        rows.append({**origin(problem), **made, **said, **labels, **values})
    return rows


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
    return path


def write_config(path: Path, **values: Any) -> Path:
    """A training file; JSON is YAML."""
    path.write_text(json.dumps(values))
    return path
