"""Texts and rewards of steps by the problems that chains solved: runs enter, sums for each problem leave.

`place_chains` makes the tables that these queries, and others about the problems of runs, join with. `pipeline score RUN --prm FILE` writes
rewards; a run without them has no quality.
"""

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.store.query import Query

PLACES = """
CREATE TEMP TABLE solved AS
    SELECT problem_id, row_number() OVER (ORDER BY problem_id) - 1 AS problem
    FROM (SELECT DISTINCT problem_id FROM chains WHERE finished OR counted IS NOT NULL);
CREATE TEMP TABLE places AS SELECT run, chain_id, problem FROM chains JOIN solved USING (problem_id) WHERE finished;
"""
TEXTS = """
WITH mine AS (SELECT problem, decision, len(step_token_ids) AS tokens, candidate_tokens, list_max(candidate_tokens) AS longest
              FROM steps JOIN places USING (run, chain_id)),
texts AS (SELECT decision AS kind, problem, tokens FROM mine
          UNION ALL SELECT 'drafted', problem, unnest(candidate_tokens) FROM mine
          UNION ALL SELECT 'longest', problem, longest FROM mine WHERE longest IS NOT NULL)
SELECT kind, problem, count(*) AS count, sum(tokens) AS tokens FROM texts GROUP BY kind, problem ORDER BY kind
"""
REWARDS = """
WITH texts AS (SELECT *, candidate_index IS NOT NULL AS draft FROM rewards JOIN places USING (run, chain_id) WHERE NOT isnan(reward)),
of_steps AS (SELECT problem, avg(reward) FILTER (draft) AS mean, sum(reward) FILTER (draft AND selected) AS picked
             FROM texts GROUP BY problem, run, chain_id, step_index)
SELECT problem, sum(mean) AS drafted, count(mean) AS steps, sum(picked) AS selected, count(picked) AS selections
FROM of_steps GROUP BY problem ORDER BY problem
"""


class Texts(Struct, frozen=True):
    """Counts over the texts of one kind, by problem, over all its samples."""

    count: Array
    """Number of texts."""
    tokens: Array


class Quality(Struct, frozen=True, kw_only=True):
    """Sums of rewards, which are 0 to 1, over the steps of each problem; texts without a reward are left out."""

    drafted: Array
    """Sum over steps with candidates of the mean reward of the step's candidates."""
    steps: Array
    """Number of steps with candidates."""
    selected: Array
    """Sum over steps with a selected candidate of that candidate's reward."""
    selections: Array
    """Number of steps with a selected candidate."""


def place_chains(db: Query) -> None:
    """Make the tables `solved`, with a number for each problem that has a chain that finished or counts, in the order of their ids, and
    `places`, with the problem of each finished chain by `run` and `chain_id`."""
    db.execute(PLACES)


def read_texts(db: Query, problems: int) -> dict[str, Texts]:
    """Count the texts of the chains in `places`, by kind; see `place_chains`.

    A kind is the decision about a committed step, or one of: `drafted`, all candidates; `longest`, the longest candidate of each round
    (SCoT table 1).
    """
    rows = db.columns(TEXTS)
    found = {}
    for kind in dict.fromkeys(rows["kind"].tolist()):
        mine = rows["kind"] == kind
        found[kind] = Texts(*(np.bincount(rows["problem"][mine], rows[name][mine], problems) for name in Texts.__struct_fields__))
    return found


def read_quality(db: Query, problems: int) -> Quality | None:
    """Sums of the rewards of the chains in `places`, see `place_chains`; None where there are no rewards."""
    found = db.columns(REWARDS)
    if not len(found["problem"]):
        return None
    rows = {name: np.ma.filled(column, 0) for name, column in found.items()}
    problem = rows.pop("problem").astype(int)
    return Quality(**{name: np.bincount(problem, column.astype(float), problems) for name, column in rows.items()})
