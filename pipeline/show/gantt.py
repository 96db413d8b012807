"""Every chain over time: an open run enters, a chart with a row for each chain leaves."""

from collections.abc import Sequence
from itertools import cycle

import numpy as np

from pipeline.analysis.time.work import OPEN
from pipeline.show.charts import SERIES
from pipeline.show.plot import Chart, ChartAxis, Mark, Panel
from pipeline.store.query import Query

MAX_SPANS = 40_000
"""Limit of the chains and calls in one chart, which takes half a megabyte of the page then."""
SHORTEST = 1e-3
"""Waiting of less than this share of the median chain's time is not drawn: it could not be seen, and every call has some."""
WAITING, QUEUED, FAILED, ALIVE = "client queue", "engine queue", "failed attempt", "between calls"
NOTE = (
    f"Waiting times below {SHORTEST:.1%} of a typical chain's time are not drawn. Point at a row to see its name, click to read the chain."
)
HEIGHT = 560
"""Greatest height of all rows together, in pixels."""
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


def chains_chart(db: Query, stages: Sequence[str], max_spans: int = MAX_SPANS) -> Chart:
    """Every chain that ended or, of more than can be drawn, an even sample: a row from its start to its end, in the order of the starts,
    with calls coloured by stage; `stages` gives the order of the colours.

    `db` has the tables of `time.work`. Of a chain that was resumed earlier calls are drawn, too.
    """
    [(ended, mean_calls)] = db.stream("SELECT count(*), coalesce(avg(calls), 0) FROM chains")
    db.execute(CHOSEN, most=max(1, int(max_spans / (1 + mean_calls))))
    names, spans = db.columns("SELECT chain_id FROM chosen ORDER BY row")["chain_id"].tolist(), db.columns(SPANS)
    count, rows = len(names), max(1, len(names))
    hues = {ALIVE: "row"} | dict(zip(stages, cycle(SERIES), strict=False)) | {WAITING: "light", QUEUED: "grey", FAILED: "red"}
    found, marks = dict.fromkeys(spans["kind"].tolist()), []
    for kind in [ALIVE, *(name for name in found if name not in hues), *(name for name in hues if name != ALIVE)]:
        if kind in found:
            row, start, end = (spans[name][spans["kind"] == kind] for name in ("row", "start", "end"))
            width, hue = float(np.clip(0.8 * HEIGHT / rows, 1, 12)), hues.get(kind, "grey")
            marks.append(Mark(kind="spans", name=kind, hue=hue, x=start, until=end, y=rows - 1 - row, width=width))
    y, height = ChartAxis(low=-0.5, high=rows - 0.5, at=(-1,)), int(np.clip(16 * rows, 80, HEIGHT))
    return Chart(
        title=f"All {count:,} chains that ended" if count == ended else f"{count:,} of {ended:,} chains, evenly spaced by start",
        x=ChartAxis(title="seconds since the start", high=float(spans["end"].max(initial=0)) or 1.0),
        panels=[Panel(y=y, marks=marks, height=height, rows=names)],
        note=NOTE,
    )
