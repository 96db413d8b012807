"""How good the expectation was by which a run put its chains in order: the chains of a run enter, a rank correlation leaves."""

from typing import Any, TypeAlias

import numpy as np

from pipeline.store.query import Query

Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"


def order_correlation(db: Query) -> float | None:
    """Spearman's correlation between expected and actual lengths of finished thoughts of a run.

    The mean over the sample numbers, as the first samples may have been put in order by another measure than the others, weighted by
    their chains. None where nothing was expected, or all lengths of every sample number are equal.
    """
    sql = """
    SELECT sample_index, expected_length AS expected, thought_tokens::DOUBLE AS actual
    FROM chains WHERE finished AND expected_length IS NOT NULL
    """
    found = db.columns(sql)
    samples = [found["sample_index"] == each for each in np.unique(found["sample_index"])]
    weighed = [(int(mine.sum()), spearman(found["expected"][mine], found["actual"][mine])) for mine in samples]
    known = [(count, value) for count, value in weighed if value is not None]
    return sum(count * value for count, value in known) / sum(count for count, _ in known) if known else None


def spearman(one: Floats, other: Floats) -> float | None:
    """The correlation of the ranks of two columns, equal values having their mean rank; None where a column has but one value."""
    ranks = [_ranks(values) for values in (one, other)]
    if any(np.ptp(each) == 0 for each in ranks):
        return None
    # From 2.4 on numpy types what it returns as a matrix or a number.
    return float(np.corrcoef(np.array(ranks))[0, 1])  # type: ignore[index, unused-ignore]


def _ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse])
