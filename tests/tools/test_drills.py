"""Fault drills, some strikes of some kinds; `bench/reliability.py` has all and many. Every chain is there once and says what it said."""

import random
from pathlib import Path

import pytest
from drills import faults
from drills.toll import Toll

pytestmark = pytest.mark.slow
LUCK = random.Random(0)


def assert_harmless(toll: Toll) -> None:
    assert (toll.faults > 0, toll.harmless) == (True, True), toll


def test_a_full_disk_that_is_made_larger(tmp_path: Path) -> None:
    try:
        assert_harmless(faults.full(faults.varying(tmp_path, 72), tmp_path, [size << 10 for size in (64, 600, 1400)]))
    except faults.CannotMount:
        pytest.skip("cannot mount a small disk")


def test_a_run_that_is_killed(tmp_path: Path) -> None:
    """On engines that never answer the same twice."""
    assert_harmless(faults.killed(faults.varying(tmp_path, 40), tmp_path / "killed", 2, LUCK, 0.4))


def test_a_server_that_answers_with_a_page_at_times(tmp_path: Path) -> None:
    assert_harmless(faults.moody("HTML", tmp_path, 3, LUCK))
