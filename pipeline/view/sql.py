"""The SQL box: a user's query over locked runs enters, its first rows as text and a figure of them leave."""

from typing import Any

from msgspec import Struct

from pipeline.analysis.compare.cells import Table
from pipeline.analysis.compare.papers import printed
from pipeline.report.figures.result import result_figure
from pipeline.report.page import Figure
from pipeline.store.query import Query

MOST_ROWS = 1_000
"""Rows that are shown and drawn."""
MOST_CHARACTERS = 500
"""Characters of a cell that are shown."""
SECONDS = 20.0
"""Time after which a query is interrupted."""
EXAMPLES = {
    "decisions": """SELECT decision, count(*) AS steps, sum(len(step_token_ids)) AS tokens, avg(step_time_s) AS mean_s
FROM steps GROUP BY decision ORDER BY steps DESC""",
    "acceptance by step": """SELECT step_index, avg((decision = 'accepted')::INT) AS accepted
FROM steps WHERE verify_kind IS NOT NULL GROUP BY step_index ORDER BY step_index""",
    "stages": """SELECT stage, count(*) AS calls, sum(output_tokens) AS tokens, avg(e2e_latency_s) AS mean_s
FROM calls GROUP BY stage ORDER BY tokens DESC""",
    "accuracy by length": """SELECT thought_tokens // 256 * 256 AS tokens, avg(counted::INT) AS accuracy
FROM chains GROUP BY ALL ORDER BY ALL""",
    "runs": "SELECT run, graph, accuracy.value AS accuracy, kept_tokens_per_s, wall_time_s FROM runs ORDER BY run",
}
"""Queries to begin with."""


class SqlAnswer(Struct, frozen=True):
    """What a query found."""

    table: Table
    more: bool
    """Whether there are more rows than those of the table."""
    figure: Figure | None


def sql_answer(db: Query, sql: str, draw: str) -> SqlAnswer:
    """Answer a query, of runs that are locked; `draw`: `bars`, `lines` or `points`, empty for no figure.

    Raises `UsageError` where it is none, is wrong, or takes longer than `SECONDS`.
    """
    with db.errors_of_sql(sql), db.at_most(SECONDS):
        found = db.select(sql)
        rows, columns = found.limit(MOST_ROWS + 1).fetchall(), tuple(found.columns)
    more, rows = len(rows) > MOST_ROWS, rows[:MOST_ROWS]
    figure = result_figure(columns, rows, draw) if draw else None
    return SqlAnswer(Table("", columns, tuple(tuple(map(_cell, row)) for row in rows)), more, figure)


def _cell(value: Any) -> str:
    text = "" if value is None else printed(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} ... ({len(text):,} characters)"
