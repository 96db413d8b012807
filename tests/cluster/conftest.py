"""What replicas are compared with."""

from pathlib import Path

import pytest

from pipeline.run.run import SessionResult, run
from tests.cluster.waiting_engines import waiting


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replicas")


@pytest.fixture(scope="session")
def alone(folder: Path) -> SessionResult:
    """The run of one process, whose answers all others are to give."""
    return run(waiting(folder, "alone"))
