"""What all tests share: virtual time by default, folders of the project and of the reference data."""

from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Time jumps when every task is blocked."""
    return "trio", {"clock": MockClock(autojump_threshold=0)}


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the reference data folder ../shared is not here")
    return SHARED
