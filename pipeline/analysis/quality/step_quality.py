"""Rewards of drafted and selected steps by a process reward model: the rewards of runs enter, sums for each problem leave.

`pipeline score RUN --prm FILE` writes that table; a run without it has no quality.
"""

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.store.query import Query

SQL = """
WITH texts AS (SELECT *, candidate_index IS NOT NULL AS draft FROM rewards JOIN places USING (run, chain_id) WHERE NOT isnan(reward)),
of_steps AS (SELECT problem, avg(reward) FILTER (draft) AS mean, sum(reward) FILTER (draft AND selected) AS picked,
                    sum(reward) FILTER (NOT draft AND decision = 'fallback') AS fallback,
                    count(*) FILTER (NOT draft AND decision = 'fallback') AS fallbacks
             FROM texts GROUP BY problem, run, chain_id, step_index)
SELECT problem, sum(mean) AS drafted, count(mean) AS steps, sum(picked) AS selected, sum(mean) FILTER (picked IS NOT NULL) AS selected_from,
       count(picked) AS selections, sum(fallback) AS fallback, sum(fallbacks) AS fallbacks
FROM of_steps GROUP BY problem ORDER BY problem
"""


class Quality(Struct, frozen=True, kw_only=True):
    """Sums of rewards, which are 0 to 1, over the steps of each problem; texts without a reward are left out."""

    model: str
    """The reward model; several, separated by commas."""
    drafted: Array
    """Sum over steps with candidates of the mean reward of the step's candidates."""
    steps: Array
    """Number of steps with candidates."""
    selected: Array
    """Sum over steps with a selected candidate of that candidate's reward."""
    selected_from: Array
    """Sum over the same steps of the mean reward of all their candidates."""
    selections: Array
    """Number of steps with a selected candidate."""
    fallback: Array
    """Sum of the rewards of steps that the target wrote after rejecting all candidates."""
    fallbacks: Array
    """Number of such steps."""


def read_quality(db: Query, problems: int) -> Quality | None:
    """Sums of the rewards of the chains in `places`, see `places.place_chains`; None where there are no rewards."""
    model = db.scalar("SELECT string_agg(DISTINCT model, ', ' ORDER BY model) FROM rewards")
    if model is None:
        return None
    rows = {name: np.ma.filled(column, 0) for name, column in db.columns(SQL).items()}
    problem = rows.pop("problem").astype(int)
    return Quality(model=model, **{name: np.bincount(problem, column.astype(float), problems) for name, column in rows.items()})
