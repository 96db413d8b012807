"""The executor over simulated engines: concurrent stages, engines that die, and plans of every form."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pyarrow.parquet as pq
import pytest

from pipeline.data.problems import Problem
from pipeline.engine import Candidate, Completion, Engine, Request, Usage
from pipeline.engines.registry import open_engines
from pipeline.errors import EngineDead, EngineUnavailable
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.run.prepare import load_plan
from pipeline.runtime.admission.feed import InputFeed, SampleCounts
from pipeline.runtime.clock import LONGEST_BACKOFF_S, Clock, backoff_s
from pipeline.runtime.executor import Executor, Settings
from pipeline.runtime.progress import Progress
from pipeline.runtime.schedule import SCHEDULES
from pipeline.stages.build import build_stages
from pipeline.store.recorder import open_recorder
from pipeline.store.resume_state import ResumeState
from pipeline.store.run_store import RunStore
from tests.support.paths import ROOT, SIM

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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: Request) -> Completion:
        self._calls -= 1
        if self._calls < 0:
            raise EngineDead(self.role, "out of breath")
        return await self._engine.generate(request)


class Moody(Mortal):
    """An engine that turns every request away the first few times it comes."""

    def __init__(self, engine: Engine, refusals: int) -> None:
        super().__init__(engine, 0)
        self._refusals, self._seen = refusals, Counter[str]()

    async def generate(self, request: Request) -> Completion:
        self._seen[request.request_id] += 1
        if self._seen[request.request_id] <= self._refusals:
            raise EngineUnavailable(self.role, "is busy")
        return await self._engine.generate(request)


class Mute(Mortal):
    """An engine that has nothing to say: it ends every turn at once."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, 0)

    async def generate(self, request: Request) -> Completion:
        silence = Candidate(ids=(), text="", cumulative_logprob=0.0, finish_reason="stop")
        return Completion(candidates=(silence,) * request.n, usage=Usage(input_tokens=1, output_tokens=request.n))


def problems(count: int = 6) -> Iterator[Problem]:
    return (Problem(row=i, problem_id=str(i), problem=f"Problem number {i}?", answer=None) for i in range(1, count + 1))


def healthy(engine: Engine) -> Engine:
    return engine


@asynccontextmanager
async def opened_executor(
    folder: Path,
    graph: Path,
    schedule: str = "pipelined",
    draft: Callable[[Engine], Any] = healthy,
    settings: tuple[str, ...] = (),
    batch_size: int = 4,
) -> AsyncIterator[Executor]:
    plan = load_plan(graph, SIM, settings)
    async with open_engines(plan.engines) as opened:
        engines: dict[str, Any] = dict(opened) | {"draft": draft(opened["draft"])}
        builders = {role: PromptBuilder(engine.tokenizer) for role, engine in engines.items()}
        async with open_recorder(RunStore(folder), virtual=True) as recorder:
            clock = Clock(time.time_ns())
            yield Executor(
                plan,
                build_stages(plan, builders, "test"),
                engines,
                builders,
                SCHEDULES[schedule](batch_size),
                recorder,
                clock,
                Settings(run_id="test", virtual_time=True),
                Progress(plan, ResumeState(), print, clock),
            )


async def execute(
    folder: Path, graph: Path, schedule: str = "pipelined", draft: Callable[[Engine], Any] = healthy, settings: tuple[str, ...] = ()
) -> Executor:
    async with opened_executor(folder, graph, schedule, draft, settings) as executor:
        await executor.run(InputFeed(problems(), SampleCounts(1, 1), lambda place: False, threads=False))
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


@pytest.mark.slow
@pytest.mark.anyio
async def test_concurrent_stages_give_the_same_chains_under_every_schedule(tmp_path: Path, two_drafts: Path) -> None:
    texts = {}
    for schedule in ("pipelined", "lockstep", "sequential"):
        await execute(tmp_path / schedule, two_drafts, schedule)
        texts[schedule] = sorted((row["chain_id"], row["step_index"], row["step_text"]) for row in rows(tmp_path / schedule, "steps"))
    assert texts["pipelined"] == texts["lockstep"] == texts["sequential"] != []


@pytest.mark.anyio
@pytest.mark.parametrize(("schedule", "graph"), [("pipelined", "two-drafts"), ("lockstep", "speccot")])
async def test_a_dead_engine_ends_the_run_and_finished_chains_stay(tmp_path: Path, two_drafts: Path, schedule: str, graph: str) -> None:
    path = two_drafts if graph == "two-drafts" else ROOT / "graphs/speccot.yaml"
    with pytest.raises(EngineDead, match="out of breath"):
        await execute(tmp_path / "run", path, schedule, lambda engine: Mortal(engine, 40))
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


@pytest.mark.anyio
async def test_a_call_that_is_turned_away_comes_again_later_and_every_attempt_leaves_a_row(tmp_path: Path) -> None:
    graph = ROOT / "graphs/speccot.yaml"
    await execute(tmp_path / "calm", graph)
    await execute(tmp_path / "moody", graph, draft=lambda engine: Moody(engine, 2), settings=("engines.draft.max_retries=2",))
    drafts = [row for row in rows(tmp_path / "moody", "calls") if row["engine"] == "draft"]
    by_call: dict[str, list[dict[str, Any]]] = {}
    for row in drafts:
        by_call.setdefault(row["request_id"], []).append(row)
    for attempts in by_call.values():
        assert [row["attempt"] for row in attempts] == [0, 1, 2]
        assert [row["error_type"] for row in attempts] == ["EngineUnavailable", "EngineUnavailable", None]
        assert [row["error_message"] for row in attempts] == ["engine 'draft' is busy", "engine 'draft' is busy", None]
        for number, (before, after) in enumerate(pairwise(attempts)):
            waited = (after["submit_unix_ns"] - before["end_unix_ns"]) / 1e9
            assert waited == pytest.approx(backoff_s(before["request_id"], number), abs=1e-6)
            assert after["client_wait_s"] == pytest.approx(waited, abs=1e-6)
    texts = [sorted((row["chain_id"], row["answer_text"]) for row in rows(tmp_path / name, "chains")) for name in ("calm", "moody")]
    assert texts[0] == texts[1]


@pytest.mark.anyio
async def test_a_call_that_is_turned_away_too_often_fails_its_chain_alone(tmp_path: Path) -> None:
    settings = ("engines.draft.max_retries=2",)
    await execute(tmp_path / "run", ROOT / "graphs/speccot.yaml", draft=lambda engine: Moody(engine, 3), settings=settings)
    errors = {(row["error_type"], row["error_message"], row["error_stage"]) for row in rows(tmp_path / "run", "chains")}
    assert errors == {("EngineUnavailable", "engine 'draft' is busy", "draft")}
    assert {row["attempt"] for row in rows(tmp_path / "run", "calls") if row["engine"] == "draft"} == {0, 1, 2}


def test_backing_off_doubles_up_to_a_bound_and_heeds_the_engine() -> None:
    for attempt in range(20):
        waits = {backoff_s(f"r{i}", attempt) for i in range(50)}
        longest = min(LONGEST_BACKOFF_S, 0.5 * 2**attempt)
        assert len(waits) == 50
        assert all(longest / 2 <= wait <= longest for wait in waits)
        assert backoff_s("r", attempt, retry_after_s=100.0) == 100.0


@pytest.mark.anyio
@pytest.mark.parametrize("until", ["{thought_closed: true}", "{token_budget: 50}", "{answer_boxed: true}"])
async def test_drafts_without_any_text_end_the_thought_and_an_answer_is_asked_for(tmp_path: Path, until: str) -> None:
    graph = tmp_path / "graph.yaml"
    text = f"""
name: mute
engines: none
stages:
  reason:
    kind: repeat
    until: {until}
    stages:
      draft: {{kind: draft, engine: draft, candidates: 2, max_tokens: 200}}
      verify: {{kind: choose, engine: target, reject: false, after: draft}}
  answer: {{kind: answer, engine: target, after: reason}}
"""
    graph.write_text(text)
    await execute(tmp_path / "run", graph, draft=Mute)
    assert {(row["stop_reason"], row["steps"], row["thought_tokens"]) for row in rows(tmp_path / "run", "chains")} == {
        ("thought_closed", 1, 0)
    }
    assert all(row["answer_text"] for row in rows(tmp_path / "run", "chains"))


@pytest.mark.anyio
async def test_a_clock_tells_wall_time() -> None:
    clock = Clock(100 * 10**9)
    now = clock.now()
    assert (clock.started_unix_ns, clock.unix_ns(now)) == (100 * 10**9, 100 * 10**9)
    await anyio.sleep(1.5)
    assert clock.unix_ns(clock.now()) == 101_500_000_000
