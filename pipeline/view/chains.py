"""The chains of a run as a list: what is asked for enters, the rows of one page leave, and of one chain its neighbours."""

from collections.abc import Sequence

from msgspec import Struct

from pipeline.store.query import Query
from pipeline.view.asked import EXCERPT, AskedRows, Found, find

VERDICTS = ("right", "wrong", "failed", "cancelled", "not graded", "simulated")
VERDICT = """
CASE WHEN stop_reason = 'error' THEN 'failed' WHEN stop_reason = 'cancelled' THEN 'cancelled' WHEN correct IS NULL THEN 'not graded'
     WHEN list_contains($made_up::VARCHAR[], run) THEN 'simulated' WHEN correct THEN 'right' ELSE 'wrong' END"""
"""The verdict on a chain. `$made_up` are the runs in which right and wrong say nothing (`RunState.made_up`)."""
ORDERS = {
    "input": ("input_row, sample_index", "order of input"),
    "rejected": ("fallback_steps DESC, input_row, sample_index", "most rejected"),
    "longest": ("thought_tokens DESC, input_row, sample_index", "longest thought"),
    "slowest": ("chain_time_s DESC, input_row, sample_index", "slowest"),
    "latest": ("end_unix_ns DESC, input_row, sample_index", "latest"),
}
"""The orders of the list, with what they are called."""
_FOUND = f"""
    SELECT *, {VERDICT} AS verdict FROM chains
    WHERE ($search = '' OR contains(lower(chain_id), lower($search)) OR contains(lower(answer), lower($search))
           OR input_row IN (SELECT input_row FROM problems WHERE contains(lower(problem), lower($search))))"""
_COUNTS = f"SELECT verdict, count(*) AS count FROM ({_FOUND}) GROUP BY verdict"
_PAGE = f"""
WITH page AS (
    SELECT * FROM ({_FOUND}) WHERE $verdict = '' OR verdict = $verdict ORDER BY {{order}} LIMIT $most OFFSET $skipped),
texts AS (SELECT input_row, left(problem, {EXCERPT}) AS problem FROM problems WHERE input_row IN (SELECT input_row FROM page))
SELECT chain_id, verdict, coalesce(texts.problem, '') AS problem, left(coalesce(answer, ''), {EXCERPT}) AS answer,
       left(coalesce(reference_answer, ''), {EXCERPT}) AS reference, steps, accepted_steps, fallback_steps, unverified_steps,
       thought_tokens, chain_time_s
FROM page LEFT JOIN texts USING (input_row) ORDER BY {{order}}"""
_NEIGHBOURS = f"""
WITH listed AS (
    SELECT chain_id, lag(chain_id) OVER asked AS before, lead(chain_id) OVER asked AS after, row_number() OVER asked AS place,
           count(*) OVER () AS count
    FROM ({_FOUND}) WHERE $verdict = '' OR verdict = $verdict WINDOW asked AS (ORDER BY {{order}}))
SELECT before, after, place, count FROM listed WHERE chain_id = $chain"""


class ListedChain(Struct, frozen=True):
    """A line of the list."""

    chain_id: str
    verdict: str
    problem: str
    """The beginning of the problem; empty where the run has not kept it."""
    answer: str
    reference: str
    steps: int
    accepted_steps: int
    fallback_steps: int
    unverified_steps: int
    thought_tokens: int
    chain_time_s: float


class Neighbours(Struct, frozen=True):
    """Where a chain is in the list."""

    before: str | None
    after: str | None
    place: int
    """From 1."""
    count: int


def chain_page(db: Query, asked: AskedRows, made_up: Sequence[str]) -> Found[ListedChain]:
    """The page of the list that is asked for, of a run."""
    page = _PAGE.format(order=ORDERS[asked.order][0])
    return find(db, asked, VERDICTS, ListedChain, _COUNTS, page, search=asked.search, made_up=made_up)


def neighbours(db: Query, asked: AskedRows, chain: str, made_up: Sequence[str]) -> Neighbours | None:
    """The chains before and after `chain` in the list; None where the list does not have it."""
    sql = _NEIGHBOURS.format(order=ORDERS[asked.order][0])
    found = db.rows(sql, Neighbours, search=asked.search, verdict=asked.verdict, chain=chain, made_up=made_up)
    return found[0] if found else None
