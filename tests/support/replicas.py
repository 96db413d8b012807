"""Runs on replicas for tests."""

from pathlib import Path
from typing import Any

from pipeline.options import RunOptions
from pipeline.run.run import run
from tests.support import runs
from tests.support.runs import write_problems

BRIEF = ("engines.*.text.steps_mean=3", "engines.*.text.step_tokens_mean=20")
"""Thoughts of few steps, so that a test is quick."""


def options_of(folder: Path, name: str, problems: Path, **more: Any) -> RunOptions:
    """A simulated run of `problems` into `folder`/`name`."""
    return runs.options_of(folder, name, input=problems, **{"settings": BRIEF, "batch_size": 4, "seed": 7} | more)


def replica_run(folder: Path, replicas: int, **options: Any) -> Path:
    """The folder of a finished run of so many replicas, or of one process, with twelve problems for each."""
    folder.mkdir(parents=True, exist_ok=True)
    given = options_of(folder, "run", write_problems(folder, 12 * replicas), replicas=replicas, **options)
    result = run(given)
    assert result.exit_code == 0, result.error
    return folder / "run"
