"""What all tests share: virtual time by default, folders, and makers of chains and rows."""

import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from pipeline.grading import plugins as graders
from pipeline.graph import plugins
from pipeline.runtime.virtual_loop import VirtualLoop
from tests.support.paths import SHARED
from tests.support.runs import solve, write_problems

pytest_plugins = ["tests.support.installed", "tests.support.open_engines"]
settings.register_profile("suite", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("suite"), max_examples=10, derandomize=True)
settings.load_profile("suite")  # a machine with other work is slow, and fails nobody; `make check` takes `quick`
REGISTRIES: Any = (plugins._registered, graders.graders)
MARKERS = ("slow", "long", "torch", "vllm", "browser", "clients")
"""The markers of tests that `--quick` leaves out."""
MARKED_FILE = re.compile(rf"^pytestmark = .*\bmark\.({'|'.join(MARKERS)})\b", re.M)
MARKED_TIMEOUT_S = 600
"""Of a test with a marker: it may start an engine while others do; those without have the timeout of pyproject.toml."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only tests without a marker, and few examples of each property")


def pytest_configure(config: pytest.Config) -> None:
    """Tests send signals, and runs leave ignored what was ignored when they began, as under nohup or in the background of a script."""
    for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    if config.option.quick:
        config.option.markexpr = f"not ({' or '.join(MARKERS)})"
        settings.load_profile("quick")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of which every test has a marker are not even imported for a quick run."""
    return (config.option.quick and collection_path.suffix == ".py" and bool(MARKED_FILE.search(collection_path.read_text()))) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with the most marked tests come first, so that several workers (`--dist loadfile`) end at about the same time."""
    marked = [item for item in items if any(map(item.get_closest_marker, MARKERS))]
    for item in marked:
        item.add_marker(pytest.mark.timeout(MARKED_TIMEOUT_S))
    long = Counter(item.path for item in marked)
    items.sort(key=lambda item: -long[item.path])


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run `one` of twelve problems and a bad row, and a run `two` with three samples of each."""
    folder = tmp_path_factory.mktemp("results")
    problems = write_problems(folder, 12, (b'{"problem_id": "empty", "level": "hard"}',))
    solve(folder, "one", input=problems)
    solve(folder, "two", graph="scot", input=problems, samples=3)
    return folder


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Time jumps when every task is blocked."""
    return "asyncio", {"loop_factory": VirtualLoop}


@pytest.fixture(scope="session")
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the reference data folder ../shared is not here")
    return SHARED


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """No test leaves SIGINT ignored, which all processes that are started later would inherit, nor judges and graders that it made known in
    this process."""
    interrupts, known = signal.getsignal(signal.SIGINT), [registry.copy() for registry in REGISTRIES]
    yield
    if known != [*REGISTRIES]:
        for registry, before in zip(REGISTRIES, known, strict=True):
            registry.clear()
            registry.update(before)
        plugins.stage_kinds.cache_clear()
        graders.grader_names.cache_clear()
    assert signal.getsignal(signal.SIGINT) is interrupts
