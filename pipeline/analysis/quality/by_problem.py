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
REFLECTIVE = ("wait", "but", "hmm", "however", "alternatively", "actually", "maybe", "let me check", "double-check")
"""Words of second thoughts (SpecCoT A.1 names the first three and an ellipsis; the others are this project's)."""
TEXTS = r"""
WITH mine AS (SELECT problem, decision, step_text, len(step_token_ids) AS tokens, candidate_texts, candidate_tokens,
                     list_position(candidate_tokens, list_max(candidate_tokens)) AS longest
              FROM steps JOIN places USING (run, chain_id)),
drafts AS (SELECT problem, decision, unnest(candidate_texts) AS text, unnest(candidate_tokens) AS tokens FROM mine),
texts AS (SELECT decision AS kind, problem, step_text AS text, tokens FROM mine
          UNION ALL SELECT 'drafted', problem, text, tokens FROM drafts
          UNION ALL SELECT 'rejected', problem, text, tokens FROM drafts WHERE decision = 'fallback'
          UNION ALL SELECT 'longest', problem, candidate_texts[longest], candidate_tokens[longest] FROM mine WHERE longest IS NOT NULL)
SELECT kind, problem, count(*) AS count, sum(tokens) AS tokens, sum(len(regexp_extract_all(text, '[\pL\pN_]+'))) AS words,
       sum(len(regexp_extract_all(text, $reflective))) AS reflective
FROM texts GROUP BY kind, problem ORDER BY kind
"""
REWARDS = """
WITH texts AS (SELECT *, candidate_index IS NOT NULL AS draft FROM rewards JOIN places USING (run, chain_id) WHERE NOT isnan(reward)),
of_steps AS (SELECT problem, avg(reward) FILTER (draft) AS mean, sum(reward) FILTER (draft AND selected) AS picked,
                    sum(reward) FILTER (NOT draft AND decision = 'fallback') AS fallback,
                    count(*) FILTER (NOT draft AND decision = 'fallback') AS fallbacks
             FROM texts GROUP BY problem, run, chain_id, step_index)
SELECT problem, sum(mean) AS drafted, count(mean) AS steps, sum(picked) AS selected, sum(mean) FILTER (picked IS NOT NULL) AS selected_from,
       count(picked) AS selections, sum(fallback) AS fallback, sum(fallbacks) AS fallbacks
FROM of_steps GROUP BY problem ORDER BY problem
"""


class Texts(Struct, frozen=True):
    """Counts over the texts of one kind, by problem, over all its samples."""

    count: Array
    """Number of texts."""
    tokens: Array
    words: Array
    reflective: Array
    """Number of `REFLECTIVE` words."""


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


def place_chains(db: Query) -> None:
    """Make the tables `solved`, with a number for each problem that has a chain that finished or counts, in the order of their ids, and
    `places`, with the problem of each finished chain by `run` and `chain_id`."""
    db.execute(PLACES)


def read_texts(db: Query, problems: int) -> dict[str, Texts]:
    """Count the texts of the chains in `places`, by kind; see `place_chains`.

    A kind is the decision about a committed step, or one of: `drafted`, all candidates; `longest`, the longest candidate of
    each round (SCoT table 1); `rejected`, the candidates of rounds in which all were rejected.
    """
    rows = db.columns(TEXTS, reflective=rf"(?i)\b({'|'.join(REFLECTIVE)})\b")
    found = {}
    for kind in dict.fromkeys(rows["kind"].tolist()):
        mine = rows["kind"] == kind
        found[kind] = Texts(*(np.bincount(rows["problem"][mine], rows[name][mine], problems) for name in Texts.__struct_fields__))
    return found


def read_quality(db: Query, problems: int) -> Quality | None:
    """Sums of the rewards of the chains in `places`, see `place_chains`; None where there are no rewards."""
    model = db.scalar("SELECT string_agg(DISTINCT model, ', ' ORDER BY model) FROM rewards")
    if model is None:
        return None
    rows = {name: np.ma.filled(column, 0) for name, column in db.columns(REWARDS).items()}
    problem = rows.pop("problem").astype(int)
    return Quality(model=model, **{name: np.bincount(problem, column.astype(float), problems) for name, column in rows.items()})
