"""A run folder as something to compare: what was decided about it, and a few numbers of every problem.

Trace files and `run.json` enter, one frozen `RunTable` leaves; texts are read in batches and only counted.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.analysis.timeline import Array
from pipeline.errors import InputError
from pipeline.trace.read import read_batches

REFLECTIVE = ("wait", "but", "hmm", "however", "alternatively", "actually", "maybe", "let me check", "double-check")
"""Words of second thoughts (SpecCoT A.1 names the first three and an ellipsis; the others are ours)."""
_REFLECTIVE = re.compile(r"\b(" + "|".join(map(re.escape, REFLECTIVE)) + r")\b", re.IGNORECASE)
_WORD = re.compile(r"\w+")


class Text(Struct, frozen=True):
    """Texts of one kind, counted."""

    count: int
    tokens: int
    words: int
    reflective: int
    """Occurrences of `REFLECTIVE` words."""


class RunTable(Struct, frozen=True, kw_only=True):
    """One run. The arrays have one place for each problem, in the order of `problem_ids`, means over its samples."""

    name: str
    graph: str
    engines: dict[str, dict[str, Any]]
    params: dict[str, Any]
    schedule: str
    batch_size: int
    samples: int
    seed: int
    simulated: bool
    status: str
    input: dict[str, Any]
    wall_time_s: float
    output_tokens: dict[str, int]
    """Of each role, over the whole run, failed calls included."""
    problem_ids: tuple[str, ...]
    correct: Array
    """Share of right samples; NaN where none was graded."""
    latency_s: Array
    """`chain_time_s`: from admission to the end."""
    thought_tokens: Array
    answer_tokens: Array
    """Sampled after the thought, by `answer` stages."""
    draft_tokens: Array
    """Output tokens of the role `draft`, whatever became of them."""
    target_tokens: Array
    steps: Array
    accepted: Array
    fallbacks: Array
    failed: int
    """Chains that failed or were cancelled; they are in none of the arrays."""
    texts: dict[str, Text]
    """Committed steps by decision, and `drafted`: all candidates."""

    @property
    def models(self) -> dict[str, str]:
        """The model of each role, without its folder."""
        return {role: str(spec.get("model", role)).rstrip("/").rpartition("/")[2] for role, spec in self.engines.items()}


def read_run(folder: Path) -> RunTable:
    """The table of the run folder; raises `InputError` when it is none or its trace cannot be read."""
    card = _card(folder)
    chains = _Chains(folder, _answer_tokens(folder))
    return RunTable(
        name=folder.resolve().name,
        graph=str(card["graph"].get("name") or Path(card["graph_file"]).stem),
        engines=card["engines"],
        params=card["params"],
        schedule=card["schedule"],
        batch_size=card["batch_size"],
        samples=card["samples"],
        seed=card["seed"],
        simulated=card["virtual_time"],
        status=card["status"],
        input=card["input"],
        wall_time_s=float(card.get("wall_time_s") or 0.0),
        output_tokens=dict(card.get("totals", {}).get("output_tokens", {})),
        failed=chains.failed,
        texts=_texts(folder),
        **chains.columns(),
    )


def _card(folder: Path) -> dict[str, Any]:
    path = folder / "run.json"
    try:
        card: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict)
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {(error.strerror or str(error)).lower()}; name a run folder") from error
    except msgspec.MsgspecError as error:
        raise InputError(str(path), f"is no run.json of this program: {error}") from error
    needed = ("graph", "graph_file", "engines", "params", "schedule", "batch_size", "samples", "seed", "virtual_time", "status", "input")
    if missing := [key for key in needed if key not in card]:
        raise InputError(str(path), f"is no run.json of this program: it has no `{missing[0]}`")
    return card


class _Chains:
    """Sums over the samples of each problem; of a chain that was taken up again the last row counts."""

    NUMBERS = ("chain_time_s", "thought_tokens", "draft_output_tokens", "target_output_tokens", "steps", "accepted_steps", "fallback_steps")

    def __init__(self, folder: Path, answers: Counter[str]) -> None:
        rows: dict[str, dict[str, Any]] = {}
        for batch in read_batches(folder, "chains", ["chain_id", "problem_id", "correct", "stop_reason", *self.NUMBERS]):
            rows.update((row["chain_id"], row) for row in batch.to_pylist())
        finished = [row for row in rows.values() if row["stop_reason"] not in ("error", "cancelled")]
        self.failed = len(rows) - len(finished)
        self._problems: dict[str, list[dict[str, Any]]] = {}
        for row in finished:
            row["answer_tokens"] = answers[row["chain_id"]]
            self._problems.setdefault(row["problem_id"], []).append(row)

    def columns(self) -> dict[str, Any]:
        names = {
            "latency_s": "chain_time_s",
            "thought_tokens": "thought_tokens",
            "answer_tokens": "answer_tokens",
            "draft_tokens": "draft_output_tokens",
            "target_tokens": "target_output_tokens",
            "steps": "steps",
            "accepted": "accepted_steps",
            "fallbacks": "fallback_steps",
        }
        ids = sorted(self._problems)
        columns = {ours: np.array([np.mean([row[theirs] for row in self._problems[p]]) for p in ids]) for ours, theirs in names.items()}
        graded = [[row["correct"] for row in self._problems[p] if row["correct"] is not None] for p in ids]
        return columns | {"problem_ids": tuple(ids), "correct": np.array([np.mean(marks) if marks else np.nan for marks in graded])}


def _answer_tokens(folder: Path) -> Counter[str]:
    """Output tokens of the calls of `answer` stages, by chain."""
    found: Counter[str] = Counter()
    for batch in read_batches(folder, "calls", ["chain_id", "kind", "output_tokens"]):
        answers = batch.filter(pc.equal(batch.column("kind"), "answer"))
        for chain_id, tokens in zip(answers.column("chain_id").to_pylist(), answers.column("output_tokens").to_pylist(), strict=True):
            found[chain_id] += tokens
    return found


def _texts(folder: Path) -> dict[str, Text]:
    sums: dict[str, Counter[str]] = {}
    for batch in read_batches(folder, "steps", ["decision", "step_text", "step_token_ids", "candidate_texts", "candidate_tokens"]):
        for row in batch.to_pylist():
            _count(sums.setdefault(row["decision"], Counter()), row["step_text"], len(row["step_token_ids"]))
            for text, tokens in zip(row["candidate_texts"], row["candidate_tokens"], strict=True):
                _count(sums.setdefault("drafted", Counter()), text, tokens)
    return {kind: Text(s["count"], s["tokens"], s["words"], s["reflective"]) for kind, s in sorted(sums.items())}


def _count(sums: Counter[str], text: str, tokens: int) -> None:
    sums["count"] += 1
    sums["tokens"] += tokens
    sums["words"] += len(_WORD.findall(text))
    sums["reflective"] += len(_REFLECTIVE.findall(text))
