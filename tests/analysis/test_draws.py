"""Draws of problems: the same whoever counts them and however they are cut, and none is likelier than another."""

import sys

import numpy as np
import pytest

from pipeline.analysis.quality import draws
from pipeline.analysis.quality.draws import counts


def test_the_numbers_are_those_of_splitmix64() -> None:
    mask = 2**64 - 1

    def output(state: int, place: int) -> int:
        z = state + place * 0x9E3779B97F4A7C15 & mask
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        return z ^ z >> 31

    assert output(0, 1) == 0xE220A8397B1DCDAF  # of the reference implementation, seed 0
    first = [0] * 5
    for place in (1, 2, 3):
        both = output(output(0, 1), place)
        for half in (both % 2**32, both >> 32)[: 5 - 2 * (place - 1)]:
            first[half * 5 >> 32] += 1
    assert counts(5, 0, 1).tolist() == [first]


@pytest.mark.parametrize("problems", [1, 2, 7, 1000])
def test_a_draw_has_as_many_problems_and_is_the_same_in_every_part(problems: int) -> None:
    whole = counts(problems, 0, 200)
    assert (whole.sum(axis=1, dtype=int) == problems).all()
    assert (np.concatenate([counts(problems, 0, 3), counts(problems, 3, 197)]) == whole).all()


def test_every_problem_is_as_likely_and_its_count_as_spread() -> None:
    found = counts(40, 0, 20_000).astype(float)
    assert found.mean(axis=0) == pytest.approx(np.ones(40), abs=0.04)  # 5 deviations of a mean
    assert found.var() == pytest.approx(1 - 1 / 40, rel=0.02)
    assert np.corrcoef(found[:-1].ravel(), found[1:].ravel())[0, 1] == pytest.approx(-0.0, abs=0.006)


def test_few_problems_are_drawn_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    assert counts(draws.COMPILED_FROM - 1, 0, 1).sum(dtype=int) == draws.COMPILED_FROM - 1


@pytest.mark.slow
def test_compiled_code_counts_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = [counts(problems, 5, 6) for problems in (1, 2, 49_999)]
    monkeypatch.setattr(draws, "COMPILED_FROM", 1)
    assert all((counts(len(each[0]), 5, 6) == each).all() for each in plain)
