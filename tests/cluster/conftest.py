"""Problems for runs on replicas, and what an undisturbed run of one process says about them."""

from pathlib import Path

import pytest

from pipeline.session.run import SessionResult, run
from tests.support.fated_replicas import options_of
from tests.support.runs import write_problems


@pytest.fixture(scope="session")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8 problems."""
    return write_problems(tmp_path_factory.mktemp("problems"), 8)


@pytest.fixture(scope="session")
def calm(problems: Path, tmp_path_factory: pytest.TempPathFactory) -> SessionResult:
    """They are solved by one process."""
    return run(options_of(tmp_path_factory.mktemp("calm"), "run", problems))
