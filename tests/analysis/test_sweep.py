"""The sweeps agree with plain references to the nanosecond, as plain Python and compiled; whatever the calls, everything adds up."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba.core.caching import CacheImpl

from pipeline.analysis.study import analyse
from pipeline.analysis.time import latency, occupancy, sweep
from pipeline.analysis.time.sweep import BY_ENGINE, ENGINE, QUEUE, RETRY, occupancy_sums, path_sums
from tests.support import reference_analyses as reference
from tests.support.runs import solve
from tests.support.traces import ENGINES, STAGES, calls_of, lives_of, random_calls, random_lives, rules_of, same, times

of_all_replicas = st.none() | st.tuples(times, times)


def check_occupancy(rows: Any, lives: Any, bins: int, lockstep: bool, of_all: Any, *, compile: bool) -> None:
    chains, calls = lives_of(lives), calls_of(rows)
    rules = rules_of(bins, chains, lockstep=lockstep, of_all=of_all)
    sums = occupancy_sums(rules, chains, calls, compile=compile)
    assert sums.tolist() == reference.occupancy_sums(rules, chains, calls).tolist()


def check_paths(rows: Any, lives: Any, *, compile: bool) -> None:
    chains, calls = lives_of(lives), calls_of(rows)
    total = path_sums(chains, calls, STAGES, compile=compile)
    assert total.tolist() == reference.path_totals(calls, chains.start, chains.end, chains.status == 0, STAGES).tolist()


@given(random_calls, random_lives, st.integers(1, 7), st.booleans(), of_all_replicas)
def test_both_agree_with_the_references(rows: Any, lives: Any, bins: int, lockstep: bool, of_all: Any) -> None:
    check_occupancy(rows, lives, bins, lockstep, of_all, compile=False)
    check_paths(rows, lives, compile=False)


@pytest.mark.slow
@given(random_calls, random_lives, st.integers(1, 7), st.booleans(), of_all_replicas)
def test_both_agree_with_the_references_when_compiled(rows: Any, lives: Any, bins: int, lockstep: bool, of_all: Any) -> None:
    check_occupancy(rows, lives, bins, lockstep, of_all, compile=True)
    check_paths(rows, lives, compile=True)


@given(random_calls, random_lives, st.integers(1, 7))
def test_every_nanosecond_counts_once(rows: Any, lives: Any, bins: int) -> None:
    chains, calls = lives_of(lives), calls_of(rows)
    rules = rules_of(bins, chains)
    sums = reference.occupancy_sums(rules, chains, calls)
    spent = sums[BY_ENGINE + 2 * ENGINES :].reshape(4, 7, -1)
    for group, engines in enumerate(([0], [1], [2], [0, 1])):
        assert spent[group].sum(axis=0).tolist() == np.diff(rules.edges).tolist()
        mine = [set(range(s, e)) for engine, s, e in zip(calls.engine, calls.submit, calls.end, strict=True) if engine in engines]
        assert spent[group, -1].sum() == len(set().union(*mine))
    total = reference.path_totals(calls, chains.start, chains.end, chains.status == 0, STAGES)
    assert total.sum() == (chains.end - chains.start)[chains.status == 0].sum()
    assert (total >= 0).all()


def test_the_reference_goes_along_the_path_by_hand() -> None:
    calls = [(0, 1, 1, 4, 1, -1, -1, -1), (0, 1, 2, 6, 0, 1, 1, 1), (0, 8, 8, 10, 1, -1, -1, -1), (1, 10, 14, 18, 1, 1, 1, 18)]
    found = [(stage, segment, length) for stage, segment, length in reference.path_of(0, 20, calls)[::-1] if length]
    assert found[:6] == [(0, segment, 1) for segment in (0, 2, QUEUE, 4, 5, 6)]
    assert found[6:] == [(1, 0, 2), (1, ENGINE, 2), (1, RETRY, 4), (1, QUEUE, 1), (1, 4, 1), (1, 5, 2), (-1, 0, 2)]


@given(random_lives)
def test_most_live(lives: Any) -> None:
    chains = lives_of(lives)
    at_once = [sum(start <= second < end for start, end in zip(chains.start, chains.end, strict=True)) for second in range(61)]
    assert occupancy.most_live(chains) >= max(at_once)
    assert occupancy.most_live(chains) == max(at_once) or any(chains.start == chains.end)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"schedule": "lockstep"}, {"graph": "likelihood", "settings": ("candidates=3",)}])
def test_a_long_run_is_analysed_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    folder = solve(tmp_path, batch_size=5, **options).folder
    plain = analyse(folder)
    for module in (latency, occupancy):
        monkeypatch.setattr(module, "LONG", 0)
    found = analyse(folder)
    assert same(found.occupancy, plain.occupancy)
    assert found.critical_path == plain.critical_path


def test_without_a_place_for_its_cache_numba_compiles_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])

    def double(numbers: Any) -> None:
        numbers[0] *= 2

    numbers = np.array([21])
    sweep._compiled(double)(numbers)
    assert numbers.tolist() == [42]


@pytest.mark.slow
def test_a_short_run_waits_for_no_compiler(tmp_path: Path) -> None:
    folder = solve(tmp_path).folder
    code = f"import sys; from pathlib import Path; from pipeline.analysis.study import analyse; analyse(Path({str(folder)!r})); "
    done = subprocess.run([sys.executable, "-c", code + "assert 'numba' not in sys.modules"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
