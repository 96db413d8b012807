"""Every chain over time: an open run enters; names, spans of time and a chart with a row for each chain leave."""

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from msgspec import Struct

from pipeline.analysis.time.work import OPEN, Array
from pipeline.show.charts import SERIES
from pipeline.show.plot import Chart, ChartAxis, Mark, Panel
from pipeline.store.query import Query

MAX_CHAINS = 4_000
MAX_CALLS = 40_000
"""Limits of one chart, which takes half a megabyte of the page then."""
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
SELECT chain, chain_id, start, "end", row_number() OVER (ORDER BY chain) - 1 AS row
FROM (SELECT *, row_number() OVER (ORDER BY chain) - 1 AS place, count(*) OVER () AS n FROM lives WHERE status <> {OPEN})
WHERE place * $most % n < $most"""
"""At most `$most` chains, evenly spaced, in the order of their starts."""
SPANS = f"""
WITH mine AS (
    SELECT row, stage, ready, submit, timed."end", error_type IS NOT NULL AS failed,
           (SELECT {SHORTEST} * median("end" - start) FROM chosen) AS shortest,
           least(submit + (coalesce(queue_time_s, 0) * 1e9)::BIGINT, timed."end") AS begun
    FROM timed JOIN chosen USING (chain))
SELECT kind, row, start / 1e9 AS start, "end" / 1e9 AS "end" FROM (
    SELECT '{ALIVE}' AS kind, row, start, "end" FROM chosen
    UNION ALL SELECT '{WAITING}', row, ready, submit FROM mine WHERE submit - ready > shortest
    UNION ALL SELECT '{QUEUED}', row, submit, begun FROM mine WHERE begun - submit > shortest
    UNION ALL SELECT if(failed, '{FAILED}', stage), row, begun, "end" FROM mine)
ORDER BY kind, row, start"""


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
    """The chains of a chart, in the order of their starts."""

    names: Sequence[str]
    spans: Mapping[str, KindSpans]
    """By kind: `ALIVE` from admission to the end, a stage while its request was computed, or one of `WAITING`, `QUEUED`, `FAILED`."""
    ended: int = 0
    """Chains that ended, more than `names` where these are an even sample."""


def read_gantt(db: Query, *, max_chains: int = MAX_CHAINS, max_calls: int = MAX_CALLS) -> Gantt:
    """All chains that ended or, of more than can be drawn, an even sample.

    `db` has the tables of `time.work`. Of a chain that was resumed earlier calls are drawn, too.
    """
    found = db.row(COUNTS, ChainCounts)
    db.execute(CHOSEN, most=max(1, min(max_chains, int(max_calls / max(1.0, found.mean_calls)))))
    names, spans = db.columns("SELECT chain_id FROM chosen ORDER BY row")["chain_id"].tolist(), db.columns(SPANS)
    kinds = spans.pop("kind")
    by_kind = {kind: KindSpans(*(part[kinds == kind] for part in spans.values())) for kind in dict.fromkeys(kinds.tolist())}
    return Gantt(names, by_kind, found.ended)


def draw_chains(gantt: Gantt, stages: Sequence[str]) -> Chart:
    """Every chain from its start to its end, with calls coloured by stage; `stages` gives the order of the colours."""
    shown = len(gantt.names)
    title = f"All {shown:,} chains that ended" if shown == gantt.ended else f"{shown:,} of {gantt.ended:,} chains, evenly spaced by start"
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
