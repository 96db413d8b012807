"""Judges and graders that are functions of the process: registered or passed, and unknown to any other process."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.data.problems import Problem
from pipeline.errors import InputError, UsageError
from pipeline.graph import plugins
from pipeline.options import resume_options
from tests.support.paths import SIM

PROBLEMS = [{"problem": f"Problem number {i}?", "answer": "A", "options": ["one", "two"]} for i in range(3)]


def graph(kind: str) -> dict[str, Any]:
    write = {"kind": "generate", "engine": "target", "unit": "step", "after": "verify", "when": "verify.rejected", "max_tokens": 100}
    body = {
        "draft": {"kind": "draft", "engine": "draft", "candidates": 3, "max_tokens": 100},
        "verify": {"kind": kind, "after": "draft"},
        "write": write,
    }
    loop = {"kind": "repeat", "until": {"thought_closed": True, "max_steps": 3}, "stages": body}
    return {"name": "own", "stages": {"reason": loop, "answer": {"kind": "answer", "engine": "target", "after": "reason"}}}


def solve(kind: str, problems: Any = PROBLEMS, **options: Any) -> pipeline.Result:
    return pipeline.solve(graph(kind), problems, engines=str(SIM), **options)


def forget() -> None:
    """As a process that was started anew."""
    plugins._registered.clear()
    plugins._graders.clear()
    plugins.stage_kinds.cache_clear()
    plugins.grader_names.cache_clear()


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    yield
    forget()


def test_a_decorated_judge_is_known_and_can_be_called() -> None:
    @pipeline.judge
    def first(problem: Problem, candidates: Sequence[str]) -> int | None:
        return 0

    def never(problem: Problem, candidates: Sequence[str], label: str) -> int | None:
        return None

    assert first(Problem(1, "1", "", None), ["a"]) == 0
    assert all(row.fallback_steps == 0 for row in solve("first"))
    pipeline.judge(partial(never, label="x"), name="nobody")
    assert all(row.accepted_steps == 0 for row in solve("nobody"))


def test_replicas_are_other_processes_and_do_not_know_it(tmp_path: Path) -> None:
    def mine(problem: Problem, candidates: Sequence[str]) -> int:
        return 0

    with pytest.raises(UsageError, match=r"^--replicas: the judge 'mine' is known to this process alone, and replicas are others"):
        solve("mine", judges=[mine], replicas=2, output=tmp_path / "run")


def test_a_name_of_ours_is_not_taken() -> None:
    def choose(problem: Problem, candidates: Sequence[str]) -> int:
        return 0

    def math(answer: str, reference: str) -> bool:
        return True

    with pytest.raises(UsageError, match="'choose' is a built-in kind of stage"):
        pipeline.judge(choose)
    with pytest.raises(UsageError, match="'math' is a built-in grader"):
        pipeline.grader(math)
    with pytest.raises(UsageError, match="unknown kind `never_heard_of`"):
        solve("never_heard_of")


def always(answer: str, reference: str) -> bool:
    return True


def fails(answer: str, reference: str) -> bool:
    raise ValueError(f"not {reference}")


def test_graders_are_named_by_problems_and_a_single_one_grades_all() -> None:
    assert pipeline.solve("target", PROBLEMS, engines=str(SIM), graders=[always]).accuracy == 1.0
    pipeline.grader("never")(lambda answer, reference: False)
    mixed = [PROBLEMS[0] | {"grader": "never"}, PROBLEMS[1] | {"grader": "always"}, PROBLEMS[2] | {"grader": "fails"}]
    rows = pipeline.solve("target", mixed, engines=str(SIM), graders=[always, fails]).chains
    assert [(row.grader, row.correct) for row in rows] == [("never", False), ("always", True), ("fails", False)]
    assert "the grader 'fails' raised ValueError: not " in str(rows[2].grading_error)


@pytest.mark.slow
def test_what_only_python_knew_is_named_when_the_command_line_is_to_continue(tmp_path: Path) -> None:
    def first(problem: Problem, candidates: Sequence[str]) -> int:
        return 0

    (tmp_path / "graph.yaml").write_text(str(graph("first") | {"engines": str(SIM)}))
    pipeline.solve(tmp_path / "graph.yaml", PROBLEMS, judges=[first], graders=[always], output=tmp_path / "run")
    assert resume_options(tmp_path / "run").judges == ("first",)
    forget()
    said = "was started from Python with the judge 'first' and the grader 'always', not known here; continue in Python"
    with pytest.raises(InputError, match=said):
        resume_options(tmp_path / "run")
    with pytest.raises(InputError, match="the grader 'always', not known here"):
        pipeline.solve(tmp_path / "graph.yaml", PROBLEMS, judges=[first], output=tmp_path / "run", resume=True)
