"""`--modes RUN`, runs that are resumed while their chains are switched, and what is said and refused before a run."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from pipeline.engine import Completion, Engine, EngineStatistics, Interruptible, Request
from pipeline.engines.registry import open_engines
from pipeline.errors import UsageError
from pipeline.runtime.speculation.modes import Recorded
from pipeline.session.checks.modes import calibrated_costs
from pipeline.session.loop import in_loop
from pipeline.session.options import RunOptions, resume_options
from pipeline.session.preflight import load_plan
from pipeline.session.run import run
from tests.support.hanging_together import check_hangs_together
from tests.support.killed import cut
from tests.support.paths import ROOT, SIM
from tests.support.runs import rows, said, solve, solve_on, write_problems
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


def costs_of(folder: Path, draft: str) -> Path:
    """The simulated engines, with another number of parameters of the draft."""
    path = folder / f"{draft}.yaml"
    path.write_text(re.sub(r"(draft:.*?\bparameters: )\S+", rf"\g<1>{draft}", SIM.read_text(), flags=re.DOTALL))
    return path


def test_a_calibration_is_what_the_controller_begins_with(tmp_path: Path) -> None:
    """It believes it: with a draft that would be slower than the target it does not even try."""
    tried = {}
    for draft in ("1.5e+9", "9.0e+11"):
        costs = costs_of(tmp_path, draft)
        result = solve(tmp_path, draft, settings=AUTO, calibration=costs, batch_size=4)
        assert result.run.options["calibration"] == str(costs)
        tried[draft] = len(result.run.mode_changes)
    assert tried["1.5e+9"] > 0
    assert tried["9.0e+11"] == 0


def test_what_was_expected_is_of_all_live_chains_together(tmp_path: Path) -> None:
    """The target alone writes about as many tokens a second for each of few chains, and the report shows the sum beside what happened."""
    alone = rows_of(solve(tmp_path, "alone", "target", batch_size=4).folder or tmp_path, "calls")
    speeds = [row["output_tokens"] * 1e9 / (row["end_unix_ns"] - row["submit_unix_ns"]) for row in alone]
    changes = solve(tmp_path, settings=AUTO, batch_size=4).run.mode_changes
    assert changes
    for change in changes:
        assert change.direct == pytest.approx(change.live * sum(speeds) / len(speeds), rel=0.1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"settings": ()}, "is for a controller, and this run has none; add `--set speculate=auto`"),
        ({"graph": Path("target"), "settings": ()}, "is for a controller, and this graph has no loop that drafts; leave it out"),
        ({"modes": Path("run")}, "--modes says which mode each step has; drop one of them"),
        ({"calibration": Path("tiny")}, "role 'target' is of backend torch, not sim; give a file that `pipeline calibrate` wrote"),
        ({"calibration": Path("nowhere.yaml")}, "nowhere.yaml: cannot be read"),
        ({"calibration": ROOT / "tests/bad_graphs/zero_tokens_of_a_step.yaml"}, "zero_tokens_of_a_step.yaml, line 2: $."),
    ],
)
def test_costs_that_nobody_could_use_are_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    plan = load_plan(options.get("graph", Path("speccot")), SIM, options.get("settings", AUTO))
    given = RunOptions(input=tmp_path, **{"graph": Path("speccot"), "settings": AUTO, "calibration": SIM} | options)
    with pytest.raises(UsageError, match=re.escape(says)):
        calibrated_costs(plan, given)


def test_costs_of_other_roles_are_refused(tmp_path: Path) -> None:
    costs = tmp_path / "costs.yaml"
    costs.write_text(SIM.read_text().replace("draft:", "drafter:"))
    plan = load_plan(Path("speccot"), SIM, AUTO)
    with pytest.raises(UsageError, match=re.escape(f"--calibration {costs}: role 'draft' is not in it")):
        calibrated_costs(plan, RunOptions(graph=Path("speccot"), input=tmp_path, settings=AUTO, calibration=costs))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"modes": Path("nowhere")}, "nowhere/run.json: cannot be read"),
        ({"settings": ()}, "this run has `speculate: always`; the modes of a run with `speculate: auto` are for another one with"),
        ({"graph": "scot", "settings": ()}, "this graph has no loop that drafts"),
        ({"graph": "specreason"}, "was recorded with another graph or other params; its modes are for speccot as it was then"),
        ({"settings": (*AUTO, "candidates=2")}, "was recorded with another graph or other params"),
        ({"seed": 4}, "needs --seed 0"),
        ({"samples": 2}, "needs --samples 1 or less"),
        ({"count": 4}, "needs the problems that it was given"),
    ],
)
def test_modes_of_another_run_are_refused(switched: Path, tmp_path: Path, options: dict[str, Any], says: str) -> None:
    problems = write_problems(tmp_path, options.get("count", 3))
    given = {"graph": "speccot", "settings": AUTO, "modes": switched} | {name: value for name, value in options.items() if name != "count"}
    with pytest.raises(UsageError, match=re.escape(says)) as error:
        solve(tmp_path, input=problems, **given)
    assert "\n" not in str(error.value)


def test_modes_of_a_run_that_always_speculated_are_refused(tmp_path: Path) -> None:
    solve(tmp_path, "always", input=write_problems(tmp_path, 1))
    with pytest.raises(UsageError, match="was recorded with `speculate: always`; name a run with `speculate: auto`"):
        solve(tmp_path, input=write_problems(tmp_path, 1), settings=AUTO, modes=tmp_path / "always")


def test_modes_of_a_run_that_goes_on_are_refused(switched: Path, tmp_path: Path) -> None:
    cut(switched, tmp_path / "killed", 0.5)
    with pytest.raises(UsageError, match="is running; finish it with `pipeline resume"):
        solve(tmp_path, input=write_problems(tmp_path, 3), settings=AUTO, modes=tmp_path / "killed")


def test_a_replay_repeats_what_was_interrupted(switched: Path, tmp_path: Path) -> None:
    problems, engines = switched.parent / "problems.jsonl", Path(f"replay:{switched}")
    graph, output = ROOT / "graphs/speccot.yaml", tmp_path / "run"
    result = run(RunOptions(graph=graph, engines=engines, settings=AUTO, modes=switched, input=problems, output=output, batch_size=2))
    assert (result.exit_code, result.done) == (0, 3)
    names = ("chain_id", "step_index", "mode", "decision", "step_text")
    told = [sorted(tuple(row[name] for name in names) for row in rows_of(folder, "steps")) for folder in (switched, output)]
    assert told[0] == told[1]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
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


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_killed_run_with_recorded_modes_ends_as_if_it_had_not_been(switched: Path, tmp_path: Path, share: float) -> None:
    given = {"input": switched.parent / "problems.jsonl", "settings": AUTO, "modes": switched}
    whole = solve(tmp_path, "whole", **given)
    cut(tmp_path / "whole", tmp_path / "cut", share)
    result = run(resume_options(tmp_path / "cut"))
    assert said(result) == said(whole)
    assert result.run.totals == whole.run.totals


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
        "engine 'target': cannot interrupt a request: what it writes alone is not switched to speculation before its end; "
        "take an engine that can, or `--set speculate=always`",
    )


def test_nothing_is_said_where_requests_can_be_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert solve_switched(monkeypatch, Recorded({}), tmp_path, input=write_problems(tmp_path, 1)).notices == ()


def test_auto_is_the_controller_and_its_modes_can_be_repeated(tmp_path: Path) -> None:
    problems = write_problems(tmp_path, 3)
    auto = solve(tmp_path, "auto", settings=AUTO, input=problems, batch_size=1)
    again = solve(tmp_path, "again", settings=AUTO, input=problems, batch_size=3, modes=tmp_path / "auto")
    assert said(again) == said(auto)
    assert {row["mode"] for row in rows(auto, "steps")} == {"direct", "speculative"}
    assert auto.run.mode_changes
    assert again.run.mode_changes == ()
