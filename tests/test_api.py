"""The Python API: from scripts, threads, event loops and notebooks, over files and values, on engines of its own and of the caller's."""

import asyncio
import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import pipeline
from pipeline import api
from pipeline.analysis.headline import baseline_folder
from pipeline.data.problems import Problem
from pipeline.engine import Completion, Request
from pipeline.errors import EngineDead, InputError, Unfinished, UsageError
from pipeline.options import RunOptions
from pipeline.run.prepare import resume_options
from pipeline.run.run import run
from pipeline.store.rows import CallRow, ChainRow
from pipeline.store.run_file import RunFile
from tests.support.echo import Echo
from tests.support.paths import ROOT, SIM
from tests.support.runs import write_problems

PROBLEMS = [{"problem_id": f"p{i}", "problem": f"Problem number {i}?", "answer": str(i)} for i in range(12)]
SPECCOT = ROOT / "graphs/speccot.yaml"


def spoken(rows: Any) -> list[tuple[str, str | None, str]]:
    return [(row.chain_id, row.answer, row.stop_reason) for row in rows]


def one_at_a_time(calls: Sequence[CallRow]) -> bool:
    """Whether each call was sent after the one before had ended."""
    ordered = sorted(calls, key=lambda row: (row.submit_unix_ns, row.end_unix_ns))
    return all(one.end_unix_ns <= other.submit_unix_ns for one, other in pairwise(ordered))


@pytest.fixture(scope="module")
def solved() -> pipeline.Result:
    return pipeline.solve("speccot", PROBLEMS, engines="sim-2xh100", batch_size=4, trace=True)


def test_a_result_has_typed_rows_in_the_order_of_the_problems(solved: pipeline.Result) -> None:
    assert [row.problem_id for row in solved] == [row["problem_id"] for row in PROBLEMS]
    assert repr(solved) == f"<Result of speccot: 12 done, 0 failed, {solved.accuracy:.1%} of 12 right>"
    assert len(solved) == solved.run.totals.chains_done == 12
    assert all(isinstance(row, ChainRow) and row.answer is not None for row in solved)
    assert (solved.folder, solved.run.status, solved.accuracy) == (None, "finished", solved.run.totals.correct / 12)
    assert {row.chain_id for row in solved.steps} == {row.chain_id for row in solved.calls} == {row.chain_id for row in solved}


def test_tables_leave_as_arrow_and_pandas(solved: pipeline.Result) -> None:
    for table in ("chains", "steps", "calls"):
        arrow = solved.to_arrow(table)
        assert arrow.num_rows == len(solved.to_pandas(table)) == len(getattr(solved, table)) > 0
    assert solved.to_arrow().schema.field("chain_time_s").metadata == {b"unit": b"s"}
    with pytest.raises(UsageError, match="no table 'rows'; a result has chains, steps, calls"):
        solved.to_arrow("rows")
    plain = pipeline.solve("speccot", PROBLEMS[:1], engines="sim-2xh100")
    with pytest.raises(UsageError, match="calls of this run were not kept; give trace=True"):
        plain.to_arrow("calls")


def test_with_output_it_leaves_the_run_folder_of_the_command(solved: pipeline.Result, tmp_path: Path) -> None:
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROBLEMS))
    options = RunOptions(graph=SPECCOT, engines=SIM, input=(str(tmp_path / "problems.jsonl"),), batch_size=4, output=tmp_path / "command")
    run(options)
    mine = pipeline.solve(SPECCOT, PROBLEMS, engines=SIM, batch_size=4, output=tmp_path / "mine")
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {path.name for path in (tmp_path / "command").iterdir()}
    for table in ("chains", "steps", "calls"):
        ours, theirs = (pq.read_table(tmp_path / name / table).drop_columns(["run_id"]) for name in ("mine", "command"))
        # Which of two tasks of one instant goes first is not decided: the order of rows, and who was in flight with whom.
        loose = [name for name in ours.column_names if name.endswith("unix_ns") or name.startswith(("in_flight", "waiting_"))]
        order = [("chain_id", "ascending"), ("call_index" if table == "calls" else "chain_id", "ascending")]
        assert ours.drop_columns(loose).sort_by(order).equals(theirs.drop_columns(loose).sort_by(order))
    assert spoken(mine) == spoken(solved)
    assert mine.to_arrow("calls").num_rows == len(solved.calls)
    assert RunFile.read(tmp_path / "mine") == mine.run


@pytest.mark.slow
def test_problems_may_be_a_file_mappings_or_problems(tmp_path: Path, solved: pipeline.Result) -> None:
    pq.write_table(
        pa.Table.from_pylist([{"question": row["problem"], "problem_id": row["problem_id"]} for row in PROBLEMS]), tmp_path / "p.parquet"
    )
    of_file = pipeline.solve("speccot", [tmp_path / "p.parquet"], engines="sim-2xh100", columns={"problem": "question"})
    typed = [Problem(row=1, problem_id=row["problem_id"], problem=row["problem"], answer=row["answer"]) for row in PROBLEMS]
    of_problems = pipeline.solve("speccot", iter(typed), engines="sim-2xh100")
    assert spoken(of_file) == spoken(of_problems) == spoken(solved)
    assert {row.correct for row in of_file} == {None}
    assert [row.correct for row in of_problems] == [row.correct for row in solved]


@pytest.mark.slow
def test_graph_and_engines_may_be_values(solved: pipeline.Result) -> None:
    raw = yaml.safe_load(SPECCOT.read_text())
    engines = yaml.safe_load(SIM.read_text())
    assert spoken(pipeline.solve(raw, PROBLEMS, engines=engines)) == spoken(solved)
    plan = pipeline.load_graph("speccot", "sim-2xh100")
    assert spoken(pipeline.solve(plan, PROBLEMS)) == spoken(solved)
    specs = plan.engines
    assert spoken(pipeline.solve("speccot", PROBLEMS, engines=specs)) == spoken(solved)


def test_params_reach_the_graph_and_the_engines() -> None:
    values = {"candidates": 2, "max_steps": 3, "engines.draft.max_in_flight": 1}
    result = pipeline.solve("speccot", PROBLEMS, engines="sim-2xh100", set=values, trace=True)
    assert {row.choice_count for row in result.calls if row.purpose == "draft"} == {2}
    assert one_at_a_time([row for row in result.calls if row.engine == "draft"])
    assert max(row.steps for row in result) == 3


def wrong(**changes: Any) -> Any:
    given: dict[str, Any] = {"graph": "speccot", "problems": PROBLEMS, "engines": "sim-2xh100"} | changes
    return pipeline.solve(given.pop("graph"), given.pop("problems"), **given)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"graph": {"name": "x", "engines": "tiny", "stages": {}}}, "graph: \\$.stages: holds no stage"),
        ({"engines": {"draft": 5, "target": 5}}, "'draft' has no `role`, .* \\(a int\\)"),
        ({"graph": "target", "engines": {"draft": Echo("draft")}}, "no engine named `target`"),
        ({"engines": {"draft": Echo("draft"), "target": {"backend": "sim"}}}, "draft are already open but the others are specs"),
        ({"set": {"candidates": object()}}, r"set\['candidates'\]: .*expected a number"),
        ({"batchsize": 3}, "batchsize: there is no such option; did you mean `batch_size`?"),
        ({"judges": [5]}, r"judge 5: expected a function of \(problem, candidates\): 5 is not"),
        ({"graders": [lambda answer: True]}, r"expected a function of \(answer, reference\): too many positional arguments"),
        ({"problems": [5]}, "item 1: expected a text or a mapping with the key `problem`, got `int`"),
        ({"batch_size": "many"}, "batch_size: expected `int`, got `str`"),
        ({"engines": {"draft": Echo("draft"), "target": Echo()}, "replicas": 2}, "^replicas: the engines are already open"),
        ({"replicas": 2}, "^replicas: their rows are written into a run folder; name one with output"),
    ],
)
def test_what_is_wrong_is_one_sentence_before_anything_starts(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        wrong(**changes)
    assert all(re.search(said, line) for line in str(raised.value).splitlines())


@pytest.mark.slow
def test_replicas_say_what_one_process_does(solved: pipeline.Result, tmp_path: Path) -> None:
    result = pipeline.solve("speccot", PROBLEMS, engines="sim-2xh100", batch_size=4, replicas=2, output=tmp_path / "run")
    assert spoken(result) == spoken(solved)
    assert {row.replica for row in result} == {0, 1}


@pytest.mark.slow
def test_the_baseline_is_solved_too(tmp_path: Path) -> None:
    path = write_problems(tmp_path, 3)
    for given in (path, [{"problem": "1 + 1?", "answer": "2"}]):
        result = pipeline.solve("speccot", given, engines=str(SIM), baseline=True)
        assert result.baseline is not None
        assert (result.run.plan.name, result.baseline.run.plan.name, len(result)) == ("speccot", "target", len(result.baseline))
    kept = pipeline.solve("speccot", path, engines=str(SIM), baseline=True, output=tmp_path / "run")
    assert kept.baseline is not None
    assert kept.baseline.folder == baseline_folder(tmp_path / "run")
    with pytest.raises(UsageError, match="is the target alone"):
        pipeline.solve("target", path, engines=str(SIM), baseline=True)


@pytest.mark.slow
def test_in_a_running_event_loop_and_in_a_thread(solved: pipeline.Result) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    thresholds, argv = gc.get_threshold(), list(sys.argv)
    found: list[pipeline.Result] = []

    async def main() -> None:
        found.append(pipeline.solve("speccot", PROBLEMS, engines="sim-2xh100"))

    asyncio.run(main())
    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join()
    assert [spoken(each) for each in found] == [spoken(solved)] * 2
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    assert (gc.get_threshold(), sys.argv, found[0].run.command) == (thresholds, argv, [])


def test_chains_come_as_they_finish(solved: pipeline.Result) -> None:
    async def main() -> list[ChainRow]:
        return [row async for row in pipeline.solve_async("speccot", PROBLEMS, engines="sim-2xh100", batch_size=4)]

    rows = anyio.run(main)
    assert sorted(spoken(rows)) == sorted(spoken(solved))
    ends = [row.end_unix_ns for row in rows]
    assert ends == sorted(ends)


def test_engines_of_the_caller_serve_the_plain_call_too() -> None:
    engine = Echo()
    result = pipeline.solve("target", PROBLEMS[:3], engines={"target": engine})
    assert {row.answer for row in result} == {"7"}
    one_by_one = pipeline.solve("target", PROBLEMS, engines={"target": Echo()}, set={"engines.target.max_in_flight": 1}, trace=True)
    assert one_at_a_time(one_by_one.calls)
    assert engine.asked == result.run.engine_statistics["target"].requests == 3


def test_a_slow_reader_holds_new_chains_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "UNREAD", 4)
    engine, problems = Echo(), [{"problem": f"{i}?"} for i in range(400)]

    async def main() -> None:
        async with aclosing(pipeline.solve_async("target", problems, engines={"target": engine}, batch_size=2)) as chains:
            await anext(chains)
            before = -1
            while engine.asked != before:  # until the run is held back
                before = engine.asked
                await anyio.sleep(0.02)
            assert engine.asked <= 1 + 4 + 2
            assert len([row async for row in chains]) == 399

    asyncio.run(main())


def test_an_interrupt_of_the_caller_ends_the_run(tmp_path: Path) -> None:
    class Interrupts(Echo):
        async def generate(self, request: Request) -> Completion:
            completion = await super().generate(request)
            if self.asked == 3:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                await anyio.sleep_forever()
            return completion

    with pytest.raises(KeyboardInterrupt):
        pipeline.solve("target", PROBLEMS, engines={"target": Interrupts()}, batch_size=1, output=tmp_path / "run")
    card = RunFile.read(tmp_path / "run")
    assert (card.status, card.totals.chains_done) == ("interrupted", 2)


def test_what_was_finished_is_not_lost_with_an_engine() -> None:
    with pytest.raises(Unfinished, match="engine 'target' died: it was told to") as raised:
        pipeline.solve("target", PROBLEMS, engines={"target": Echo(dies_after=5)}, batch_size=1)
    result = raised.value.result
    assert [row.answer for row in result][:5] == ["7"] * 5
    assert (result.run.status, isinstance(raised.value.error, EngineDead)) == ("failed", True)

    async def main() -> None:
        async for row in pipeline.solve_async("target", PROBLEMS, engines={"target": Echo(dies_after=5)}, batch_size=1):
            found.append(row.answer)  # noqa: PERF401

    found: list[str | None] = []
    with pytest.raises(EngineDead):
        asyncio.run(main())
    assert found[:5] == ["7"] * 5


def test_a_run_of_values_is_refused_by_the_command_that_could_not_go_on_with_it(tmp_path: Path) -> None:
    pipeline.solve("target", PROBLEMS, engines={"target": Echo()}, output=tmp_path / "run")
    with pytest.raises(InputError, match="started from Python with engines that are in no file"):
        resume_options(tmp_path / "run")
    with pytest.raises(UsageError, match=r"already contains a run; add --resume to resume it, or choose another directory with --output$"):
        pipeline.solve("target", PROBLEMS, engines={"target": Echo()}, output=tmp_path / "run")


ALONE = "import pipeline; assert len(pipeline.solve('speccot', [{'problem': 'One?', 'answer': '1'}], engines='sim-2xh100')) == 1"


@pytest.mark.slow
def test_without_output_nothing_stays_on_disk_and_nothing_is_printed(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", ALONE], cwd=tmp_path, capture_output=True, text=True, timeout=60, env=environment)
    assert (done.stdout, done.stderr, list(tmp_path.iterdir())) == ("", "", [])


MODELS = {"target": "bundled:tiny-target", "draft": "bundled:tiny-draft"}


def test_roles_may_be_given_by_their_models_alone() -> None:
    plan = api.load_graph("speccot", models=MODELS)
    assert {role: (spec.backend, spec.model) for role, spec in plan.engines.items()} == {  # type: ignore[attr-defined]
        role: (plan.engines[role].backend, model) for role, model in MODELS.items()
    }
    with pytest.raises(UsageError, match="speccot also needs a model for draft; add --model draft=NAME"):
        pipeline.solve("speccot", PROBLEMS, models={"target": "bundled:tiny-target"})
    with pytest.raises(UsageError, match="models: the plan is already compiled"):
        pipeline.solve(plan, PROBLEMS, models=MODELS)
    with pytest.raises(UsageError, match="set: the plan is already compiled"):
        pipeline.solve(plan, PROBLEMS, set={"candidates": 2})
    with pytest.raises(UsageError, match="models: engines are given; leave out one of the two"):
        pipeline.solve("target", PROBLEMS, engines={"target": Echo()}, models=MODELS)


def test_progress_is_shown_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    pipeline.solve("speccot", write_problems(tmp_path, 3), engines=SIM, progress=True)
    assert "3/3" in capsys.readouterr().out
