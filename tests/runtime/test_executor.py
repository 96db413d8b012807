"""The executor over simulated engines: concurrent stages, engines that die, and plans of every form."""

import time
from collections import Counter
from collections.abc import Callable
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
from pipeline.runtime.admission.feed import InputFeed
from pipeline.runtime.chain_recorder import Recording
from pipeline.runtime.clock import Clock, backoff_s
from pipeline.runtime.executor import Executor, Fitted, Settings
from pipeline.runtime.progress import Progress
from pipeline.runtime.schedule import Lockstep, Schedule
from pipeline.stages.build import build_stages
from pipeline.store.recorder import open_recorder
from pipeline.store.resume import ResumeState
from pipeline.store.store import RunStore
from tests.support.paths import ROOT, SIM
from tests.support.run_files import write_run_json
from tests.support.runs import rows

pytestmark = pytest.mark.anyio
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

Act = Callable[[Request, int, int], Completion | None]


class Acting:
    """An engine that does what `act` does with a request: raises, answers, or leaves it to the engine; it is told how many calls came in
    all, and how many of this request."""

    def __init__(self, engine: Engine, act: Act) -> None:
        self._engine, self._act, self._seen = engine, act, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: Request) -> Completion:
        self._seen[request.request_id] += 1
        answer = self._act(request, self._seen.total(), self._seen[request.request_id])
        return await self._engine.generate(request) if answer is None else answer


def well(request: Request, calls: int, attempts: int) -> None: ...


def mortal(request: Request, calls: int, attempts: int) -> None:
    if calls > 40:
        raise EngineDead("draft", "out of breath")


def moody(refusals: int) -> Act:
    def act(request: Request, calls: int, attempts: int) -> None:
        if attempts <= refusals:
            raise EngineUnavailable("draft", "is busy")

    return act


def mute(request: Request, calls: int, attempts: int) -> Completion:
    """It ends every turn at once."""
    silence = Candidate(ids=(), text="", cumulative_logprob=0.0, finish_reason="stop")
    return Completion(candidates=(silence,) * request.n, usage=Usage(input_tokens=1, output_tokens=request.n))


async def execute(folder: Path, graph: Path, kind: type[Schedule] = Schedule, draft: Act = well, settings: tuple[str, ...] = ()) -> None:
    plan = load_plan(graph, SIM, settings)
    store = RunStore(write_run_json(folder))
    async with open_engines(plan.engines) as opened, open_recorder(store, virtual=True) as recorder:
        engines: dict[str, Any] = dict(opened) | {"draft": Acting(opened["draft"], draft)}
        builders = {role: PromptBuilder(engine.tokenizer) for role, engine in engines.items()}
        clock = Clock(time.time_ns())
        progress = Progress(plan, ResumeState(), print, clock)
        recording = Recording(run_id="test", rows=recorder, progress=progress, clock=clock)
        fitted = Fitted(plan, engines, builders, build_stages(plan, builders, "test"))
        executor = Executor(fitted, kind(4), recording, Settings(virtual_time=True))
        problems = (Problem(row=i, problem_id=str(i), problem=f"Problem number {i}?", answer=None) for i in range(1, 7))
        await executor.run(InputFeed(problems, 1, 1, lambda place: False, threads=False))


@pytest.fixture
def two_drafts(tmp_path: Path) -> Path:
    path = tmp_path / "two-drafts.yaml"
    path.write_text(TWO_DRAFTS)
    return path


async def test_two_drafts_run_at_once_and_are_judged_in_plan_order(tmp_path: Path, two_drafts: Path) -> None:
    await execute(tmp_path / "run", two_drafts)
    calls = {(row["chain_id"], row["step_index"], row["stage"]): row for row in rows(tmp_path / "run", "calls")}
    slow, quick = calls["1#0", 1, "slow"], calls["1#0", 1, "quick"]
    assert slow["submit_unix_ns"] == quick["submit_unix_ns"]
    first = next(row for row in rows(tmp_path / "run", "steps") if (row["chain_id"], row["step_index"]) == ("1#0", 1))
    lengths = [len(ids) for call in (slow, quick) for ids in call["output_token_ids"]]
    assert first["num_candidates"] == 5
    assert first["candidate_tokens"] == lengths


@pytest.mark.parametrize(("kind", "graph"), [(Schedule, "two-drafts"), (Lockstep, "speccot")])
async def test_a_dead_engine_ends_the_run_and_finished_chains_stay(tmp_path: Path, two_drafts: Path, kind: Any, graph: str) -> None:
    path = two_drafts if graph == "two-drafts" else ROOT / "graphs/speccot.yaml"
    with pytest.raises(EngineDead, match="out of breath"):
        await execute(tmp_path / "run", path, kind, mortal)
    chains = rows(tmp_path / "run", "chains")
    assert {row["stop_reason"] for row in chains} <= {"thought_closed", "cancelled", "max_steps"}
    assert any(row["stop_reason"] == "cancelled" for row in chains)
    dead = [row for row in rows(tmp_path / "run", "calls") if row["error_type"] == "EngineDead"]
    assert dead
    assert {row["engine"] for row in dead} == {"draft"}


async def test_cancelled_calls_leave_their_rows(tmp_path: Path) -> None:
    with anyio.move_on_after(1.0):
        await execute(tmp_path / "run", ROOT / "graphs/speccot.yaml")
    assert {row["stop_reason"] for row in rows(tmp_path / "run", "chains")} == {"cancelled"}
    cancelled = [row for row in rows(tmp_path / "run", "calls") if row["error_type"] == "CallCancelled"]
    assert len(cancelled) == 4
    assert pq.read_table(tmp_path / "run/steps").num_rows > 0


async def test_a_call_that_is_turned_away_comes_again_later_and_every_attempt_leaves_a_row(tmp_path: Path) -> None:
    graph = ROOT / "graphs/speccot.yaml"
    await execute(tmp_path / "calm", graph)
    await execute(tmp_path / "moody", graph, draft=moody(2), settings=("engines.draft.max_retries=2",))
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


async def test_a_call_that_is_turned_away_too_often_fails_its_chain_alone(tmp_path: Path) -> None:
    settings = ("engines.draft.max_retries=2",)
    await execute(tmp_path / "run", ROOT / "graphs/speccot.yaml", draft=moody(3), settings=settings)
    errors = {(row["error_type"], row["error_message"], row["error_stage"]) for row in rows(tmp_path / "run", "chains")}
    assert errors == {("EngineUnavailable", "engine 'draft' is busy", "draft")}
    assert {row["attempt"] for row in rows(tmp_path / "run", "calls") if row["engine"] == "draft"} == {0, 1, 2}


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
    await execute(tmp_path / "run", graph, draft=mute)
    assert {(row["stop_reason"], row["steps"], row["thought_tokens"]) for row in rows(tmp_path / "run", "chains")} == {
        ("thought_closed", 1, 0)
    }
    assert all(row["answer_text"] for row in rows(tmp_path / "run", "chains"))


async def test_a_clock_tells_wall_time() -> None:
    clock = Clock(100 * 10**9)
    now = clock.now()
    assert (clock.started_unix_ns, clock.unix_ns(now)) == (100 * 10**9, 100 * 10**9)
    await anyio.sleep(1.5)
    assert clock.unix_ns(clock.now()) == 101_500_000_000
