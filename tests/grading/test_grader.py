"""Grades that take mathematics: equivalent forms, published references, hostile texts, lost workers."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from pipeline.grading.answers import LONGEST, Grade, form_of
from pipeline.grading.grader import Grader
from pipeline.grading.stated import stated_in
from tests.support.grading_pairs import PAIRS

SYMMETRIC = {"order and signs", "factorials and large numbers", "tiny and huge values", "scientific notation", "expressions"}
DATA_SETS = {"gsm8k": 1319, "math500": 500, "gaokao2023en": 383, "amc23": 40, "aime24": 30, "college_math": 2818, "olympiadbench": 675}
"""The number of references that are not empty."""
KINDS = {"gsm8k": "numeric"}
"""How answers to a data set are graded, where not as mathematics."""


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(2) as grader:
        yield grader


@pytest.mark.slow
@pytest.mark.parametrize("topic", dict.fromkeys((pair.kind, pair.topic) for pair in PAIRS), ids=": ".join)
def test_every_pair_has_its_verdict(grader: Grader, topic: tuple[str, str]) -> None:
    pairs = [pair for pair in PAIRS if (pair.kind, pair.topic) == topic]
    grades = [grader.grade(pair.kind, pair.answer, pair.reference) for pair in pairs]
    assert [pair for pair, grade in zip(pairs, grades, strict=True) if grade.correct is not pair.right or grade.why] == []
    given = [stated_in(pair.answer, "", form_of(pair.kind, pair.reference)) or "" for pair in pairs]
    of_chains = [grader.grade(pair.kind, said, pair.reference).correct for pair, said in zip(pairs, given, strict=True)]
    assert [(pair, said) for pair, said, right in zip(pairs, given, of_chains, strict=True) if right is not pair.right] == []


@pytest.mark.slow
def test_most_verdicts_are_symmetric(grader: Grader) -> None:
    """Bare expressions are: an answer may be a sentence or bold, a reference not."""
    pairs = [pair for pair in PAIRS if pair.topic in SYMMETRIC]
    assert len(pairs) > 100
    assert [pair for pair in pairs if grader.grade(pair.kind, pair.reference, pair.answer).correct is not pair.right] == []


def test_letters_take_no_worker() -> None:
    with Grader() as grader:
        for pair in PAIRS:
            if pair.kind == "letter":
                assert grader.grade("letter", pair.answer, pair.reference).correct is pair.right, pair
        assert not grader.processes


def references(shared: Path, name: str) -> list[str]:
    """The references of a data set as a run has them."""
    found = []
    for line in (shared / f"data/{name}.jsonl").read_text().strip().split("\n"):
        row = json.loads(line)
        value = row["final_answer"] if "final_answer" in row else row["answer"]
        text = ", ".join(value) if isinstance(value, list) else str(int(value) if isinstance(value, float) else value)
        found.append(text.rpartition("####")[2].strip())
    return [text for text in found if text]  # two of GaoKao's are empty: such a problem is not graded


@pytest.mark.parametrize("name", DATA_SETS)
def test_every_reference_equals_itself(grader: Grader, shared: Path, name: str) -> None:
    own = references(shared, name)
    assert len(own) == DATA_SETS[name]
    assert [text for text in own if grader.grade(KINDS.get(name, "math"), f" {text} ", text).correct is not True] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", DATA_SETS)
def test_hardly_any_reference_equals_its_neighbour(grader: Grader, shared: Path, name: str) -> None:
    """Of a hundred pairs of neighbours whose texts differ."""
    pairs = [pair for pair in dict.fromkeys(pairwise(references(shared, name))) if pair[0] != pair[1]]
    pairs = pairs[:: max(1, len(pairs) // 100)]
    with ThreadPoolExecutor(2) as threads:
        grades = list(threads.map(lambda pair: grader.grade(KINDS.get(name, "math"), *pair), pairs))
    right = [pair for pair, grade in zip(pairs, grades, strict=True) if grade.correct]
    assert len(right) <= 0.02 * len(pairs), right
    assert all(grade.correct is not None for grade in grades)


HOSTILE = {
    "braces": "{" * 1500 + "x" + "}" * 400,
    "fractions": r"\frac{" * 150 + "1" + "}{2}" * 150,
    "tower": "9^{9^{9^9}}",
    "factorial tower": "(((9!)!)!)!",
    "long sum": r"\sum_{k=1}^{10^{12}} \frac{1}{k^k}",
    "integral": r"\int_0^1 x^{x^{x^{x}}} e^{\sin(x^x)} dx",
    "a million characters": "1+" * 500_000 + "1",
    "newcommand": r"\newcommand{\x}{\x\x}\x",
    "unicode": "\u202e1\u200b\ud800\U0001f600\u0661\u0662",
    "code": "__import__('os').system('exit 1')",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_wrong_in_bounded_time(name: str, quick: Grader) -> None:
    for answer, reference in ((HOSTILE[name], r"\frac{x}{3}+1"), (r"\frac{x}{3}+1", HOSTILE[name]), (HOSTILE[name], HOSTILE[name] + "+1")):
        started = time.monotonic()
        grade = quick.grade("math", answer, reference)
        assert time.monotonic() - started < 60, "the limit is 0.5 s of computing; the rest is what a busy machine may add"
        assert grade.correct is False, grade
    side = len(name)
    assert quick.grade("math", rf"\sqrt{{{2 * side * side}}}", rf"{side}\sqrt{{2}}").correct, "and grading goes on"


@pytest.fixture(scope="module")
def quick() -> Iterator[Grader]:
    with Grader(limit_s=0.5) as grader:
        yield grader


@pytest.mark.slow
def test_why_there_was_no_comparison_is_said(quick: Grader) -> None:
    assert quick.grade("math", HOSTILE["tower"], "x+3") == Grade(False, why="not compared within 0.5 s of CPU time")
    assert quick.grade("math", "x" * (LONGEST + 1), "y") == Grade(False, why="longer than 2,000 characters")


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced_when_one_is_asked() -> None:
    with Grader(limit_s=60) as grader:
        assert grader.grade("math", r"\sqrt{8}", r"2\sqrt2").correct
        pid = grader.processes[0].pid
        os.kill(pid, signal.SIGKILL)
        assert grader.grade("math", r"\sqrt{8}", r"2\sqrt2").correct
        assert [each.pid for each in grader.processes] == [pid], "a grade is remembered"
        assert grader.grade("math", r"\sqrt{18}", r"3\sqrt2").correct
        assert [each.pid for each in grader.processes] != [pid]


@pytest.mark.slow
def test_a_worker_that_is_killed_at_work_is_given_one_more_chance() -> None:
    grades: list[Grade] = []
    with Grader(limit_s=60) as grader:
        grader.grade("math", r"\sqrt{8}", r"2\sqrt2")
        asking = threading.Thread(target=lambda: grades.append(grader.grade("math", HOSTILE["tower"], "x+3")))
        asking.start()
        killed = list[int]()
        while asking.is_alive():
            pids = [each.pid for each in [*grader.processes]]
            if pids and pids[0] not in killed and len(killed) < 2:
                os.kill(pids[0], signal.SIGKILL)
                killed += pids
            asking.join(0.01)
    assert len(killed) == 2
    assert grades == [Grade(False, why="the grader was lost (killed by SIGKILL)")]


@pytest.mark.slow
def test_closing_ends_what_is_computed() -> None:
    grades: list[Grade] = []
    grader = Grader(limit_s=60)
    grader.grade("math", r"\sqrt{8}", r"2\sqrt2")
    asking = threading.Thread(target=lambda: grades.append(grader.grade("math", HOSTILE["tower"], "x+3")))
    asking.start()
    grader.close()
    asking.join(10)
    assert grades == [Grade(None, why="grading was stopped")]
    grader.close()
    assert grader.grade("math", r"\sqrt{12}", r"2\sqrt3") == Grade(None, why="grading was stopped")
    assert grader.grade("math", "2", "2").correct, "what needs no worker has none to lose"


@pytest.mark.slow
def test_without_math_verify_there_is_no_grade_and_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError('not for this machine')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Grader() as grader:
        grade = grader.grade("math", r"\sqrt{8}", r"2\sqrt2")
        assert grade == Grade(None, why="the grader cannot start: ImportError: not for this machine")
        assert grader.grade("math", r"\sqrt{18}", r"3\sqrt2") == grade


@pytest.mark.slow
def test_several_threads_share_workers() -> None:
    questions = [(rf"\sqrt{{{2 * n * n}}}", rf"{n + n % 2}\sqrt{{2}}") for n in range(2, 40)]
    with Grader(2) as grader, ThreadPoolExecutor(8) as threads:
        grades = list(threads.map(lambda question: grader.grade("math", *question), questions))
    assert [grade.correct for grade in grades] == [n % 2 == 0 for n in range(2, 40)]
