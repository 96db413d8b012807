"""How long chains think, and what they do meanwhile: the calls of a run folder enter, seconds for each problem leave.

The thinking stage is what SCoT 4.2 times: from the chain's first call to the end of its thought, without the answer. Seconds in which
several calls of one kind are under way at once count once. Calls are read in batches; a few numbers of each are held.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from msgspec import Struct

from pipeline.analysis.capabilities import PURPOSE_FROM, with_purpose
from pipeline.analysis.time.timeline import Array, Names
from pipeline.graph.plan import Plan
from pipeline.store.read import read_batches

KINDS = {"draft": "drafting", "judge": "verification", "guide": "target", "write": "target", "answer": "answer"}
"""By the purpose of a call, what its time counts as: drafting, choosing and scoring, thinking by the engine that writes, or the answer."""
COLUMNS = ("chain_id", "stage", "submit_unix_ns", "end_unix_ns", "client_wait_s", "output_tokens", *PURPOSE_FROM)
LATER = ("purpose", "decode_time_s")


class Thinking(Struct, frozen=True):
    """Seconds of thinking, added up over the finished chains of each problem."""

    seconds: Array
    """From the chain's first call to the end of its thought."""
    by_kind: dict[str, Array]
    """By the values of `KINDS`: seconds in which a call of that kind was waiting or at an engine."""


class _Calls(Struct):
    """Calls as columns of equal length; times are seconds since the first of them."""

    chain: Array
    kind: Array
    start: Array
    end: Array


def read_thinking(run: Path, plan: Plan, place: Mapping[str, int], problems: int) -> Thinking:
    """The thinking of the chains in `place`, which holds the index of each one's problem, below `problems`. Raises `InputError`.

    Of a response that holds thought and answer, the thought's part of the decode time is that of its tokens.
    """
    chains = Names({name: index for index, name in enumerate(place)})
    kinds = Names({kind: index for index, kind in enumerate(dict.fromkeys(KINDS.values()))})
    whole = {node.name for node in plan.stages() if node.spec.finishes and not node.spec.answers}
    calls = _read_calls(run, chains, kinds, whole, _thoughts(run, whole))
    owner = np.array(list(place.values()), int)
    answers = calls.kind == kinds["answer"]
    first, last = np.full(len(owner), np.inf), np.full(len(owner), -np.inf)
    np.minimum.at(first, calls.chain, calls.start)
    np.maximum.at(last, calls.chain[~answers], calls.end[~answers])
    seconds = np.where(np.isfinite(last), last - np.where(np.isfinite(first), first, 0), 0)
    by_kind = {kind: _busy(calls, calls.kind == code, len(owner)) for kind, code in kinds.items()}
    return Thinking(np.bincount(owner, seconds, problems), {kind: np.bincount(owner, each, problems) for kind, each in by_kind.items()})


def _read_calls(run: Path, chains: Names, kinds: Names, whole: set[str], thoughts: Mapping[str, int]) -> _Calls:
    """The calls of the chains in `chains`, with each response of the stages `whole` as two: its thought, then its answer."""
    parts = [_Calls(np.empty(0, int), np.empty(0, int), np.empty(0), np.empty(0))]
    known, origin = len(chains), None
    for batch in read_batches(run, "calls", COLUMNS, LATER):
        submit, end = (batch.column(name).to_numpy() for name in ("submit_unix_ns", "end_unix_ns"))
        origin = int(submit.min()) if origin is None and len(submit) else origin or 0
        calls = _Calls(
            chain=chains.codes(batch.column("chain_id")).astype(int),
            kind=np.array([kinds[KINDS.get(purpose, "target")] for purpose in with_purpose(batch).column("purpose").to_pylist()], int),
            start=(submit - origin) / 1e9 - batch.column("client_wait_s").to_numpy(zero_copy_only=False),
            end=(end - origin) / 1e9,
        )
        parts += [calls, *([_answers_within(batch, calls, kinds["answer"], whole, thoughts)] if whole else [])]
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in _Calls.__struct_fields__]
    counts = columns[0] < known
    return _Calls(*(column[counts] for column in columns))


def _answers_within(batch: pa.RecordBatch, calls: _Calls, answer: int, whole: set[str], thoughts: Mapping[str, int]) -> _Calls:
    """The answers within the responses of the stages `whole`, as calls; those in `calls`, which are of `batch`, end before them then."""
    rows = np.flatnonzero(np.isin(batch.column("stage").to_pylist(), sorted(whole)))
    tokens = batch.column("output_tokens").to_numpy()[rows]
    written = np.array([thoughts.get(chain, 0) for chain in batch.column("chain_id").take(rows).to_pylist()])
    decode_s = calls.end[rows] - calls.start[rows]
    if "decode_time_s" in batch.schema.names:
        stated = batch.column("decode_time_s").cast("float64").fill_null(np.nan).to_numpy(zero_copy_only=False)[rows]
        decode_s = np.where(np.isnan(stated), decode_s, stated)
    until = calls.end[rows].copy()
    calls.end[rows] -= decode_s * (1 - np.clip(written / np.maximum(tokens, 1), 0, 1)) * (tokens > 0)
    return _Calls(calls.chain[rows], np.full(len(rows), answer), calls.end[rows], until)


def _thoughts(run: Path, stages: set[str]) -> dict[str, int]:
    """By chain, the tokens of the thought that one of `stages` wrote within its response."""
    found: dict[str, int] = {}
    for batch in read_batches(run, "steps", ("chain_id", "stage", "step_token_ids")) if stages else ():
        tokens = batch.column("step_token_ids").value_lengths().to_pylist()
        rows = zip(batch.column("chain_id").to_pylist(), batch.column("stage").to_pylist(), tokens, strict=True)
        found |= {chain: count for chain, stage, count in rows if stage in stages}
    return found


def _busy(calls: _Calls, which: Array, chains: int) -> Array:
    """Seconds of each chain in which at least one of the calls that `which` marks was under way."""
    chain, start, end = calls.chain[which], calls.start[which], calls.end[which]
    if not len(chain):
        return np.zeros(chains)
    order = np.lexsort((start, chain))
    chain, start, end = chain[order], start[order], end[order]
    # Each chain is moved after the ones before it, so that one running maximum tells how far the chain's calls reached.
    shift = chain * (end.max() - start.min() + 1.0)
    reached = np.maximum.accumulate(end + shift)
    before = np.concatenate([[-np.inf], reached[:-1]])
    return np.bincount(chain, np.maximum(0.0, end + shift - np.maximum(start + shift, before)), chains)
