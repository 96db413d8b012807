"""The rank correlation of what was expected with what came."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.analysis.order import order_correlation, spearman
from pipeline.analysis.summary import summarize
from pipeline.store.query import Query
from tests.support.traces import chain, write

pytestmark = pytest.mark.slow  # whole runs

columns = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=30)


@pytest.fixture(scope="module")
def reference() -> Any:
    from scipy.stats import spearmanr  # most of a second, in every worker that collects this file

    return spearmanr


@given(pairs=columns)
def test_it_is_that_of_spearman_with_ties(reference: Any, pairs: list[tuple[int, int]]) -> None:
    one, other = np.array(pairs, float).T
    found = spearman(one, other)
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        assert found is None
    else:
        assert found == pytest.approx(reference(one, other).statistic)


def test_sample_numbers_are_weighed_by_their_chains_and_unfinished_ones_left_out(tmp_path: Path) -> None:
    lengths = [(0, 1, 10), (0, 2, 20), (0, 3, 30), (0, 4, 40), (1, 90, 20), (1, 80, 30)]
    chains = [
        chain(f"{place}", 0, 1, sample_index=sample, expected_length=float(expected), thought_tokens=tokens)
        for place, (sample, expected, tokens) in enumerate(lengths)
    ]
    chains.append(chain("cut", 0, 1, expected_length=5.0, thought_tokens=1, stop_reason="cancelled"))
    run = write(tmp_path, chains=chains, card={"order": "longest", "admission": "cache"})
    assert summarize(run).order_correlation == pytest.approx((4 * 1 + 2 * -1) / 6)


def test_the_order_of_the_input_expects_nothing(tmp_path: Path) -> None:
    with Query(write(tmp_path, chains=[chain("a", 0, 1, thought_tokens=3)])) as db:
        assert order_correlation(db) is None
