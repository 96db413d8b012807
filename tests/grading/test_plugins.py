"""Graders of other packages grade in the worker process, under its limits."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.data.problems import Problem
from pipeline.data.reading import read_problems
from pipeline.errors import BadRow
from pipeline.grading.answers import as_kind
from pipeline.grading.grader import Grader
from pipeline.grading.plugins import grader_names
from tests.support.grading_pairs import at_once

MODULE = """
def same(answer, reference):
    if answer == "fail":
        raise RuntimeError("no")
    if answer == "loop":
        while True:
            pass
    return sorted(answer.split()) == sorted(reference.split())
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "bag.py").write_text(MODULE)
    info = tmp_path / "bag-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bag\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pipeline.graders]\nbag = bag:same\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    grader_names.cache_clear()
    yield
    grader_names.cache_clear()


def test_a_column_may_name_it(installed: None, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"problem": "x", "answer": "a b", "grader": "bag"}\n{"problem": "y", "grader": "bagg"}\n')
    first, second = read_problems(path)
    assert isinstance(first, Problem)
    assert first.grader == "bag"
    assert isinstance(second, BadRow)
    assert second.what == "`grader` is 'bagg'; did you mean `bag`?"
    assert as_kind("bag") == "bag"


@pytest.mark.slow
def test_it_grades(installed: None) -> None:
    with Grader(limit_s=1.0) as grader:
        assert at_once("bag", "a b", "a b") is None
        assert grader.grade("bag", "b a", "a b").correct is True
        assert grader.grade("bag", "b c", "a b").correct is False
        failed = grader.grade("bag", "fail", "a b")
        assert (failed.correct, failed.why) == (False, "the comparison ended with RuntimeError")
        assert grader.grade("bag", "loop", "a b").why == "not compared within 1 s of CPU time"
        assert grader.grade("math", "1/2", "0.5").correct is True


@pytest.mark.slow
def test_a_slow_import_is_no_slow_comparison(installed: None, tmp_path: Path) -> None:
    slow = "import time\nend = time.process_time() + 0.6\nwhile time.process_time() < end: pass\n"
    (tmp_path / "bag.py").write_text(slow + MODULE)
    with Grader(limit_s=0.3) as grader:
        assert grader.grade("bag", "b a", "a b").correct is True


@pytest.mark.slow
def test_what_cannot_be_loaded_grades_nothing(installed: None, tmp_path: Path) -> None:
    (tmp_path / "bag.py").write_text("import nowhere_to_be_found\n")
    with Grader() as grader:
        found = [grader.grade(kind, "b a", "a b") for kind in ("bag", "sack")]
    assert [(each.correct, each.why) for each in found] == [
        (None, "the grader 'bag' cannot be loaded: ModuleNotFoundError"),
        (None, "the grader 'sack' cannot be loaded: KeyError"),
    ]
