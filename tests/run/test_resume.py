"""Runs that go on: what a run holds at any moment of its life is enough to end it as if it had never stopped."""

import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.analysis.summary import summarize
from pipeline.analysis.time.thinking import read_thinking
from pipeline.engines.sim.text import sim_answer
from pipeline.options import RunOptions
from pipeline.run.prepare import resume_options
from pipeline.run.run import run
from pipeline.store.folder import LOCK
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile
from pipeline.store.store import write_part
from tests.support.killed import cut
from tests.support.runs import rows

pytestmark = pytest.mark.slow  # whole runs

ROOT = Path(__file__).parent.parent.parent
SIM = ROOT / "graphs/engines/sim-2xh100.yaml"
GRAPHS = ("speccot", "scot", "target", "gated")


def options(folder: Path, graph: str = "speccot", **other: Any) -> RunOptions:
    problems = folder / "problems.jsonl"
    if not problems.exists():
        texts = [f"Problem number {i}?" for i in range(8)]
        rows = [msgspec.json.encode({"problem_id": f"p{i}", "problem": t, "answer": sim_answer(t)}) for i, t in enumerate(texts)]
        problems.write_bytes(b"\n\n".join([*rows, b'{"problem_id": "bad"}']) + b"\n")
    defaults = {"batch_size": 4, "samples": 2, "output": folder / graph}
    return RunOptions(graph=ROOT / f"graphs/{graph}.yaml", engines=SIM, input=(str(problems),), **defaults | other)  # type: ignore[arg-type]


def said(folder: Path) -> dict[str, Any]:
    """All that the chains said, and what it cost them; fails where one ended twice or a step is there twice."""
    steps: dict[str, list[Any]] = {}
    for row in rows(folder, "steps"):
        key = ("step_index", "decision", "step_text", "candidate_texts", "draft_tokens", "draft_tokens_wasted")
        steps.setdefault(row["chain_id"], []).append([row.get(name) for name in key])
    chains = rows(folder, "chains")
    assert len({row["chain_id"] for row in chains}) == len(chains)
    costs = ("answer", "correct", "stop_reason", "steps", "accepted_steps", "calls", "output_tokens")
    return {row["chain_id"]: ([row[name] for name in costs], steps.get(row["chain_id"])) for row in chains}


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of each graph."""
    folder = tmp_path_factory.mktemp("whole")
    return {graph: run(options(folder, graph)).folder for graph in GRAPHS}


@pytest.mark.parametrize("graph", GRAPHS)
@settings(max_examples=6, deadline=None, derandomize=True)
@given(shares=st.lists(st.floats(0, 1), min_size=1, max_size=2))
def test_a_run_that_was_killed_at_any_moment_ends_as_if_it_had_not_been(
    wholes: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, graph: str, shares: list[float]
) -> None:
    place = tmp_path_factory.mktemp(graph)
    last = wholes[graph]
    for number, share in enumerate(shares):
        cut(last, folder := place / f"{number}", share)
        result = run(resume_options(folder))
        last = result.folder
    assert result.exit_code == 3  # the bad row
    assert said(result.folder) == said(wholes[graph])
    card = msgspec.json.decode((result.folder / "run.json").read_bytes())
    assert card["totals"] == msgspec.json.decode((wholes[graph] / "run.json").read_bytes())["totals"]
    assert [session["status"] for session in card["sessions"]] == ["killed"] * len(shares) + ["finished"]


def test_a_finished_run_is_left_as_it_is(wholes: dict[str, Path]) -> None:
    folder = wholes["speccot"]

    def stamps() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != LOCK}

    before = stamps()
    result = run(resume_options(folder))
    assert result.nothing_to_do
    assert (result.exit_code, result.done, result.failed) == (3, 16, 2)
    assert stamps() == before


def test_failed_chains_are_tried_again_when_asked(tmp_path: Path) -> None:
    given = options(tmp_path, settings=("engines.target.timeout_s=0.5",))
    failed = run(given)
    assert failed.failed > 2
    again = run(
        msgspec.structs.replace(given, settings=("engines.target.timeout_s=600",), resume=True, retry_failed=True, allow_drift=("engines",))
    )
    assert again.failed == 2
    whole = run(options(tmp_path, output=tmp_path / "whole"))
    assert {chain: told[0][0] for chain, told in said(again.folder).items()} == {
        chain: told[0][0] for chain, told in said(whole.folder).items()
    }


def test_a_run_goes_on_from_any_folder_and_with_the_texts_that_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text("system: Be brief.")
    (tmp_path / "values.yaml").write_text("set: {temperature: 0.5}")
    monkeypatch.chdir(tmp_path)
    whole = run(options(tmp_path, settings=("prompts=mine.yaml", "preset=values.yaml"), output=tmp_path / "whole"))
    cut(whole.folder, tmp_path / "run", 0.5)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "mine.yaml").write_text("system: Be verbose.")
    assert said(run(resume_options(tmp_path / "run"), plan=RunFile.read(tmp_path / "run").plan).folder) == said(whole.folder)


def test_the_time_between_sessions_is_in_no_figure(wholes: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains live through up to four sessions, an hour apart."""
    hour, last = time.time_ns(), wholes["speccot"]
    for number, share in enumerate((0.1, 0.3, 0.5)):
        cut(last, last := tmp_path / f"{number}", share)
        monkeypatch.setattr(time, "time_ns", lambda hours=number + 1: hour + hours * 3600 * 10**9)
        result = run(resume_options(last))
    summary, sessions = summarize(result.folder), result.run.sessions
    assert len(sessions) == 4
    assert all(since + 1000 * 10**9 < until for since, until in result.run.pauses)
    assert summary.wall_time_s == pytest.approx(sum(session.wall_time_s or 0 for session in sessions))
    assert summary.span_s <= summary.wall_time_s  # type: ignore[operator]
    assert summary.tail_time_s <= summary.wall_time_s  # type: ignore[operator]
    for chain in rows(result.folder, "chains"):
        assert chain["chain_time_s"] <= summary.wall_time_s + 1e-6  # type: ignore[operator]
    with Query(result.folder) as db:
        assert all(0 < each.seconds <= 2 * summary.wall_time_s for each in read_thinking(db, result.run.plan) if each.seconds)  # type: ignore[operator]


def test_a_clock_that_was_set_back_turns_no_time_around(wholes: dict[str, Path], tmp_path: Path) -> None:
    cut(wholes["target"], tmp_path / "run", 0.5)
    card = msgspec.json.decode((tmp_path / "run/run.json").read_bytes())
    tomorrow = card["sessions"][0]["started_unix_ns"] + 86_400 * 10**9
    card["sessions"][0] |= {"status": "failed", "ended_unix_ns": tomorrow}
    (tmp_path / "run/run.json").write_bytes(msgspec.json.encode(card))
    result = run(resume_options(tmp_path / "run"))
    assert result.run.sessions[1].started_unix_ns > tomorrow
    assert all(row["chain_time_s"] >= 0 for row in rows(result.folder, "chains"))
    assert summarize(result.folder).span_s >= 0
    assert said(result.folder) == said(wholes["target"])


def test_a_finished_run_goes_on_when_its_limit_is_raised(wholes: dict[str, Path], tmp_path: Path) -> None:
    source = wholes["speccot"].parent
    part = options(source, output=tmp_path / "run", limit=3)
    assert run(part).done == 6
    more = run(msgspec.structs.replace(part, limit=None, resume=True, allow_drift=("limit",)))
    assert (more.nothing_to_do, more.done) == (False, 16)
    assert said(tmp_path / "run") == said(wholes["speccot"])


def test_a_run_over_a_sample_goes_on_over_the_same_one(wholes: dict[str, Path], tmp_path: Path) -> None:
    whole = run(options(wholes["speccot"].parent, output=tmp_path / "whole", random="4")).folder
    cut(whole, tmp_path / "run", 0.5)
    run(resume_options(tmp_path / "run"))
    of_all = said(wholes["speccot"])
    assert said(tmp_path / "run") == said(whole) == {chain: of_all[chain] for chain in said(whole)}
    assert len(said(whole)) == 8


def test_an_answer_to_another_prompt_is_asked_for_again(wholes: dict[str, Path], tmp_path: Path) -> None:
    cut(wholes["speccot"], tmp_path / "run", 0.5)
    [part] = (tmp_path / "run/calls").glob("*.parquet")
    calls = pq.read_table(part)
    place = calls.column_names.index("prompt_digest")
    others = pc.add(calls.column(place), 1)
    write_part(part, calls.set_column(place, calls.schema.field(place), others))
    over = {row["chain_id"] for row in rows(tmp_path / "run", "chains")}
    result = run(resume_options(tmp_path / "run"))
    names = [row["request_id"] for row in rows(result.folder, "calls") if row["chain_id"] not in over]
    asked = [row["request_id"] for row in rows(wholes["speccot"], "calls") if row["chain_id"] not in over]
    begun = [row["request_id"] for row in calls.to_pylist() if row["chain_id"] not in over]
    assert begun
    assert sorted(names) == sorted(asked + begun)
    assert {chain: told[0][0] for chain, told in said(result.folder).items()} == {
        chain: told[0][0] for chain, told in said(wholes["speccot"]).items()
    }
