"""Two runs side by side: both, open as one query, enter; how the chains that they share ended in each leaves, in pages."""

from collections.abc import Sequence

from msgspec import Struct

from pipeline.store.query import Query
from pipeline.view.asked import EXCERPT, AskedRows, Found, find
from pipeline.view.chains import VERDICT

GROUPS = {
    "both": "both right",
    "first": "only the first right",
    "second": "only the second right",
    "neither": "neither right",
    "ungraded": "not graded",
}
"""The verdicts on pairs of chains, by which of the two runs is right, in words."""
PAIR_ORDERS = {
    "input": ("input_row, sample_index", "order of input"),
    "time": ("first_s - second_s DESC, input_row, sample_index", "most time saved by the second"),
    "tokens": ("first_tokens - second_tokens DESC, input_row, sample_index", "most tokens saved by the second"),
    "rejected": ("first_rejected + second_rejected DESC, input_row, sample_index", "most rejected"),
}
"""The orders of the list, with what they are called."""
_PAIRS = f"""
WITH sides AS (SELECT *, {VERDICT} AS verdict, CASE WHEN verdict <> 'simulated' THEN counted END AS counts FROM chains),
pairs AS (
    SELECT chain_id, one.input_row AS input_row, one.sample_index AS sample_index, one.verdict AS first_verdict,
           other.verdict AS second_verdict, left(coalesce(one.answer, ''), {EXCERPT}) AS first_answer,
           left(coalesce(other.answer, ''), {EXCERPT}) AS second_answer, left(coalesce(one.reference_answer, ''), {EXCERPT}) AS reference,
           one.thought_tokens AS first_tokens, other.thought_tokens AS second_tokens, one.chain_time_s AS first_s,
           other.chain_time_s AS second_s, one.fallback_steps AS first_rejected, other.fallback_steps AS second_rejected,
           CASE WHEN one.counts IS NULL OR other.counts IS NULL THEN 'ungraded' WHEN one.counts AND other.counts THEN 'both'
                WHEN one.counts THEN 'first' WHEN other.counts THEN 'second' ELSE 'neither' END AS verdict
    FROM sides AS one JOIN sides AS other USING (chain_id) WHERE one.run = $first AND other.run = $second)"""
_COUNTS = f"{_PAIRS} SELECT verdict, count(*) AS count FROM pairs GROUP BY verdict"
_PAGE = f"""{_PAIRS}, page AS (
    SELECT * EXCLUDE (verdict) FROM pairs WHERE $verdict = '' OR verdict = $verdict ORDER BY {{order}} LIMIT $most OFFSET $skipped),
texts AS (
    SELECT input_row, left(problem, {EXCERPT}) AS problem FROM problems
    WHERE run = $first AND input_row IN (SELECT input_row FROM page))
SELECT page.* EXCLUDE (input_row, sample_index), coalesce(texts.problem, '') AS problem
FROM page LEFT JOIN texts USING (input_row) ORDER BY {{order}}"""


class ChainPair(Struct, frozen=True):
    """A chain of both runs."""

    chain_id: str
    first_verdict: str
    second_verdict: str
    first_answer: str
    second_answer: str
    reference: str
    first_tokens: int
    """Of the thought."""
    second_tokens: int
    first_s: float
    second_s: float
    first_rejected: int
    second_rejected: int
    problem: str


def pair_page(db: Query, asked: AskedRows, made_up: Sequence[str]) -> Found[ChainPair]:
    """The page of the list of the chains that both runs of `db` have."""
    first, second = db.names
    page = _PAGE.format(order=PAIR_ORDERS[asked.order][0])
    return find(db, asked, GROUPS, ChainPair, _COUNTS, page, first=first, second=second, made_up=made_up)
