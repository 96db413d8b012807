"""The problems of a run as a list: what is asked for enters, the rows of one page leave, with how many there are by verdict, and of one
chain its neighbours."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, structs

from pipeline.store.query import Query, Row

PAGE = 50
"""Rows on a page."""
EXCERPT = 240
"""Characters of a problem, and of an answer, in the list."""
VERDICTS = ("right", "wrong", "failed", "cancelled", "not graded", "simulated")
ORDERS = {
    "input": ("input_row, sample_index", "in order of input"),
    "rejected": ("fallback_steps DESC, input_row, sample_index", "most rejected"),
    "longest": ("thought_tokens DESC, input_row, sample_index", "longest thought"),
    "slowest": ("chain_time_s DESC, input_row, sample_index", "slowest"),
    "latest": ("end_unix_ns DESC, input_row, sample_index", "latest"),
}
"""The orders of the list, with their names."""
VERDICT = """
    CASE WHEN stop_reason = 'error' THEN 'failed' WHEN stop_reason = 'cancelled' THEN 'cancelled' WHEN correct IS NULL THEN 'not graded'
         WHEN $made_up THEN 'simulated' WHEN correct THEN 'right' ELSE 'wrong' END AS verdict"""
"""A column of the chains; `$made_up`: right and wrong say nothing in this run (`RunState.made_up`)."""
_FOUND = f"""
    SELECT *, {VERDICT} FROM chains
    WHERE ($search = '' OR contains(lower(chain_id), lower($search)) OR contains(lower(answer), lower($search))
           OR input_row IN (SELECT input_row FROM problems WHERE contains(lower(problem), lower($search))))"""
_COUNTS = f"SELECT verdict, count(*) AS count FROM ({_FOUND}) GROUP BY verdict"
# The column `steps` is selected by a pattern: a query that has the name of a table as a word opens the table and checks its files.
_PAGE = f"""
WITH page AS (
    SELECT * FROM ({_FOUND}) WHERE $verdict = '' OR verdict = $verdict ORDER BY {{order}} LIMIT $most OFFSET $skipped),
texts AS (SELECT input_row, left(problem, {EXCERPT}) AS problem FROM problems WHERE input_row IN (SELECT input_row FROM page))
SELECT chain_id, verdict, coalesce(texts.problem, '') AS problem, left(coalesce(answer, ''), {EXCERPT}) AS answer,
       left(coalesce(reference_answer, ''), {EXCERPT}) AS reference, columns('^step.$'), accepted_steps, fallback_steps, unverified_steps,
       thought_tokens, chain_time_s
FROM page LEFT JOIN texts USING (input_row) ORDER BY {{order}}"""
_NEIGHBOURS = f"""
WITH listed AS (
    SELECT chain_id, lag(chain_id) OVER asked AS before, lead(chain_id) OVER asked AS after, row_number() OVER asked AS place,
           count(*) OVER () AS count
    FROM ({_FOUND}) WHERE $verdict = '' OR verdict = $verdict WINDOW asked AS (ORDER BY {{order}}))
SELECT before, after, place, count FROM listed WHERE chain_id = $chain"""
_WORTH = """
SELECT chain_id FROM (
    SELECT *, CASE WHEN stop_reason = 'error' THEN 0 WHEN NOT correct THEN 1 ELSE 2 END AS kind,
           row_number() OVER (PARTITION BY kind ORDER BY if(kind = 2, -chain_time_s, hash(chain_id)), chain_id) AS place FROM chains)
ORDER BY place > $most // 3, kind, place LIMIT $most"""


class AskedChains(Struct, frozen=True, kw_only=True):
    """Which chains are asked for, in which order; a verdict or an order that there is not is the default."""

    verdict: str = ""
    """Empty: all."""
    order: str = "input"
    search: str = ""
    """Part of the id, the answer or the problem, in any case."""
    page: int = 1

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "AskedChains":
        """What the parameters of a URL ask for."""
        verdict, order, page = given.get("verdict", ""), given.get("order", ""), given.get("page", "")
        return cls(
            verdict=verdict if verdict in VERDICTS else "",
            order=order if order in ORDERS else "input",
            search=given.get("search", "").strip(),
            page=max(1, int(page)) if page.isascii() and page.isdecimal() and len(page) < 10 else 1,
        )

    def params(self, **others: Any) -> dict[str, Any]:
        """The parameters of a URL that asks for the same, but for `others`; defaults and empty ones are left out."""
        default = structs.asdict(AskedChains())
        return {name: value for name, value in (structs.asdict(self) | others).items() if value and value != default.get(name)}


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


class FoundChains(Struct, frozen=True, kw_only=True):
    """One page of the list."""

    rows: list[ListedChain]
    counts: dict[str, int]
    """The rows that the search finds, by verdict."""
    count: int
    """Rows on all pages."""
    page: int
    pages: int
    skipped: int
    """Rows on the pages before."""


class Neighbours(Struct, frozen=True):
    """Where a chain is in the list."""

    before: str | None
    after: str | None
    place: int
    """From 1."""
    count: int


def chain_page(db: Query, asked: AskedChains, made_up: bool, size: int = PAGE) -> FoundChains:
    """The page of the list that is asked for, with `size` rows; the last one where there are fewer."""
    by_verdict = dict(db.stream(_COUNTS, search=asked.search, made_up=made_up))
    counts = {verdict: by_verdict[verdict] for verdict in VERDICTS if verdict in by_verdict}
    count = counts.get(asked.verdict, 0) if asked.verdict else sum(counts.values())
    pages = max(1, -(-count // size))
    number = min(asked.page, pages)
    skipped = size * (number - 1)
    rows = _ask(db, _PAGE, ListedChain, asked, made_up=made_up, most=size, skipped=skipped)
    return FoundChains(rows=rows, counts=counts, count=count, page=number, pages=pages, skipped=skipped)


def neighbours(db: Query, asked: AskedChains, chain: str, made_up: bool) -> Neighbours | None:
    """The chains before and after `chain` in the list; None where the list does not have it."""
    return next(iter(_ask(db, _NEIGHBOURS, Neighbours, asked, made_up=made_up, chain=chain)), None)


def _ask(db: Query, sql: str, kind: type[Row], asked: AskedChains, **params: Any) -> list[Row]:
    order, _ = ORDERS[asked.order]
    return db.rows(sql.format(order=order), kind, search=asked.search, verdict=asked.verdict, **params)


def worth_reading(db: Query, most: int) -> list[str]:
    """At most `most` chains to read in full: a third each of failed, wrong and the slowest other ones, more where some are fewer."""
    return [name for (name,) in db.stream(_WORTH, most=most)]
