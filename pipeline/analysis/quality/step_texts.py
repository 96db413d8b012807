"""Counts of tokens and words in steps and drafts: the steps of runs enter, sums for each problem leave."""

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.store.query import Query

REFLECTIVE = ("wait", "but", "hmm", "however", "alternatively", "actually", "maybe", "let me check", "double-check")
"""Words of second thoughts (SpecCoT A.1 names the first three and an ellipsis; the others are this project's)."""
SQL = r"""
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


class Texts(Struct, frozen=True):
    """Counts over the texts of one kind, by problem, over all its samples."""

    count: Array
    """Number of texts."""
    tokens: Array
    words: Array
    reflective: Array
    """Number of `REFLECTIVE` words."""


def read_texts(db: Query, problems: int) -> dict[str, Texts]:
    """Count the texts of the chains in `places`, by kind; see `places.place_chains`.

    A kind is the decision about a committed step, or one of: `drafted`, all candidates; `longest`, the longest candidate of
    each round (SCoT table 1); `rejected`, the candidates of rounds in which all were rejected.
    """
    rows = db.columns(SQL, reflective=rf"(?i)\b({'|'.join(REFLECTIVE)})\b")
    found = {}
    for kind in dict.fromkeys(rows["kind"].tolist()):
        mine = rows["kind"] == kind
        found[kind] = Texts(*(np.bincount(rows["problem"][mine], rows[name][mine], problems) for name in Texts.__struct_fields__))
    return found
