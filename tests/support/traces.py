"""Run folders for tests of analyses, told in seconds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from pipeline.graph.plan import Block, Plan, StageNode
from pipeline.graph.spec import GraphSpec, StageSpec
from pipeline.reasoning.chain import Scale
from pipeline.store.rows import CallRow, ChainRow
from pipeline.store.store import RunStore
from tests.support.rows import blank
from tests.support.run_files import write_run_json

S = 1_000_000_000
T = 1_700_000_000 * S


def at(seconds: float) -> int:
    """An instant, ns UTC."""
    return T + round(seconds * S)


def call(chain: str, engine: str, ready: float, submit: float, end: float, **more: Any) -> Any:
    """A row; the stage is named after its engine, unless it is given."""
    fields = {"chain_id": chain, "engine": engine, "stage": f"by {engine}", "purpose": "write", "step_index": 1} | more
    times = {"submit_unix_ns": at(submit), "end_unix_ns": at(end), "client_wait_s": submit - ready, "e2e_latency_s": end - submit}
    return blank(CallRow, **times | fields)


def verdict_columns(kind: str, scale: Scale, *, of_candidates: bool = False) -> dict[str, Any]:
    """The columns of a step that say what gave its verdict and what the value means."""
    names = ("score_scale", "score_low", "score_high", "score_integers", "score_of_candidates")
    values = (scale.name, scale.low, scale.high, scale.integers, of_candidates)
    return {"verify_kind": kind, **dict(zip(names, values, strict=True))}


CHOOSE = verdict_columns("choose", Scale("probability of the chosen option", 0.0, 1.0), of_candidates=True)
SCORE = verdict_columns("score", Scale("score", 0.0, 9.0, integers=True))


def chain(name: str, start: float, end: float, **more: Any) -> Any:
    """The row of a finished chain."""
    fields = {"chain_id": name, "stop_reason": "thought_closed", "chain_time_s": end - start} | more
    return blank(ChainRow, **{"start_unix_ns": at(start), "end_unix_ns": at(end)} | fields)


def write(folder: Path, *, card: Mapping[str, Any] = {}, closed: bool = True, **tables: Sequence[Struct]) -> Path:
    """A run folder with these rows, calls in the order of their ends, and these fields of its `run.json`.

    One that is not `closed` is that of a killed run.
    """
    store = RunStore(write_run_json(folder, **{"sessions": []} | card))
    for table, rows in tables.items():
        ordered = sorted(rows, key=lambda row: row.end_unix_ns) if table == "calls" else rows  # type: ignore[attr-defined]
        store.append(table, ordered)
    if closed:
        store.close()
    return folder


def plan_of(**stages: StageSpec) -> Plan:
    """Stages one after the other, outside loops."""
    nodes = [StageNode(name, spec, None, rank) for rank, (name, spec) in enumerate(stages.items())]
    return Plan(GraphSpec(name="plan", engines={}), Block(tuple((node,) for node in nodes)), {})


def statistics(output_tokens: int, input_tokens: int = 0, **more: Any) -> dict[str, Any]:
    """An engine's own totals as they stand in a `run.json`."""
    counts = {"requests": 0, "cached_input_tokens": 0, "busy_s": 0.0}
    return {**counts, "output_tokens": output_tokens, "input_tokens": input_tokens, **more}


def card(start: float, end: float, **more: Any) -> dict[str, Any]:
    """A `run.json` of one session with the engines `d` and `t`."""
    engines = {"d": {"backend": "sim", "device": {"name": "one"}}, "t": {"backend": "sim", "device": {"name": "two"}}}
    facts = {
        role: {"answers": "simulated", "devices": [each["device"]["name"]]} for role, each in (engines | more.get("engines", {})).items()
    }
    sessions = [{"started_unix_ns": at(start), "ended_unix_ns": at(end), "status": "finished"}]
    return {"status": "finished", "batch_size": 2, "engines": engines, "engine_facts": facts, "sessions": sessions} | more
