"""Judges that are functions, votes, and judges of candidates that others have rejected."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pipeline
from pipeline import Problem, judge
from pipeline.errors import UsageError
from pipeline.graph.plugins import _entries, stage_kinds, stage_specs
from pipeline.stages.vote import KIND as VOTE
from tests.support.paths import SIM
from tests.support.runs import write_problems

pytestmark = pytest.mark.slow  # whole runs

MODULE = '''
from collections.abc import Sequence
from functools import partial

from pipeline import Problem, judge


def at_most(problem: Problem, candidates: Sequence[str], longest: int) -> tuple[int | None, float]:
    """Takes the shortest candidate, unless all are too long."""
    best = min(range(len(candidates)), key=lambda place: len(candidates[place]))
    return (best if len(candidates[best]) <= longest else None), len(candidates[best])


shortest = judge(partial(at_most, longest=400), name="shortest", value="characters", low=0)
none = judge(partial(at_most, longest=0), name="none")


def broken(problem: Problem, candidates: Sequence[str]) -> int:
    return undefined


broken = judge(broken, in_thread=True)
'''
GRAPH = """
name: short
engines: {engines}
stages:
  reason:
    kind: repeat
    until: {{thought_closed: true, max_steps: 20}}
    stages:
      draft: {{kind: draft, engine: draft, candidates: 3, max_tokens: 100}}
      verify: {{kind: {kind}, after: draft}}
      write: {{kind: generate, engine: target, unit: step, after: verify, when: verify.rejected, max_tokens: 100}}
  answer: {{kind: answer, engine: target, after: reason}}
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a graph with a judge of an installed package; its path."""
    (tmp_path / "short.py").write_text(MODULE)
    info = tmp_path / "short-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: short\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[pipeline.stages]\nshortest = short:shortest\nnone = short:none\nbroken = short:broken\ngone = nothing_there:KIND\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def graph(kind: str) -> Path:
        path = tmp_path / "short.yaml"
        path.write_text(GRAPH.format(engines=SIM, kind=kind))
        return path

    stage_kinds.cache_clear()
    _entries.cache_clear()
    yield graph
    stage_kinds.cache_clear()
    _entries.cache_clear()


def rows_of(result: pipeline.Result, table: str) -> list[Any]:
    return [SimpleNamespace(**row) for row in result.to_arrow(table).to_pylist()]


def solve_with(graph: Path, tmp_path: Path) -> pipeline.Result:
    return pipeline.solve(graph, write_problems(tmp_path, 6), output=tmp_path / "run", engines=SIM)


def test_a_function_of_an_installed_package_judges(installed: Any, tmp_path: Path) -> None:
    result = solve_with(installed("shortest"), tmp_path)
    steps = [row for row in rows_of(result, "steps") if row.decision == "accepted"]
    assert steps
    for row in steps:
        assert row.verify_kind == "shortest"
        assert len(row.step_text) == min(map(len, row.candidate_texts)) == row.score_value
        assert (row.score_scale, row.score_low) == ("characters", 0.0)
    assert {row.stage for row in rows_of(result, "calls")} == {"draft", "answer"}


def test_an_error_in_it_fails_the_chain_and_names_the_line(installed: Any, tmp_path: Path) -> None:
    result = solve_with(installed("broken"), tmp_path)
    assert {chain.error_type for chain in result} == {"JudgeFailed"}
    assert {chain.error_stage for chain in result} == {"verify"}
    message = result.chains[0].error_message or ""
    assert message.startswith("the judge 'broken' raised NameError: name 'undefined' is not defined (")
    assert message.endswith(f"short.py, line {MODULE.splitlines().index('    return undefined') + 1})")


def test_a_plugin_that_cannot_be_loaded_breaks_nothing_else(installed: Any) -> None:
    from pipeline.graph.plugins import broken_plugins

    assert "shortest" in stage_specs()
    [sentence] = broken_plugins()
    assert "gone = nothing_there:KIND" in sentence
    with pytest.raises(pipeline.PipelineError, match="unknown kind `gone`"):
        pipeline.load_graph(installed("gone"))


@pytest.mark.parametrize("returned", [True, 3, -1, "0", (0, "x"), (0, float("nan")), 0.5], ids=str)
def test_what_is_no_judgement_is_refused(returned: Any) -> None:
    from pipeline.stages.function_judge import JudgeFailed, _judgement

    with pytest.raises(JudgeFailed, match="the judge 'mine' returned"):
        _judgement("mine", returned, 3)


def test_what_is_no_judge_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^judge 'two': expected a function of \(problem, candidates\): missing a required argument"):
        judge(lambda problem, candidates, third: 0, name="two")
    with pytest.raises(UsageError, match="has no name; give it one"):
        judge(partial(lambda problem, candidates, place: place, place=0))


VOTES = [
    (["\\boxed{3}", "\\boxed{4}", "\\boxed{3.0}"], 1, 0, 2 / 3),
    (["\\boxed{4}", "so 3", "it is 3"], 1, 1, 2 / 3),
    (["\\boxed{4}", "\\boxed{3}"], 1, 0, 1 / 2),
    (["\\boxed{4}", "\\boxed{3}"], 2, None, 1 / 2),
    (["nothing", "none"], 1, None, 0.0),
    (["the total is 12, which is even", "the total is 12.", "7", "7"], 1, 0, 1 / 2),
    (["1,200 in all, as asked", "1200", "7"], 1, 0, 2 / 3),
    (["3-5", "5", "-5"], 1, 0, 2 / 3),
    (["x=-5", "it is -5", "5"], 1, 0, 2 / 3),
]


@pytest.mark.parametrize(("candidates", "least", "place", "share"), VOTES)
def test_votes(candidates: list[str], least: int, place: int | None, share: float) -> None:
    from pipeline.stages.vote import majority_vote

    assert majority_vote(Problem(1, "1", "", None), candidates, least_votes=least) == (place, pytest.approx(share))
    assert VOTE.name == "vote"
