"""Markers that are true: a test that takes longer, or starts more, than its markers say fails.

Time is processor time, of this process and of those that the test waited for, so that a busy machine fails nobody. What fixtures
of a wider scope cost, and what numba compiles at its first use, is not the test's.
"""

import os
import resource
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.support.watch.sitecustomize import NOTES, install

LIMIT_S = 0.25
"""Processor seconds of a test without a marker."""
TOLERANCE = 12
"""A test fails at this many times the limit: first imports are slow, and so are processors that others use, too."""
HEAVY = {"torch": ("torch", "vllm"), "vllm": ("vllm",), "browser": ("browser",)}
"""What a test starts, and the markers that announce it: vLLM brings torch."""
MARKERS = {
    "slow": f"takes more than {LIMIT_S:g} s of processor time",
    "torch": "loads torch, or starts an engine that does",
    "vllm": "starts vLLM, which takes most of a minute",
    "browser": "starts a browser",
}


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    config.pluginmanager.register(Watcher(), "watcher")


class Watcher:
    """Measures what each test costs and starts, and fails the test that its markers do not announce."""

    def __init__(self) -> None:
        self.shared_s = 0.0
        """Spent since the present phase began, on behalf of more than one test."""
        self.spent: dict[str, float] = {}
        self.over: list[tuple[float, str]] = []
        self.browsers = self.seen = 0
        self.folder = tempfile.TemporaryDirectory(prefix="tests-")
        self.notes = Path(self.folder.name) / "notes"
        self.notes.touch()
        os.environ[NOTES] = str(self.notes)
        watch = str(Path(__file__).parent / "watch")
        others = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place not in ("", watch)]
        os.environ["PYTHONPATH"] = os.pathsep.join([watch, *others])
        install()
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and any(word in str(arguments[:2]) for word in ("chrom", "playwright")):
            self.browsers += 1

    def started(self) -> set[str]:
        """What was loaded or started since the last time that this was asked."""
        text = self.notes.read_text()
        found, self.seen = set(text[self.seen :].split()), len(text)
        if self.browsers:
            self.browsers = 0
            found.add("browser")
        return found

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if report.passed and (started := self.started()):
            report.outcome, report.longrepr = "failed", f"{collector.nodeid} loads {', '.join(sorted(started))} while tests are collected"
        return report

    def pytest_collection_finish(self) -> None:
        if "numba" in sys.modules:
            self._discount_compiling()

    def _discount_compiling(self) -> None:
        """A function is compiled by the first test of a machine that calls it."""
        from numba.core import event

        watcher = self

        class Compiling(event.Listener):
            depth, before = 0, 0.0

            def on_start(self, event: object) -> None:
                if self.depth == 0:
                    self.before = cpu_s()
                self.depth += 1

            def on_end(self, event: object) -> None:
                self.depth -= 1
                if self.depth == 0:
                    watcher.shared_s += cpu_s() - self.before

        event.register("numba:compile", Compiling())

    def pytest_unconfigure(self) -> None:
        self.folder.cleanup()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        before, shared = cpu_s(), self.shared_s
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self.shared_s = shared + cpu_s() - before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        self.started()
        self.spent[item.nodeid] = yield from self._timed()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        children_before = children_s()
        spent = self.spent.pop(item.nodeid, 0.0) + (yield from self._timed())
        names = {mark.name for mark in item.iter_markers()} & MARKERS.keys()
        for each in self.started():
            if names.isdisjoint(HEAVY[each]):
                pytest.fail(f"it starts {each}: mark it {HEAVY[each][0]}", pytrace=False)
        if not names:
            item.user_properties.append(("cpu_s", spent))
            if spent > LIMIT_S * TOLERANCE:
                children = f"{children_s() - children_before:.2f} s of it in processes that it waited for"
                pytest.fail(
                    f"it took {spent:.2f} s of processor time, {children}, and a test without a marker has {LIMIT_S:g} s", pytrace=False
                )

    def _timed(self) -> Generator[None, None, float]:
        self.shared_s = 0.0
        before = cpu_s()
        yield
        return cpu_s() - before - self.shared_s

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.over += [(spent, report.nodeid) for name, spent in report.user_properties if name == "cpu_s" and spent > LIMIT_S]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Who comes near to failing."""
        if self.over:
            terminalreporter.section(f"more than {LIMIT_S:g} s of processor time without a marker")
            for spent, name in sorted(self.over, reverse=True):
                terminalreporter.write_line(f"{spent:.2f} s  {name}")


def cpu_s() -> float:
    """Processor seconds of this process and of its children that have ended."""
    return time.process_time() + children_s()


def children_s() -> float:
    """Processor seconds of the children of this process that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime
