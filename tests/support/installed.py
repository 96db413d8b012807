"""Packages of other people, installed for a while in this process and those that it starts; simulated engines that fail are one of them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.graph import plugins
from tests.support.paths import ROOT, SIM

FAULTY = ROOT / "tests/support/packages"
"""The package with the backend `faulty` (`tests.support.faulty_engine`)."""


@contextmanager
def installed(*folders: Path) -> Iterator[None]:
    """The packages in these folders, and no others, are installed."""
    with pytest.MonkeyPatch.context() as patch:
        for folder in folders:
            patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, (*folders, ROOT))))
        _forget()
        yield
    _forget()


def _forget() -> None:
    for known in (plugins.stage_kinds, plugins.engine_specs, plugins.engine_backend, plugins._entries):
        known.cache_clear()


def faulty_file(folder: Path) -> Path:
    """An engines file in `folder` with the simulated machine of `SIM`, whose engines may have faults."""
    path = folder / "faulty.yaml"
    path.write_text(SIM.read_text().replace("backend: sim", "backend: faulty"))
    return path


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Path]:
    """Engines that fail are installed; their file."""
    with installed(FAULTY):
        yield faulty_file(tmp_path)
