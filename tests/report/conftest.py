"""The runs of these tests: small simulated ones, and one with hostile text."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.report.report import report
from pipeline.report.run_sections import ReportOptions
from tests.support.shown_runs import SHOWN, hostile_run, shown_run


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty chains of SpecCoT on simulated engines, and one that failed."""
    return shown_run(tmp_path_factory.mktemp("report"), batch_size=8)


@pytest.fixture(scope="session")
def alone(ran: Path) -> Path:
    """The same problems solved by the target alone."""
    return shown_run(ran.parent, "target", "alone")


@pytest.fixture(scope="session")
def routed(ran: Path) -> Path:
    """The first two problems where a gate decides which model writes a step."""
    return shown_run(ran.parent, "routed", "routed", limit=2)


@pytest.fixture(scope="session")
def hostile(ran: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_run(ran, tmp_path_factory.mktemp("hostile") / "<b>run")


@pytest.fixture(scope="session")
def page_of() -> Callable[..., str]:
    """The page of run folders, as the command makes it."""
    return lambda *runs, chains=6, bins=40: report(runs, ReportOptions(chains=chains, bins=bins))


@pytest.fixture
def shown() -> str:
    """Hostile text as a reader sees it."""
    return SHOWN
