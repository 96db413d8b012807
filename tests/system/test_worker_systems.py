"""Workers on systems that this machine is not: their calls are patched, before the worker begins, to do what those of macOS and of a
restricted container do."""

import os
from pathlib import Path
from textwrap import dedent

import pytest

from pipeline.grading.answers import Grade
from pipeline.grading.grader import Grader
from pipeline.system.worker_process import LEFT_TO_MAIN

pytestmark = pytest.mark.slow
SYSTEMS = {
    "macOS": """
        import resource
        set_limit = resource.setrlimit
        def setrlimit(limit, sizes):
            if limit == resource.RLIMIT_AS:
                raise ValueError("current limit exceeds maximum limit")
            set_limit(limit, sizes)
        resource.setrlimit = setrlimit
        import os
        del os.sched_setaffinity, os.sched_getaffinity
    """,
    "a container that forbids it": """
        import os, resource
        def forbidden(*arguments):
            raise PermissionError(1, "Operation not permitted")
        resource.setrlimit = os.nice = forbidden
    """,
}


@pytest.fixture(params=SYSTEMS.values(), ids=SYSTEMS)
def system(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that start with the calls of another system."""
    (tmp_path / "sitecustomize.py").write_text(dedent(request.param))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def verdict(grade: Grade) -> tuple[bool | None, str | None]:
    return grade.correct, grade.why


@pytest.mark.usefixtures("system")
def test_the_grader_grades_there() -> None:
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
