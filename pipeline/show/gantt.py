"""Every chain over time: an open run enters; names, spans of time and a chart with a row for each chain leave."""

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.analysis.time.work import OPEN
from pipeline.show.charts import SERIES
from pipeline.show.plot import Chart, ChartAxis, Mark, Panel
from pipeline.store.query import Query

MAX_CHAINS = 4_000
MAX_CALLS = 40_000
"""Limits of one chart, which takes half a megabyte of the page then."""
CONSECUTIVE = 400
"""Number of chains in the second chart, which is drawn where the first one does not show all."""
SHORTEST = 1e-3
"""Waiting of less than this share of the median chain's time is not drawn: it could not be seen, and every call has some."""
WAITING, QUEUED, FAILED, ALIVE = "client queue", "engine queue", "failed attempt", "between calls"
NOTE = (
    f"Waiting times below {SHORTEST:.1%} of a typical chain's time are not drawn. Point at a row to see its name, click to read the chain."
)
HEIGHT = 560
"""Greatest height of all rows together, in pixels."""
COUNTS = "SELECT count(*) AS ended, coalesce(avg(calls), 0) AS mean_calls FROM chains"
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
    """The number of chains that ended, and the mean of their calls."""

    ended: int
    mean_calls: float


class KindSpans(Struct, frozen=True):
    """Spans of time of one kind, as columns of equal length."""

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


def chain_charts(db: Query, stages: Sequence[str]) -> list[Chart]:
    """The charts of `read_charts`, drawn."""
    charts = read_charts(db)
    shown = f"{len(charts[0].names):,}"
    titles = [f"All {shown} chains that ended"]
    if len(charts) > 1:
        titles = [f"{shown} chains, evenly spaced by start", f"{CONSECUTIVE:,} consecutive chains from the middle of the run"]
    return [draw_chains(chart, title, stages) for title, chart in zip(titles, charts, strict=True)]


def draw_chains(gantt: Gantt, title: str, stages: Sequence[str]) -> Chart:
    """Every chain from its start to its end, with calls coloured by stage; `stages` gives the order of the colours."""
    rows = max(1, len(gantt.names))
    width = float(np.clip(0.8 * HEIGHT / rows, 1, 12))
    hues = {ALIVE: "row"} | dict(zip(stages, cycle(SERIES), strict=False)) | {WAITING: "light", QUEUED: "grey", FAILED: "red"}
    kinds = [ALIVE, *(name for name in gantt.spans if name not in hues), *(name for name in hues if name != ALIVE)]
    marks = [
        Mark(kind="spans", name=kind, hue=hues.get(kind, "grey"), x=spans.start, until=spans.end, y=rows - 1 - spans.row, width=width)
        for kind in kinds
        if (spans := gantt.spans.get(kind)) is not None
    ]
    end = max((float(spans.end.max()) for spans in gantt.spans.values() if len(spans.end)), default=1.0)
    height = int(np.clip(16 * rows, 80, HEIGHT))
    panel = Panel(y=ChartAxis(low=-0.5, high=rows - 0.5, at=(-1,)), marks=marks, height=height, rows=gantt.names)
    return Chart(title=title, x=ChartAxis(title="seconds since the start", high=end), panels=[panel], note=NOTE)
