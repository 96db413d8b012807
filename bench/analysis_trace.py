"""Writes the trace of a long run that never was, for bench/analysis.py: a run folder with the program's own schema and part sizes.

Chains of SpecCoT's shape follow each other in a number of places, so that the times are those of a schedule; token ids and texts,
which would be most of the bytes and which nobody reads there, are left empty.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from pipeline.store.columns import schema_of
from pipeline.store.events import CallRow, ChainRow, StepRow
from pipeline.store.parts import GROUP_ROWS, PART_GROUPS, Label, Part

Array = Any
T0 = 1_700_000_000 * 10**9
STAGES = ("guidance", "draft", "verify", "fallback", "answer")
KINDS = ("generate", "draft", "choose", "generate", "answer")
PURPOSES = ("guide", "draft", "judge", "write", "answer")
GUIDANCE, DRAFT, VERIFY, FALLBACK, ANSWER = range(5)
ROLES = ("draft", "target")
CANDIDATES = 5
PREFILL_S = (0.02, 0.004, 0.015, 0.015, 0.02)
TOKEN_S = (0.02, 0.005, 0.0, 0.02, 0.02)
"""By stage: means of what a call takes, and of what one of its tokens takes."""
FILES = {"calls": CallRow, "steps": StepRow, "chains": ChainRow}


class Shape(Struct, frozen=True):
    """Which chain and step each call belongs to, in the order in which each chain makes its calls."""

    chains: int
    chain: Array
    step: Array
    stage: Array
    step_chain: Array
    """Of each step but guidance its chain, its index and whether its drafts were rejected."""
    step_index: Array
    rejected: Array


def shape(calls: int, draw: np.random.Generator) -> Shape:
    """About so many calls."""
    chains = max(calls * 10 // 104, 1)
    rounds = 1 + draw.poisson(3, chains)
    step_chain = np.repeat(np.arange(chains), rounds)
    rejected = draw.random(len(step_chain)) < 0.1
    step_index = 1 + np.arange(len(step_chain)) - np.repeat(np.cumsum(rounds) - rounds, rounds)
    pieces = [
        (np.arange(chains), np.zeros(chains, int), GUIDANCE),
        (step_chain, step_index, DRAFT),
        (step_chain, step_index, VERIFY),
        (step_chain[rejected], step_index[rejected], FALLBACK),
        (np.arange(chains), rounds + 1, ANSWER),
    ]
    chain, step = (np.concatenate([piece[side] for piece in pieces]) for side in (0, 1))
    stage = np.concatenate([np.full(len(piece[0]), piece[2]) for piece in pieces])
    order = np.lexsort((stage, step, chain))
    return Shape(chains, chain[order], step[order], stage[order], step_chain, step_index, rejected)


def times(of: Shape, tokens: Array, places: int, draw: np.random.Generator) -> dict[str, Array]:
    """Nanoseconds of every call, and starts and ends of the chains, of which `places` live at once."""
    count = len(of.chain)
    spread = draw.lognormal(-0.08, 0.4, (2, count))
    parts = {
        "gap": draw.exponential(2e-4, count),
        "wait": draw.exponential(2e-3, count) * (draw.random(count) < 0.2),
        "queue": draw.exponential(3e-3, count),
        "prefill": np.array(PREFILL_S)[of.stage] * spread[0],
        "decode": np.array(TOKEN_S)[of.stage] * spread[1] * (tokens / np.where(of.stage == DRAFT, CANDIDATES, 1) - 1).clip(0),
        "transfer": draw.exponential(1e-4, count),
    }
    ns = {name: np.rint(seconds * 1e9).astype(np.int64) for name, seconds in parts.items()}
    taken = sum(ns.values())
    upto = np.cumsum(taken)
    first = np.searchsorted(of.chain, np.arange(of.chains))
    length = np.add.reduceat(taken, first) + 100_000
    rows = -(-of.chains // places)
    padded = np.zeros(rows * places, np.int64)
    padded[: of.chains] = length
    until = np.cumsum(padded.reshape(rows, places), axis=0).reshape(-1)[: of.chains]
    start = until - length
    end = start[of.chain] + upto - (upto - taken)[first][of.chain]
    submit = end - taken + ns["gap"] + ns["wait"]
    return ns | {"submit": submit, "end": end, "chain_start": start, "chain_end": until, "ready": submit - ns["wait"]}


class Folder:
    """A table of the run folder, written part by part."""

    def __init__(self, folder: Path, table: str) -> None:
        self._folder, self._schema = folder / table, schema_of(FILES[table])
        self._folder.mkdir(parents=True)

    def write(self, rows: int, columns: Mapping[str, Array]) -> None:
        """All rows; columns that are not given are empty, null or 0."""
        size = GROUP_ROWS * PART_GROUPS
        for number, since in enumerate(range(0, rows, size)):
            part = Part(self._folder / f"part-{number:05}.parquet", Label("bench", self._folder.name, number, 0).put_on(self._schema))
            for start in range(since, min(since + size, rows), GROUP_ROWS):
                mine = slice(start, min(start + GROUP_ROWS, rows))
                arrays = [self._array(field, columns.get(field.name), mine) for field in self._schema]
                part.add(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
            part.finish()

    def _array(self, field: pa.Field, column: Any, rows: slice) -> pa.Array:
        count = rows.stop - rows.start
        if callable(column):
            return column(rows)
        if column is not None:
            return pa.array(column[rows], field.type, from_pandas=field.nullable)
        if field.nullable:
            return pa.nulls(count, field.type)
        if pa.types.is_list(field.type):
            return pa.ListArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), pa.array([], field.type.value_type), type=field.type)
        return pa.array(np.full(count, "" if pa.types.is_string(field.type) else 0, object).tolist(), field.type)


def chosen(names: tuple[str | None, ...], codes: Array) -> Any:
    """A column of strings out of places in `names`."""
    return lambda rows: pa.DictionaryArray.from_arrays(pa.array(codes[rows].astype(np.int32)), pa.array(names)).dictionary_decode()


def numbered(codes: Array) -> Any:
    """A column of names such as a chain's."""
    return lambda rows: pa.array([f"problem-{code}#0" for code in codes[rows].tolist()])


def lists(lengths: Array, values: Any, kind: pa.DataType) -> Any:
    """A column of lists; `values(rows)` are what the lists of these rows hold."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])

    def column(rows: slice) -> pa.Array:
        mine = offsets[rows.start : rows.stop + 1]
        return pa.ListArray.from_arrays(pa.array((mine - mine[0]).astype(np.int32)), values(slice(mine[0], mine[-1])), type=kind)

    return column


def write_trace(folder: Path, calls: int, places: int, seed: int = 0) -> int:
    """A run folder of about so many calls, of chains of which `places` live at once; the number of calls."""
    draw = np.random.default_rng(seed)
    of = shape(calls, draw)
    steps = len(of.step_chain)
    candidates = 1 + draw.poisson(38, (steps, CANDIDATES))
    last = np.append(np.diff(of.step_chain) != 0, True)
    drafted = candidates.sum(axis=1) + CANDIDATES * last
    tokens = np.array([8, 0, 1, 0, 0])[of.stage]
    tokens[of.stage == DRAFT] = drafted
    tokens[of.stage == FALLBACK] = 1 + draw.poisson(40, int((of.stage == FALLBACK).sum()))
    tokens[of.stage == ANSWER] = 2 + draw.poisson(40, of.chains)
    found = times(of, tokens, places, draw)
    _write_calls(folder, of, tokens, found, last, draw)
    committed = candidates[:, 0].copy()
    committed[of.rejected] = tokens[of.stage == FALLBACK]
    _write_steps(folder, of, candidates, drafted, committed, found)
    _write_chains(folder, of, committed, found)
    _write_card(folder, of, tokens, found, places)
    return len(of.chain)


def _write_calls(folder: Path, of: Shape, tokens: Array, found: Mapping[str, Array], last: Array, draw: np.random.Generator) -> None:
    order = np.argsort(found["end"], kind="stable")
    stage = of.stage[order]
    count = np.where(stage == DRAFT, CANDIDATES, 1)
    ends = of.stage == ANSWER
    ends[of.stage == DRAFT] = last
    of_candidate = np.repeat(np.where(stage == VERIFY, 2, np.where(ends[order], 1, 0)).astype(np.int8), count)
    reads = 100 + 40 * of.step + draw.integers(0, 50, len(stage))
    seconds = {name: found[name][order] / 1e9 for name in ("wait", "queue", "prefill", "decode")}
    longest = tokens[order] / count
    schema = schema_of(CallRow)
    columns = {
        "run_id": chosen(("bench",), np.zeros_like(stage)),
        "problem_id": numbered(of.chain[order]),
        "chain_id": numbered(of.chain[order]),
        "step_index": of.step[order],
        "stage": chosen(STAGES, stage),
        "kind": chosen(KINDS, stage),
        "purpose": chosen(PURPOSES, stage),
        "engine": chosen(ROLES, (stage != DRAFT).astype(int)),
        "choice_count": count,
        "input_tokens": reads[order],
        "cached_input_tokens": (reads[order] * 0.8).astype(np.int64),
        "output_tokens": tokens[order],
        "eos_tokens": np.where(ends[order], count, 0),
        "finish_reason": lists(count, chosen(("stop", "stop", "length"), of_candidate), schema.field("finish_reason").type),
        "stop_reason": lists(count, chosen(("\n\n", None, None), of_candidate), schema.field("stop_reason").type),
        "submit_unix_ns": T0 + found["submit"][order],
        "end_unix_ns": T0 + found["end"][order],
        "client_wait_s": seconds["wait"],
        "queue_time_s": seconds["queue"],
        "prefill_time_s": seconds["prefill"],
        "decode_time_s": seconds["decode"],
        "time_to_first_token_s": seconds["queue"] + seconds["prefill"],
        "time_per_output_token_s": np.where(longest > 1, seconds["decode"] / np.maximum(longest - 1, 1), np.nan),
        "e2e_latency_s": (found["end"] - found["submit"])[order] / 1e9,
    }
    Folder(folder, "calls").write(len(stage), columns)


def _write_steps(folder: Path, of: Shape, candidates: Array, drafted: Array, committed: Array, found: Mapping[str, Array]) -> None:
    verified = found["end"][of.stage == VERIFY]
    verified[of.rejected] = found["end"][of.stage == FALLBACK]
    guided = found["end"][of.stage == GUIDANCE]
    chain, index = np.concatenate([np.arange(of.chains), of.step_chain]), np.concatenate([np.zeros(of.chains, int), of.step_index])
    end = np.concatenate([guided, verified])
    order = np.argsort(end, kind="stable")
    decision = np.concatenate([np.zeros(of.chains, int), np.where(of.rejected, 2, 1)])[order]
    none = np.zeros(of.chains, int)
    by_step = {"draft_tokens": drafted, "draft_tokens_wasted": np.where(of.rejected, drafted, drafted - committed)}
    length = np.concatenate([none, np.full(len(of.step_chain), CANDIDATES)])[order]
    flat = np.concatenate([np.zeros((of.chains, CANDIDATES), int), candidates])[order][length > 0].reshape(-1)
    columns = {
        "chain_id": numbered(chain[order]),
        "step_index": index[order],
        "stage": chosen(("guidance", "verify", "fallback"), decision),
        "source_engine": chosen(("target", "draft", "target"), decision),
        "decision": chosen(("guidance", "accepted", "fallback"), decision),
        "candidate_tokens": lists(length, lambda rows: pa.array(flat[rows]), schema_of(StepRow).field("candidate_tokens").type),
        "end_unix_ns": T0 + end[order],
        **{name: np.concatenate([none, values])[order] for name, values in by_step.items()},
    }
    Folder(folder, "steps").write(len(chain), columns)


def _write_chains(folder: Path, of: Shape, committed: Array, found: Mapping[str, Array]) -> None:
    order = np.argsort(found["chain_end"], kind="stable")
    length = (found["chain_end"] - found["chain_start"])[order]
    columns = {
        "chain_id": numbered(order),
        "input_row": order + 1,
        "stop_reason": chosen(("thought_closed",), np.zeros_like(order)),
        "thought_tokens": (8 + np.bincount(of.step_chain, committed).astype(np.int64))[order],
        "chain_time_s": length / 1e9,
        "start_unix_ns": T0 + found["chain_start"][order],
        "end_unix_ns": T0 + found["chain_end"][order],
    }
    Folder(folder, "chains").write(of.chains, columns)


def _write_card(folder: Path, of: Shape, tokens: Array, found: Mapping[str, Array], places: int) -> None:
    mine = {"draft": of.stage == DRAFT, "target": of.stage != DRAFT}
    others = ("running", "waiting", "kv_cache_usage", "requests", "input_tokens", "cached_input_tokens", "busy_s")
    counted = {role: dict.fromkeys(others, 0) | {"output_tokens": int(tokens[which].sum())} for role, which in mine.items()}
    session = {
        "status": "finished",
        "started_unix_ns": T0,
        "ended_unix_ns": T0 + int(found["chain_end"].max()),
        "engine_statistics": counted,
    }
    card = {
        "format": 1,
        "status": "finished",
        "schedule": "pipelined",
        "batch_size": places,
        "engines": {role: {"backend": "sim", "device": {"name": f"device of {role}"}} for role in ROLES},
        "sessions": [session],
    }
    (folder / "run.json").write_text(json.dumps(card))
