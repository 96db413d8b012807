"""Runs with `speculate: auto`: resumed while their chains are switched, and what is said before and after."""

from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from pipeline.engine import Completion, Engine, EngineStatistics, Interruptible, Request
from pipeline.engines.registry import open_engines
from pipeline.session.loop import in_loop
from pipeline.session.options import RunOptions, resume_options
from pipeline.session.prepare import load_plan
from pipeline.session.run import run
from tests.support.hanging_together import check_hangs_together
from tests.support.killed import cut
from tests.support.paths import ROOT, SIM
from tests.support.runs import rows, solve, solve_on, write_problems
from tests.support.switching import AtTimes, solve_switched

AUTO = ("speculate=auto",)


@pytest.fixture(scope="module")
def switched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three problems that was switched; `problems.jsonl` beside it."""
    folder = tmp_path_factory.mktemp("switched")
    with pytest.MonkeyPatch.context() as patch:
        result = solve_switched(patch, AtTimes(0.5, 1.1, 1.6), folder, input=write_problems(folder, 3))
    assert result.exit_code == 0
    return folder / "run"


def rows_of(folder: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(folder / table).to_pylist()
    return found


def test_what_was_expected_is_of_all_live_chains_together(tmp_path: Path) -> None:
    """The target alone writes about as many tokens a second for each of few chains, and the report shows the sum beside what happened."""
    alone = rows_of(solve(tmp_path, "alone", "target", batch_size=4).folder or tmp_path, "calls")
    speeds = [row["output_tokens"] * 1e9 / (row["end_unix_ns"] - row["submit_unix_ns"]) for row in alone]
    changes = [change for change in solve(tmp_path, settings=AUTO, batch_size=4).run.mode_changes if change.direct is not None]
    assert changes
    for change in changes:
        assert change.direct == pytest.approx(change.live * sum(speeds) / len(speeds), rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_a_killed_run_goes_on_where_its_chains_were(switched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    folder = tmp_path / "run"
    cut(switched, folder, share)
    before = {(row["chain_id"], row["step_index"]): row for row in rows_of(folder, "steps")}
    calls = {row["request_id"]: row for row in rows_of(folder, "calls")}
    control = AtTimes(0.2)
    monkeypatch.setattr("pipeline.session.chains.new_control", lambda *about: control)
    result = run(resume_options(folder))
    assert (result.exit_code, result.done) == (0, 3)
    after = {(row["chain_id"], row["step_index"]): row for row in rows(result, "steps")}
    assert {key: after[key] for key in before} == before
    again = {row["request_id"]: row for row in rows(result, "calls")}
    assert {key: again[key] for key in calls} == calls
    check_hangs_together(folder, 3)


def test_run_json_tells_what_was_decided(switched: Path) -> None:
    card = msgspec.json.decode((switched / "run.json").read_bytes())
    assert (card["speculate"], card["depends_on_timing"], card["schedule"]) == ("auto", True, "pipelined")
    assert [sorted(change) for change in card["mode_changes"]] == [
        ["direct", "live", "speculating", "speculative", "unix_ns", "what"]
    ] * len(card["mode_changes"])
    assert all(card["started_unix_ns"] < change["unix_ns"] < card["ended_unix_ns"] for change in card["mode_changes"])


class Plain:
    """An engine without what `Interruptible` has."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.role, self.tokenizer, self.facts = engine.role, engine.tokenizer, engine.facts
        self.max_model_len, self.vocab_size = engine.max_model_len, engine.vocab_size

    async def generate(self, request: Request) -> Completion:
        return await self._engine.generate(request)

    def statistics(self) -> EngineStatistics:
        return self._engine.statistics()

    async def aclose(self) -> None:
        await self._engine.aclose()


def test_an_engine_that_cannot_interrupt_writes_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.session.chains.new_control", lambda *about: AtTimes(0.5))
    graph, problems = ROOT / "graphs/speccot.yaml", write_problems(tmp_path, 2)
    options = RunOptions(graph=graph, engines=SIM, settings=AUTO, input=problems, output=tmp_path / "run")

    async def main() -> Any:
        async with open_engines(load_plan(graph, SIM, AUTO).engines) as engines:
            assert all(isinstance(engine, Interruptible) for engine in engines.values())
            return await solve_on({role: Plain(engine) for role, engine in engines.items()}, options)

    result = in_loop(main, virtual=True)
    assert {(row["mode"], row["decision"]) for row in rows(result, "steps")} == {("direct", "written")}
    assert result.notices == (
        "engine 'target': cannot interrupt a request, so a response of the target alone is not switched to speculation before its end; "
        "use an engine that can, or `--set speculate=always`",
    )


def test_nothing_is_said_where_requests_can_be_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert solve_switched(monkeypatch, AtTimes(0.0), tmp_path, input=write_problems(tmp_path, 1)).notices == ()


def test_auto_is_the_controller(tmp_path: Path) -> None:
    auto = solve(tmp_path, "auto", settings=AUTO)
    assert {row["mode"] for row in rows(auto, "steps")} == {"direct", "speculative"}
    assert [change.what for change in auto.run.mode_changes][:2] == ["speculate", "check"]
