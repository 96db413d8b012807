"""Which chains of a run are shown, and their calls over time: an open run enters; names, spans of time and a Gantt chart leave.

Each chain has a row of the chart, and all spans of one kind are one plotly trace: lines with gaps, drawn by WebGL, so that tens of
thousands of them can be zoomed.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.analysis.time.work import OPEN
from pipeline.show.figures.style import GREY, LIGHT, RED, axes, colours, drawn, layout
from pipeline.store.query import Query

MAX_CHAINS = 4_000
MAX_CALLS = 40_000
"""Limits of one chart: a browser without a GPU draws these within seconds, and they are about 4 MB of the page."""
CONSECUTIVE = 400
"""Number of chains in the second chart, which is drawn where the first one does not show all."""
SHORTEST = 1e-3
"""Waiting of less than this share of the median chain's time is not drawn: it could not be seen, and every call has some."""
WAITING, QUEUED, FAILED, ALIVE = "client queue", "engine queue", "failed attempt", "between calls"
HEIGHT = 680
ROOM = HEIGHT - 130
"""Height of all rows together, in pixels."""
COUNTS = """
SELECT count(*) AS ended, count(*) FILTER (stop_reason = 'error') AS failed, count(*) FILTER (stop_reason = 'cancelled') AS cancelled,
       count(*) FILTER (NOT correct) AS wrong, coalesce(avg(calls), 0) AS mean_calls
FROM chains"""
EVENLY = "(row_number() OVER (ORDER BY start_unix_ns, chain_id) - 1) * $most % count(*) OVER () < $most"
"""True of at most `$most` rows, evenly spaced by the start of their chains."""
WORTH_READING = {
    "failed": f"SELECT chain_id FROM chains WHERE stop_reason = 'error' QUALIFY {EVENLY} ORDER BY start_unix_ns, chain_id",
    "wrong": f"SELECT chain_id FROM chains WHERE NOT correct QUALIFY {EVENLY} ORDER BY start_unix_ns, chain_id",
    "slowest": "SELECT chain_id FROM chains WHERE finished ORDER BY chain_time_s DESC, start_unix_ns, chain_id LIMIT $most",
}
"""The chains that there is a reason to read, by the reason."""
CHOSEN = f"""
CREATE OR REPLACE TEMP TABLE chosen AS
WITH ended AS (SELECT *, row_number() OVER (ORDER BY chain) - 1 AS place, count(*) OVER () AS n FROM lives WHERE status <> {OPEN}),
middle AS (SELECT greatest(0, (max(n) - {CONSECUTIVE}) // 2) AS place FROM ended),
drawn AS (
    SELECT 0 AS chart, ended.* FROM ended WHERE place * $most % n < $most
    UNION ALL
    SELECT 1, ended.* FROM ended, middle WHERE $most < n AND ended.place BETWEEN middle.place AND middle.place + {CONSECUTIVE} - 1)
SELECT chart, chain, chain_id, start, "end", row_number() OVER (PARTITION BY chart ORDER BY chain) - 1 AS row FROM drawn"""
"""The chains of the two charts, in the order of their starts: evenly spaced ones, and, where these are not all, consecutive ones."""
SPANS = f"""
WITH least AS (SELECT chart, {SHORTEST} * median("end" - start) AS shortest FROM chosen GROUP BY chart),
mine AS (
    SELECT chart, row, stage, ready, submit, timed."end", error_type IS NOT NULL AS failed, shortest,
           least(submit + (coalesce(queue_time_s, 0) * 1e9)::BIGINT, timed."end") AS begun
    FROM timed JOIN chosen USING (chain) JOIN least USING (chart))
SELECT chart, kind, row, start / 1e9 AS start, "end" / 1e9 AS "end" FROM (
    SELECT chart, '{ALIVE}' AS kind, row, start, "end" FROM chosen
    UNION ALL SELECT chart, '{WAITING}', row, ready, submit FROM mine WHERE submit - ready > shortest
    UNION ALL SELECT chart, '{QUEUED}', row, submit, begun FROM mine WHERE begun - submit > shortest
    UNION ALL SELECT chart, if(failed, '{FAILED}', stage), row, begun, "end" FROM mine)
ORDER BY chart, kind, row, start"""


class ChainCounts(Struct, frozen=True):
    """The number of chains that ended, and how."""

    ended: int
    failed: int
    cancelled: int
    wrong: int
    mean_calls: float


class KindSpans(Struct, frozen=True):
    """KindSpans of time of one kind, as columns of equal length."""

    row: Array
    """Index of the drawn chain."""
    start: Array
    """Seconds of work since the start of the run; `end` likewise."""
    end: Array


class Gantt(Struct, frozen=True):
    """The chains of one chart, in the order of their starts."""

    names: Sequence[str]
    spans: Mapping[str, KindSpans]
    """By kind: `ALIVE` from admission to the end, a stage while its request was computed, or one of `WAITING`, `QUEUED`, `FAILED`."""


def read_charts(db: Query, *, max_chains: int = MAX_CHAINS, max_calls: int = MAX_CALLS) -> list[Gantt]:
    """One chart with all chains that ended or, of more than can be drawn, one of an even sample and one of `CONSECUTIVE` ones.

    `db` has the tables of `time.work`. Of a chain that was resumed earlier calls are drawn, too.
    """
    found = db.row(COUNTS, ChainCounts)
    most = max(1, min(max_chains, int(max_calls / max(1.0, found.mean_calls))))
    db.execute(CHOSEN, most=most)
    names, spans = db.columns("SELECT chart, chain_id FROM chosen ORDER BY chart, row"), db.columns(SPANS)
    charts = []
    for chart in range(1 if found.ended <= most else 2):
        mine = spans["chart"] == chart
        kinds, parts = spans["kind"][mine], [spans[name][mine] for name in KindSpans.__struct_fields__]
        by_kind = {kind: KindSpans(*(part[kinds == kind] for part in parts)) for kind in dict.fromkeys(kinds.tolist())}
        charts.append(Gantt(names["chain_id"][names["chart"] == chart].tolist(), by_kind))
    return charts


def worth_reading(db: Query, most: int) -> dict[str, tuple[str, ...]]:
    """At most `most` chains to read in full, and the reasons for each of them: `failed`, `wrong`, `slowest`.

    Each reason may take a third, and what earlier reasons leave. Failed and wrong ones are evenly spaced over the run.
    """
    found: dict[str, tuple[str, ...]] = {}
    for number, (reason, sql) in enumerate(WORTH_READING.items(), 1):
        limit = most * number // len(WORTH_READING)
        for (name,) in list(db.stream(sql, most=most if reason == "slowest" else limit - len(found))):
            if len(found) >= limit and name not in found:
                break
            found[name] = (*found.get(name, ()), reason)
    return found


def draw_chains(gantt: Gantt, stages: Sequence[str]) -> go.Figure:
    """Draw every chain from its start to its end, with calls coloured by stage; `stages` gives the order of the colours."""
    rows = max(1, len(gantt.names))
    figure = go.Figure(layout=layout(HEIGHT, hovermode="closest", meta={"rows": rows, "room": ROOM}))
    palette = {ALIVE: "#eef0f3"} | colours(stages) | {WAITING: LIGHT, QUEUED: GREY, FAILED: RED}
    for kind in (ALIVE, *(name for name in gantt.spans if name not in palette), *(name for name in palette if name != ALIVE)):
        if kind in gantt.spans:
            figure.add_trace(_lines(kind, gantt.spans[kind], palette.get(kind, GREY), line_width(rows)))
    aliases = {str(row): drawn(name) for row, name in enumerate(gantt.names)}
    figure.update_xaxes(title="time since start (s)")
    figure.update_yaxes(title="chain, in order of start", range=[rows - 0.5, -0.5], tickformat="d", labelalias=aliases, nticks=20)
    return axes(figure).update_yaxes(showgrid=False)


def line_width(rows: int) -> float:
    """Width of a line in pixels when `rows` rows are visible; `page.js` computes the same after zooming."""
    return float(np.clip(0.8 * ROOM / rows, 1, 16))


def _lines(name: str, spans: KindSpans, colour: str, width: float) -> go.Scattergl:
    gaps = np.full(len(spans.row), np.nan)  # plotly leaves a gap at each NaN
    return go.Scattergl(
        x=np.column_stack([spans.start, spans.end, gaps]).ravel(),
        y=np.repeat(spans.row.astype(np.int16), 3),
        name=drawn(name),
        mode="lines",
        line={"color": colour, "width": width},
        hovertemplate="%{y}: " + drawn(name) + " at %{x:.4~f} s<extra></extra>",
    )
