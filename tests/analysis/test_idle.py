"""Occupancy agrees with a plain reference to the nanosecond; whatever the calls, everything adds up."""

import itertools
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.analysis.time.idle import BY_ENGINE, occupancy_sums
from pipeline.analysis.time.spans import Spans, gaps, open_at, open_time, together, union, while_open
from pipeline.analysis.time.work import pieces
from tests.analysis import reference_analyses as reference
from tests.support.traces import ENGINES, calls_of, lives_of, random_calls, random_lives, rules_of, times

of_all_replicas = st.none() | st.tuples(times, times)


@given(random_calls, random_lives, st.integers(1, 7), st.booleans(), of_all_replicas, st.integers(1, 30))
def test_it_agrees_with_the_reference(rows: Any, lives: Any, bins: int, lockstep: bool, of_all: Any, most: int) -> None:
    chains, calls = lives_of(lives), calls_of(rows)
    rules = rules_of(bins, chains, lockstep=lockstep, of_all=of_all)
    assert occupancy_sums(rules, chains, calls, most).tolist() == reference.occupancy_sums(rules, chains, calls).tolist()
    assert sum(len(few.end) for _, few in pieces(chains, calls, most)) == len(calls.end)


@given(random_calls, random_lives, st.integers(1, 7))
def test_every_nanosecond_counts_once(rows: Any, lives: Any, bins: int) -> None:
    chains, calls = lives_of(lives), calls_of(rows)
    rules = rules_of(bins, chains)
    sums = occupancy_sums(rules, chains, calls)
    spent = sums[BY_ENGINE + 2 * ENGINES :].reshape(4, 7, -1)
    for group, engines in enumerate(([0], [1], [2], [0, 1])):
        assert spent[group].sum(axis=0).tolist() == np.diff(rules.edges).tolist()
        mine = [set(range(s, e)) for engine, s, e in zip(calls.engine, calls.submit, calls.end, strict=True) if engine in engines]
        assert spent[group, -1].sum() == len(set().union(*mine))


spans_ = st.lists(st.tuples(times, times), max_size=9).map(lambda rows: Spans(*np.array(rows, np.int64).reshape(-1, 2).T))


@given(spans_, spans_, st.integers(1, 3), st.integers(1, 7))
def test_spans_are_sets_of_instants(one: Spans, other: Spans, least: int, bins: int) -> None:
    def instants(spans: Spans) -> list[int]:
        return [instant for since, until in zip(*spans, strict=True) for instant in range(since, until)]

    both = union(one, other)
    assert instants(both) == sorted({*instants(one), *instants(other)})
    assert (both.since[1:] > both.until[:-1]).all()
    assert instants(gaps(both, 5, 50)) == sorted(set(range(5, 50)) - {*instants(both)})
    some = Spans(np.minimum(*one), np.maximum(*one))
    count = [instants(some).count(instant) for instant in range(61)]
    assert instants(while_open(some, least, 3)) == [instant for instant in range(61) if least <= count[instant] <= 3]
    assert open_at(some)[1].max(initial=0) == max(count)
    edges = np.rint(np.linspace(0, 60, bins + 1)).astype(np.int64)
    assert open_time(some, edges).tolist() == [sum(count[since:until]) for since, until in itertools.pairwise(edges)]
    assert together(one, other).length == one.length + other.length
