"""The chains of a run as pages of a list: what is asked for enters, the rows of one page leave, and of one chain its neighbours."""

from collections.abc import Mapping

from msgspec import Struct

from pipeline.store.query import Query

PAGE = 50
"""Chains on a page."""
EXCERPT = 160
"""Characters of a problem, and of an answer, in the list."""
VERDICTS = ("right", "wrong", "failed", "cancelled", "not graded")
VERDICT = """
CASE WHEN stop_reason = 'error' THEN 'failed' WHEN stop_reason = 'cancelled' THEN 'cancelled' WHEN correct IS NULL THEN 'not graded'
     WHEN correct THEN 'right' ELSE 'wrong' END"""
ORDERS = {
    "input": "input_row, sample_index",
    "rejected": "fallback_steps DESC, input_row, sample_index",
    "longest": "thought_tokens DESC, input_row, sample_index",
    "slowest": "chain_time_s DESC, input_row, sample_index",
    "latest": "end_unix_ns DESC, input_row, sample_index",
}
"""The orders of the list by name."""
ORDER_WORDS = {
    "input": "order of input",
    "rejected": "most rejected",
    "longest": "longest thought",
    "slowest": "slowest",
    "latest": "latest",
}
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
    FROM ({_FOUND}) WHERE $verdict = '' OR verdict = $verdict OR chain_id = $chain WINDOW asked AS (ORDER BY {{order}}))
SELECT before, after, place, count FROM listed WHERE chain_id = $chain"""


def page_number(given: Mapping[str, str]) -> int:
    """The page that a URL asks for, from 1; 1 where it names none."""
    page = given.get("page", "")
    return max(1, int(page)) if page.isascii() and page.isdecimal() and len(page) < 10 else 1


class AskedChains(Struct, frozen=True, kw_only=True):
    """Which chains are asked for, in which order, from a URL; what is no verdict or order is the default."""

    verdict: str = ""
    """One of `VERDICTS`; empty: all."""
    order: str = "input"
    search: str = ""
    """Part of the id, the answer or the problem, in any case."""
    page: int = 1

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "AskedChains":
        """What the parameters of a URL ask for."""
        verdict, order = given.get("verdict", ""), given.get("order", "")
        return cls(
            verdict=verdict if verdict in VERDICTS else "",
            order=order if order in ORDERS else "input",
            search=given.get("search", "").strip(),
            page=page_number(given),
        )

    def params(self, **others: object) -> dict[str, object]:
        """The parameters of a URL that asks for the same, but for those given."""
        given = {"verdict": self.verdict, "order": "" if self.order == "input" else self.order, "search": self.search, "page": self.page}
        return {name: value for name, value in (given | others).items() if value and (name, value) != ("page", 1)}


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


class ChainPage(Struct, frozen=True):
    """One page of the list."""

    chains: list[ListedChain]
    counts: dict[str, int]
    """The chains that the search finds, by verdict."""
    count: int
    """Chains on all pages."""
    pages: int


class Neighbours(Struct, frozen=True):
    """Where a chain is in the list."""

    before: str | None
    after: str | None
    place: int
    """From 1."""
    count: int


class _Counted(Struct, frozen=True):
    verdict: str
    count: int


def chain_page(db: Query, asked: AskedChains) -> ChainPage:
    """The page of the list that is asked for; the last one where there are fewer."""
    found = {each.verdict: each.count for each in db.rows(_COUNTS, _Counted, search=asked.search)}
    counts = {verdict: found[verdict] for verdict in VERDICTS if verdict in found}
    count = counts.get(asked.verdict, 0) if asked.verdict else sum(counts.values())
    pages = max(1, -(-count // PAGE))
    skipped = PAGE * (min(asked.page, pages) - 1)
    sql = _PAGE.format(order=ORDERS[asked.order])
    rows = db.rows(sql, ListedChain, search=asked.search, verdict=asked.verdict, most=PAGE, skipped=skipped)
    return ChainPage(rows, counts, count, pages)


def neighbours(db: Query, asked: AskedChains, chain: str) -> Neighbours | None:
    """The chains before and after `chain` in the list; None where the list does not have it."""
    found = db.rows(_NEIGHBOURS.format(order=ORDERS[asked.order]), Neighbours, search=asked.search, verdict=asked.verdict, chain=chain)
    return found[0] if found else None
