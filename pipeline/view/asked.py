"""Lists in pages: what a URL asks for enters, the rows of one page leave, with how many there are by verdict."""

from collections.abc import Collection, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct

from pipeline.store.query import Query

PAGE = 50
"""Rows on a page."""
EXCERPT = 160
"""Characters of a problem, and of an answer, in a list."""
Row = TypeVar("Row", bound=Struct)


class AskedRows(Struct, frozen=True, kw_only=True):
    """Which rows are asked for, in which order; what is no verdict or order of the list is the default."""

    verdict: str = ""
    """Empty: all."""
    order: str = "input"
    search: str = ""
    """Part of the id, the answer or the problem, in any case."""
    page: int = 1

    @classmethod
    def of(cls, given: Mapping[str, str], verdicts: Collection[str], orders: Collection[str]) -> "AskedRows":
        """What the parameters of a URL ask for, of a list with these verdicts and orders."""
        verdict, order, page = given.get("verdict", ""), given.get("order", ""), given.get("page", "")
        return cls(
            verdict=verdict if verdict in verdicts else "",
            order=order if order in orders else "input",
            search=given.get("search", "").strip(),
            page=max(1, int(page)) if page.isascii() and page.isdecimal() and len(page) < 10 else 1,
        )

    def params(self, **others: Any) -> dict[str, Any]:
        """The parameters of a URL that asks for the same, but for `others`."""
        given = {"verdict": self.verdict, "order": "" if self.order == "input" else self.order, "search": self.search, "page": self.page}
        return {name: value for name, value in (given | others).items() if value and (name, value) != ("page", 1)}


class Found(Struct, Generic[Row], frozen=True, kw_only=True):
    """One page of a list."""

    rows: list[Row]
    counts: dict[str, int]
    """The rows that the search finds, by verdict."""
    count: int
    """Rows on all pages."""
    page: int
    """From 1."""

    @property
    def pages(self) -> int:
        """The number of pages, at least 1."""
        return _pages(self.count)

    @property
    def first(self) -> int:
        """The number of the first row of the page, from 1."""
        return PAGE * (self.page - 1) + 1

    @property
    def last(self) -> int:
        """The number of its last row."""
        return PAGE * (self.page - 1) + len(self.rows)


class _Counted(Struct, frozen=True):
    verdict: str
    count: int


def find(db: Query, asked: AskedRows, verdicts: Collection[str], kind: type[Row], counts: str, page: str, **params: Any) -> Found[Row]:
    """The page of a list that is asked for; the last one where there are fewer.

    `counts` is the query of the rows by verdict, with `params`; `page` that of the rows, which are of this `kind`, with `params` and
    `$verdict`, `$most` and `$skipped`.
    """
    by_verdict = {each.verdict: each.count for each in db.rows(counts, _Counted, **params)}
    count = by_verdict.get(asked.verdict, 0) if asked.verdict else sum(by_verdict.values())
    number = min(asked.page, _pages(count))
    rows = db.rows(page, kind, verdict=asked.verdict, most=PAGE, skipped=PAGE * (number - 1), **params)
    ordered = {verdict: by_verdict[verdict] for verdict in verdicts if verdict in by_verdict}
    return Found(rows=rows, counts=ordered, count=count, page=number)


def _pages(count: int) -> int:
    return max(1, -(-count // PAGE))
