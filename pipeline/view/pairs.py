"""Two runs side by side: both, open as one query, enter; how the chains that they share ended in each leaves, in pages."""

from collections.abc import Mapping

from msgspec import Struct

from pipeline.store.query import Query
from pipeline.view.chains import EXCERPT, PAGE, VERDICT, page_number

GROUPS = {"both": "both right", "first": "only the first right", "second": "only the second right", "neither": "neither right"}
"""The chains by which of the two runs is right, in words."""
PAIR_ORDERS = {
    "input": ("input_row, sample_index", "order of input"),
    "time": ("first_s - second_s DESC, input_row, sample_index", "most time saved by the second"),
    "tokens": ("first_tokens - second_tokens DESC, input_row, sample_index", "most tokens saved by the second"),
    "rejected": ("first_rejected + second_rejected DESC, input_row, sample_index", "most rejected"),
}
"""The orders of the list, with what they are called."""
_PAIRS = f"""
WITH sides AS (SELECT *, {VERDICT} AS verdict FROM chains),
pairs AS (
    SELECT chain_id, one.input_row AS input_row, one.sample_index AS sample_index, one.verdict AS first_verdict,
           other.verdict AS second_verdict, left(coalesce(one.answer, ''), {EXCERPT}) AS first_answer,
           left(coalesce(other.answer, ''), {EXCERPT}) AS second_answer, left(coalesce(one.reference_answer, ''), {EXCERPT}) AS reference,
           one.thought_tokens AS first_tokens, other.thought_tokens AS second_tokens, one.chain_time_s AS first_s,
           other.chain_time_s AS second_s, one.fallback_steps AS first_rejected, other.fallback_steps AS second_rejected,
           CASE WHEN one.verdict = 'right' AND other.verdict = 'right' THEN 'both' WHEN one.verdict = 'right' THEN 'first'
                WHEN other.verdict = 'right' THEN 'second' ELSE 'neither' END AS which
    FROM sides AS one JOIN sides AS other USING (chain_id) WHERE one.run = $first AND other.run = $second)"""
_COUNTS = f"{_PAIRS} SELECT which, count(*) AS count FROM pairs GROUP BY which"
_PAGE = f"""{_PAIRS}, page AS (
    SELECT * EXCLUDE (which) FROM pairs WHERE $which = '' OR which = $which ORDER BY {{order}} LIMIT $most OFFSET $skipped),
texts AS (
    SELECT input_row, left(problem, {EXCERPT}) AS problem FROM problems
    WHERE run = $first AND input_row IN (SELECT input_row FROM page))
SELECT page.* EXCLUDE (input_row, sample_index), coalesce(texts.problem, '') AS problem
FROM page LEFT JOIN texts USING (input_row) ORDER BY {{order}}"""


class AskedPairs(Struct, frozen=True, kw_only=True):
    """Which pairs of chains are asked for, from a URL; what is no group or order is the default."""

    which: str = ""
    """One of `GROUPS`; empty: all."""
    order: str = "input"
    page: int = 1

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "AskedPairs":
        """What the parameters of a URL ask for."""
        which, order = given.get("which", ""), given.get("order", "")
        return cls(
            which=which if which in GROUPS else "",
            order=order if order in PAIR_ORDERS else "input",
            page=page_number(given),
        )

    def params(self, **others: object) -> dict[str, object]:
        """The parameters of a URL that asks for the same, but for those given."""
        given = {"which": self.which, "order": "" if self.order == "input" else self.order, "page": self.page}
        return {name: value for name, value in (given | others).items() if value and (name, value) != ("page", 1)}


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


class PairPage(Struct, frozen=True):
    """One page of the list."""

    pairs: list[ChainPair]
    counts: dict[str, int]
    """By `GROUPS`."""
    count: int
    """Pairs on all pages."""
    pages: int


class _CountedPairs(Struct, frozen=True):
    which: str
    count: int


def pair_page(db: Query, asked: AskedPairs) -> PairPage:
    """The page of the list of the chains that both runs of `db` have; the last one where there are fewer."""
    first, second = db.names
    found = {each.which: each.count for each in db.rows(_COUNTS, _CountedPairs, first=first, second=second)}
    count = found.get(asked.which, 0) if asked.which else sum(found.values())
    pages = max(1, -(-count // PAGE))
    sql, skipped = _PAGE.format(order=PAIR_ORDERS[asked.order][0]), PAGE * (min(asked.page, pages) - 1)
    rows = db.rows(sql, ChainPair, first=first, second=second, which=asked.which, most=PAGE, skipped=skipped)
    return PairPage(rows, {group: found.get(group, 0) for group in GROUPS}, count, pages)
