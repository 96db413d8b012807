"""What all tests share: virtual time by default, folders, and makers of chains and rows."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from pipeline.runtime.virtual_loop import VirtualLoop
from tests.support.chains import World
from tests.support.paths import ROOT, SHARED
from tests.support.rows import blank

pytest_plugins = ["tests.support.markers", "tests.support.open_engines", "tests.support.packing"]


def pytest_configure() -> None:
    """Tests send signals, and runs leave ignored what was ignored when they began, as under nohup or in the background of a script."""
    for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Time jumps when every task is blocked."""
    return "asyncio", {"loop_factory": VirtualLoop}


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the reference data folder ../shared is not here")
    return SHARED


@pytest.fixture(scope="session")
def world() -> Callable[..., World]:
    """`world(draft=NAME, target=NAME)`, with names of tokenizers: sim, shifted, plain, tiny."""
    return World


@pytest.fixture(name="blank")
def _blank() -> Callable[..., Any]:
    return blank


@pytest.fixture(scope="session", autouse=True)
def _table_of_characters() -> None:
    """Hypothesis makes its table of characters once for each checkout: no test is charged for that."""
    st.text().validate()


@pytest.fixture(autouse=True)
def _interrupts_as_before() -> Iterator[None]:
    """No test leaves SIGINT ignored, which all processes that are started later would inherit."""
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before
