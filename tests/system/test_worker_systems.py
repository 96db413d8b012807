"""Workers where the system forbids what they ask of it, or signals all processes of a job."""

import os
from pathlib import Path

import pytest

from pipeline.grading.answers import Grade
from pipeline.grading.grader import Grader
from pipeline.system.worker_process import LEFT_TO_MAIN

pytestmark = pytest.mark.slow
FORBIDS = """
import os, resource
def forbidden(*arguments):
    raise PermissionError(1, "Operation not permitted")
resource.setrlimit = os.nice = forbidden
"""


def verdict(grade: Grade) -> tuple[bool | None, str | None]:
    return grade.correct, grade.why


def test_the_grader_grades_in_a_container_that_forbids_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(FORBIDS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Grader(1) as grader:
        assert verdict(grader.grade("math", r"\frac{x^2-1}{x-1}", "x+1")) == (True, None)
        assert verdict(grader.grade("math", r"\frac{x^2-1}{x-1}", "x+2")) == (False, None)


def test_signals_for_the_whole_job_leave_a_worker_alone() -> None:
    """As a batch system sends them to every process of a job."""
    with Grader(1) as grader:
        assert verdict(grader.grade("math", r"\frac{x^2-1}{x-1}", "x+1")) == (True, None)
        pid = grader.processes[0].pid
        for number in LEFT_TO_MAIN:
            os.kill(pid, number)
        assert verdict(grader.grade("math", r"\frac{x^2-4}{x-2}", "x+2")) == (True, None)
        assert grader.processes[0].pid == pid
