"""The executor over simulated engines: concurrent stages, engines that die, and plans of every form."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pyarrow.parquet as pq
import pytest

from pipeline.engines.base import Completion, Engine, EngineStatistics, Request
from pipeline.engines.registry import open_engines
from pipeline.errors import EngineDead
from pipeline.problems import Problem
from pipeline.prompts import Dialect
from pipeline.run import build_stages, load_plan
from pipeline.runtime.executor import Executor, Settings
from pipeline.runtime.journal import Clock
from pipeline.runtime.schedule import SCHEDULES
from pipeline.trace.recorder import open_recorder
from pipeline.trace.store import TraceStore

ROOT = Path(__file__).parent.parent.parent
SIM = ROOT / "graphs/engines/sim-2xh100.yaml"
TWO_DRAFTS = """
name: two-drafts
engines: none
stages:
  reason:
    kind: repeat
    until: {thought_closed: true, max_steps: 40}
    stages:
      slow: {kind: draft, engine: target, candidates: 2, max_tokens: 200}
      quick: {kind: draft, engine: draft, candidates: 3, max_tokens: 200}
      verify: {kind: choose, engine: target, after: [slow, quick]}
      fallback: {kind: generate, engine: target, unit: step, after: verify, when: verify.rejected, max_tokens: 200}
  answer: {kind: answer, engine: target, after: reason}
"""


class Mortal:
    """An engine that dies at its n-th call."""

    def __init__(self, engine: Engine, calls: int) -> None:
        self._engine, self._calls = engine, calls
        self.role, self.tokenizer, self.max_model_len = engine.role, engine.tokenizer, engine.max_model_len

    async def generate(self, request: Request) -> Completion:
        self._calls -= 1
        if self._calls < 0:
            raise EngineDead(self.role, "out of breath")
        return await self._engine.generate(request)

    def statistics(self) -> EngineStatistics:
        return self._engine.statistics()

    async def aclose(self) -> None:
        await self._engine.aclose()


def problems(count: int = 6) -> Iterator[Problem]:
    return (Problem(row=i, problem_id=str(i), problem=f"Problem number {i}?", answer=None) for i in range(1, count + 1))


async def execute(folder: Path, graph: Path, schedule: str = "pipelined", draft_calls: int = 10**9) -> Executor:
    plan = load_plan(graph, SIM)
    async with open_engines(plan.engines) as opened:
        engines: dict[str, Any] = dict(opened) | {"draft": Mortal(opened["draft"], draft_calls)}
        dialects = {role: Dialect(engine.tokenizer) for role, engine in engines.items()}
        async with open_recorder(TraceStore(folder), virtual=True) as recorder:
            executor = Executor(
                plan,
                build_stages(plan, dialects, "test"),
                engines,
                dialects,
                SCHEDULES[schedule](4),
                recorder,
                Clock(time.time_ns()),
                Settings(run_id="test", virtual_time=True),
            )
            await executor.run(problems())
    return executor


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(folder / table).to_pylist()
    return found


@pytest.fixture
def two_drafts(tmp_path: Path) -> Path:
    path = tmp_path / "two-drafts.yaml"
    path.write_text(TWO_DRAFTS)
    return path


@pytest.mark.anyio
async def test_two_drafts_run_at_once_and_are_judged_in_plan_order(tmp_path: Path, two_drafts: Path) -> None:
    await execute(tmp_path / "run", two_drafts)
    calls = {(row["chain_id"], row["step_index"], row["stage"]): row for row in rows(tmp_path / "run", "calls")}
    slow, quick = calls["1#0", 1, "slow"], calls["1#0", 1, "quick"]
    assert slow["submit_unix_ns"] == quick["submit_unix_ns"]
    first = next(row for row in rows(tmp_path / "run", "steps") if (row["chain_id"], row["step_index"]) == ("1#0", 1))
    lengths = [len(ids) for call in (slow, quick) for ids in call["output_token_ids"]]
    assert first["num_candidates"] == 5
    assert first["candidate_tokens"] == lengths


@pytest.mark.anyio
async def test_concurrent_stages_give_the_same_chains_under_every_schedule(tmp_path: Path, two_drafts: Path) -> None:
    texts = {}
    for schedule in ("pipelined", "lockstep", "sequential"):
        await execute(tmp_path / schedule, two_drafts, schedule)
        texts[schedule] = sorted((row["chain_id"], row["step_index"], row["step_text"]) for row in rows(tmp_path / schedule, "steps"))
    assert texts["pipelined"] == texts["lockstep"] == texts["sequential"] != []


@pytest.mark.anyio
@pytest.mark.parametrize("schedule", ["pipelined", "lockstep"])
@pytest.mark.parametrize("graph", ["speccot", "two-drafts"])
async def test_a_dead_engine_ends_the_run_and_finished_chains_stay(tmp_path: Path, two_drafts: Path, schedule: str, graph: str) -> None:
    path = two_drafts if graph == "two-drafts" else ROOT / "graphs/speccot.yaml"
    with pytest.raises(EngineDead, match="out of breath"):
        await execute(tmp_path / "run", path, schedule, draft_calls=40)
    chains = rows(tmp_path / "run", "chains")
    assert {row["stop_reason"] for row in chains} <= {"thought_closed", "cancelled", "max_steps"}
    assert any(row["stop_reason"] == "cancelled" for row in chains)
    dead = [row for row in rows(tmp_path / "run", "calls") if row["error_type"] == "EngineDead"]
    assert dead
    assert {row["engine"] for row in dead} == {"draft"}


@pytest.mark.anyio
async def test_cancelled_calls_leave_their_rows(tmp_path: Path) -> None:
    with anyio.move_on_after(1.0):
        await execute(tmp_path / "run", ROOT / "graphs/speccot.yaml")
    assert {row["stop_reason"] for row in rows(tmp_path / "run", "chains")} == {"cancelled"}
    cancelled = [row for row in rows(tmp_path / "run", "calls") if row["error_type"] == "CallCancelled"]
    assert len(cancelled) == 4
    assert pq.read_table(tmp_path / "run/steps").num_rows > 0
