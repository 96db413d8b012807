"""Occupancy agrees with a plain reference to the nanosecond; whatever the calls, everything adds up."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.analysis.time.walk import occupancy_sums
from tests.analysis import reference_analyses as reference
from tests.support.traces import ENGINES, calls_of, lives_of, random_calls, random_lives, rules_of, times

of_all_replicas = st.none() | st.tuples(times, times)


@given(random_calls, random_lives, st.integers(1, 7), st.booleans(), of_all_replicas)
def test_it_agrees_with_the_reference(rows: Any, lives: Any, bins: int, lockstep: bool, of_all: Any) -> None:
    chains, calls = lives_of(lives), calls_of(rows)
    rules = rules_of(bins, chains, lockstep=lockstep, of_all=of_all)
    found = occupancy_sums(rules, chains, calls)
    rows = [found.open[0], found.overlap, *found.open[1 : 1 + 2 * ENGINES], *found.spent.reshape(-1, bins)]
    assert np.array(rows).tolist() == reference.occupancy_sums(rules, chains, calls).tolist()


@given(random_calls, random_lives, st.integers(1, 7))
def test_every_nanosecond_counts_once(rows: Any, lives: Any, bins: int) -> None:
    chains, calls = lives_of(lives), calls_of(rows)
    rules = rules_of(bins, chains)
    spent = occupancy_sums(rules, chains, calls).spent
    for group, engines in enumerate(([0], [1], [2], [0, 1])):
        assert spent[group].sum(axis=0).tolist() == np.diff(rules.edges).tolist()
        mine = [set(range(s, e)) for engine, s, e in zip(calls.engine, calls.submit, calls.end, strict=True) if engine in engines]
        assert spent[group, 0].sum() == len(set().union(*mine))
