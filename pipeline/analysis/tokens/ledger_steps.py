"""Tokens of the committed steps of a run's finished chains: the steps table enters, sums leave."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.analysis.quality.selection import stages_of
from pipeline.analysis.time.calls import in_one_piece, whole
from pipeline.analysis.time.outline import FINISHED, Outline
from pipeline.analysis.time.timeline import Array
from pipeline.trace.read import read_backwards

KEYS = ("stage", "source_engine", "decision")
COLUMNS = ("chain_id", *KEYS, "step_index", "draft_tokens", "draft_tokens_wasted", "candidate_tokens")


class StepTokens:
    """Sums over steps. Candidates count by the engine that drafted them; under the empty name where only one does."""

    def __init__(self, outline: Outline) -> None:
        self._chains = outline.chains
        drafts = [spec for _, spec in stages_of(outline.card.graph) if spec.get("kind") == "draft"]
        owners = [str(spec["engine"]) for spec in drafts for _ in range(spec["candidates"])]
        self.drafters = tuple(dict.fromkeys(owners)) if len(set(owners)) > 1 else ("",)
        self._owners = np.array([self.drafters.index(owner) for owner in owners] if len(self.drafters) > 1 else [0])
        self.committed: Counter[str] = Counter()
        """In accepted candidates, by the engine that wrote them."""
        self.accepted: Counter[str] = Counter()
        """In all candidates of accepted steps."""
        self.cut = 0
        """Sampled for candidates and in none of them."""
        self.decisions: set[tuple[str, str]] = set()
        """Stage and decision of all steps."""
        self.first_steps: Counter[str] = Counter()
        """By stage, how many first steps it writes by itself."""

    def add(self, table: pa.Table) -> None:
        """Count some steps in."""
        finished = self._chains.status_of(whole(table, "chain_id")) == FINISHED
        drafted = table.column("draft_tokens").to_numpy() * finished
        kept = [each * finished for each in self._kept(table)]
        if len(kept) == 1:  # an engine that is asked greedily for several may sample one and give it several times
            kept = [np.minimum(kept[0], drafted)]
        numbers = {
            "index": table.column("step_index").to_numpy(),
            "cut": drafted - np.sum(kept, axis=0),
            "committed": drafted - table.column("draft_tokens_wasted").to_numpy() * finished,
            **{f"kept {place}": each for place, each in enumerate(kept)},
        }
        keyed = table.select(KEYS)
        for name, values in numbers.items():
            keyed = keyed.append_column(name, pa.array(values))
        sums = [(name, "sum") for name in numbers if name != "index"]
        for row in keyed.group_by(list(KEYS)).aggregate([("index", "max"), *sums]).to_pylist():
            self._add_row(row)

    def _add_row(self, row: dict[str, Any]) -> None:
        stage, engine, decision = (row[key] for key in KEYS)
        self.decisions.add((stage, decision))
        self.cut += row["cut_sum"]
        if decision == "first_steps":
            self.first_steps[stage] = max(self.first_steps[stage], row["index_max"])
        if decision == "accepted":
            self.committed[engine] += row["committed_sum"]
            for place, owner in enumerate(self.drafters):
                self.accepted[owner] += row[f"kept {place}_sum"]

    def _kept(self, table: pa.Table) -> list[Array]:
        """Tokens of each step's candidates, one array for each of the drafters."""
        lists = whole(table, "candidate_tokens")
        tokens = lists.flatten().to_numpy()
        if len(self.drafters) == 1:
            return [_sums(lists, tokens)]
        lengths = pc.list_value_length(lists).to_numpy()
        places = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        owner = self._owners[np.minimum(places, len(self._owners) - 1)]
        return [_sums(lists, tokens * (owner == place)) for place in range(len(self.drafters))]


def read_step_tokens(run: Path, outline: Outline) -> StepTokens:
    """The sums of the run folder `run`; raises `InputError` where its steps cannot be read."""
    tokens = StepTokens(outline)
    for table in read_backwards(run, "steps", COLUMNS, ("chain_id", *KEYS)):
        if table.num_rows:
            tokens.add(in_one_piece(table))
    return tokens


def read_written(run: Path, outline: Outline) -> Counter[tuple[str, str]]:
    """Tokens of the steps that engines wrote by themselves, by engine and decision. Reads the ids of all steps, which takes long."""
    written: Counter[tuple[str, str]] = Counter()
    for table in read_backwards(run, "steps", ("chain_id", *KEYS[1:], "step_token_ids"), ("chain_id", *KEYS[1:])):
        if not table.num_rows:
            continue
        table = in_one_piece(table)
        finished = outline.chains.status_of(whole(table, "chain_id")) == FINISHED
        lengths = pc.list_value_length(table.column("step_token_ids")).to_numpy() * finished
        keyed = table.select(KEYS[1:]).append_column("tokens", pa.array(lengths))
        for row in keyed.group_by(list(KEYS[1:])).aggregate([("tokens", "sum")]).to_pylist():
            written[row["source_engine"], row["decision"]] += row["tokens_sum"]
    return written


def _sums(lists: pa.ListArray, values: Array) -> Array:
    """The sum of each of `lists`, which hold `values` one after the other."""
    offsets = lists.offsets.to_numpy()
    return np.diff(np.concatenate([[0], np.cumsum(values)])[offsets - offsets[0]])
