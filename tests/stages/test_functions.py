"""Judges and graders that are functions: registered or passed in this process, or announced by an installed package; and votes."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pipeline
from pipeline.data.problems import Problem
from pipeline.errors import InputError, UsageError
from pipeline.grading import plugins as graders
from pipeline.graph import plugins
from pipeline.run.prepare import prepare, resume_options
from pipeline.stages.function_judge import JudgeFailed, _judgement
from pipeline.stages.vote import majority_vote
from pipeline.store.run_file import RunFile
from tests.support.paths import SIM

PROBLEMS = [{"problem": f"Problem number {i}?", "answer": "A", "options": ["one", "two"]} for i in range(3)]


def graph(kind: str) -> dict[str, Any]:
    body = {
        "draft": {"kind": "draft", "engine": "draft", "candidates": 3, "max_tokens": 100},
        "verify": {"kind": kind, "after": "draft"},
        "write": {"kind": "generate", "engine": "target", "unit": "step", "after": "verify", "when": "verify.rejected", "max_tokens": 100},
    }
    loop = {"kind": "repeat", "until": {"thought_closed": True, "max_steps": 3}, "stages": body}
    return {"name": "own", "stages": {"reason": loop, "answer": {"kind": "answer", "engine": "target", "after": "reason"}}}


def solve(kind: str, **options: Any) -> pipeline.Result:
    return pipeline.solve(graph(kind), PROBLEMS, engines=str(SIM), **options)


def forget() -> None:
    """As a process that was started anew."""
    plugins._registered.clear()
    graders.graders.clear()
    for known in (plugins._entries, plugins.stage_kinds, graders.grader_names):
        known.cache_clear()


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    yield
    forget()


def first(problem: Problem, candidates: Sequence[str]) -> int | None:
    return 0


def always(answer: str, reference: str) -> bool:
    return True


def fails(answer: str, reference: str) -> bool:
    raise ValueError(f"not {reference}")


def test_a_registered_judge_is_known_and_can_be_called() -> None:
    assert pipeline.judge(first)(Problem(1, "1", "", None), ["a"]) == 0
    assert all(row.fallback_steps == 0 for row in solve("first"))
    pipeline.judge(partial(lambda problem, candidates, label: None, label="x"), name="nobody")
    assert all(row.accepted_steps == 0 for row in solve("nobody"))


MODULE = '''
from functools import partial

from pipeline import judge


def at_most(problem, candidates, longest):
    """Takes the shortest candidate, unless all are too long."""
    best = min(range(len(candidates)), key=lambda place: len(candidates[place]))
    return (best if len(candidates[best]) <= longest else None), len(candidates[best])


def broken(problem, candidates):
    return undefined


shortest = judge(partial(at_most, longest=400), name="shortest", value="characters", low=0)
broken = judge(broken, in_thread=True)
'''


@pytest.mark.slow  # whole runs
def test_a_judge_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "short.py").write_text(MODULE)
    info = tmp_path / "short-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: short\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pipeline.stages]\nshortest = short:shortest\nbroken = short:broken\n")
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    steps = [row for row in solve("shortest", trace=True).to_arrow("steps").to_pylist() if row["decision"] == "accepted"]
    assert steps
    for row in steps:
        assert len(row["step_text"]) == min(map(len, row["candidate_texts"])) == row["score_value"]
        assert (row["verify_kind"], row["score_scale"], row["score_low"]) == ("shortest", "characters", 0.0)
    [error] = {(chain.error_type, chain.error_stage, chain.error_message) for chain in solve("broken")}
    line = MODULE.splitlines().index("    return undefined") + 1
    assert error[:2] == ("JudgeFailed", "verify")
    assert str(error[2]).startswith("the judge 'broken' raised NameError: name 'undefined' is not defined (")
    assert str(error[2]).endswith(f"short.py, line {line})")


@pytest.mark.parametrize("returned", [True, 3, -1, "0", (0, "x"), (0, math.nan), 0.5], ids=str)
def test_an_invalid_judgement_is_refused(returned: Any) -> None:
    with pytest.raises(JudgeFailed, match="the judge 'mine' returned"):
        _judgement("mine", returned, 3)


def test_only_a_function_with_a_name_that_is_free_judges_or_grades() -> None:
    with pytest.raises(UsageError, match=r"^judge 'two': expected a function of \(problem, candidates\): missing a required argument"):
        pipeline.judge(lambda problem, candidates, third: 0, name="two")
    with pytest.raises(UsageError, match="has no name; give it one"):
        pipeline.judge(partial(first))
    with pytest.raises(UsageError, match="'choose' is a built-in kind of stage"):
        pipeline.judge(first, name="choose")
    with pytest.raises(UsageError, match="'math' is a built-in grader"):
        pipeline.grader(always, name="math")
    with pytest.raises(UsageError, match=r"^grader 'three': expected a function of \(answer, reference\): missing a required argument"):
        pipeline.grader(lambda answer, reference, problem: True, name="three")  # type: ignore[arg-type,misc]


def test_replicas_are_other_processes_and_do_not_know_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--replicas: the judge 'first' is known to this process alone, and replicas are others"):
        solve("first", judges=[first], replicas=2, output=tmp_path / "run")


def test_graders_are_named_by_problems_and_a_single_one_grades_all() -> None:
    assert pipeline.solve("target", PROBLEMS, engines=str(SIM), graders=[always]).accuracy == 1.0
    pipeline.grader(lambda answer, reference: False, name="never")
    mixed = [problem | {"grader": name} for problem, name in zip(PROBLEMS, ("never", "always", "fails"), strict=True)]
    rows = pipeline.solve("target", mixed, engines=str(SIM), graders=[always, fails]).chains
    assert [(row.grader, row.correct) for row in rows] == [("never", False), ("always", True), ("fails", False)]
    assert "the grader 'fails' raised ValueError: not " in str(rows[2].grading_error)


@pytest.mark.slow
def test_the_command_line_names_the_functions_that_it_lacks_to_continue(tmp_path: Path) -> None:
    solve("first", judges=[first], graders=[always], output=tmp_path / "run")
    options, plan = resume_options(tmp_path / "run"), RunFile.read(tmp_path / "run").plan
    forget()
    said = "was started from Python with the judge 'first' and the grader 'always', not known here; continue in Python"
    with pytest.raises(InputError, match=said), prepare(options, plan):
        pass


ANSWERS = ["\\boxed{3}", "so 3.0", "the total is 3, which is odd", "\\boxed{-1,200}", "x=-1200", "it is -1200.", "nothing"]


@given(st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=9), st.integers(1, 4))
@example(["\\boxed{-1,200}", "so 3.0"], 1)
def test_the_first_candidate_with_the_most_frequent_answer_wins(candidates: list[str], least: int) -> None:
    """Equal answers count as one, candidates without an answer do not vote, and of equal counts the first wins."""
    kinds = [ANSWERS.index(text) // 3 for text in candidates]
    counts = [0 if kind == 2 else kinds.count(kind) for kind in kinds]
    most = max(counts)
    winner = counts.index(most) if most >= least else None
    share = float(Fraction(most, len(kinds)))
    assert majority_vote(Problem(1, "1", "", None), candidates, least_votes=least) == (winner, pytest.approx(share))
