"""Counts of tokens and words in steps and drafts: the steps table of a run folder enters, sums for each problem leave.

Texts are read in batches and not kept.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from pipeline.analysis.time.timeline import Array
from pipeline.store.read import read_batches, with_lengths

REFLECTIVE = ("wait", "but", "hmm", "however", "alternatively", "actually", "maybe", "let me check", "double-check")
"""Words of second thoughts (SpecCoT A.1 names the first three and an ellipsis; the others are this project's)."""
_REFLECTIVE = re.compile(r"\b(" + "|".join(map(re.escape, REFLECTIVE)) + r")\b", re.IGNORECASE)
_WORD = re.compile(r"\w+")
COLUMNS = ["chain_id", "decision", "step_text", "step_token_ids", "candidate_texts", "candidate_tokens"]


class Texts(Struct, frozen=True):
    """Counts over the texts of one kind, by problem, over all its samples."""

    count: Array
    """Number of texts."""
    tokens: Array
    words: Array
    reflective: Array
    """Number of `REFLECTIVE` words."""


def read_texts(folder: Path, place: Mapping[str, int], problems: int) -> dict[str, Texts]:
    """Count the texts in the run folder `folder`, by kind; raises `InputError`. `place` is the index of each chain's problem, below
    `problems`; chains that are not in it do not count.

    A kind is the decision about a committed step, or one of: `drafted`, all candidates; `longest`, the longest candidate of
    each round (SCoT table 1); `rejected`, the candidates of rounds in which all were rejected.
    """
    sums: dict[str, Array] = {}
    for batch in read_batches(folder, "steps", COLUMNS):
        for row in with_lengths(batch, "step_token_ids").to_pylist():
            if row["chain_id"] in place:
                _add(sums, row, place[row["chain_id"]], problems)
    return {kind: Texts(*rows) for kind, rows in sorted(sums.items())}


def _add(sums: dict[str, Array], row: dict[str, Any], problem: int, problems: int) -> None:
    drafts = list(zip(row["candidate_texts"], row["candidate_tokens"], strict=True))
    said = [(row["decision"], row["step_text"], row["step_token_ids"])]
    said += [("drafted", *draft) for draft in drafts]
    if drafts:
        said.append(("longest", *max(drafts, key=lambda draft: draft[1])))
    if row["decision"] == "fallback":
        said += [("rejected", *draft) for draft in drafts]
    for kind, text, tokens in said:
        if kind not in sums:
            sums[kind] = np.zeros((4, problems))
        sums[kind][:, problem] += (1, tokens, *words_in(text))


@lru_cache(maxsize=256)  # candidates of one round are often the same
def words_in(text: str) -> tuple[int, int]:
    """The number of words in `text`, and of `REFLECTIVE` ones."""
    return len(_WORD.findall(text)), len(_REFLECTIVE.findall(text))
