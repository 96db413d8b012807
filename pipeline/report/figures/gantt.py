"""Chains over time in a picture: stretches of time enter, a plotly figure leaves. Pure.

One row a chain, one trace for all stretches of one kind: lines with gaps, drawn by WebGL, so that tens of thousands of
them are zoomed at once.
"""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from pipeline.analysis.time.timeline import Array
from pipeline.report.figures.style import GREY, LIGHT, RED, axes, colours, drawn, layout
from pipeline.report.gantt import FAILED, QUEUED, WAITING, Gantt, Stretches

HEIGHT = 680
ROOM = HEIGHT - 130
"""Pixels of all rows together."""


def chains(gantt: Gantt, stages: Sequence[str]) -> go.Figure:
    """Every drawn chain from its first to its last moment, coloured by stage; `stages` gives their order and colours."""
    rows = max(1, len(gantt.names))
    width = line_width(rows)
    figure = go.Figure(layout=layout(HEIGHT, hovermode="closest", meta={"rows": rows, "room": ROOM}))
    figure.add_trace(_lines("between its calls", gantt.alive, "#eef0f3", width))
    palette = colours(stages) | {WAITING: LIGHT, QUEUED: GREY, FAILED: RED}
    for kind in (*(name for name in gantt.stretches if name not in palette), *palette):
        if kind in gantt.stretches:
            figure.add_trace(_lines(kind, gantt.stretches[kind], palette.get(kind, GREY), width))
    aliases = {str(lane): drawn(name) for lane, name in enumerate(gantt.names)}
    figure.update_xaxes(title="seconds since the run began")
    figure.update_yaxes(title="chain, in order of start", range=[rows - 0.5, -0.5], tickformat="d", labelalias=aliases, nticks=20)
    return axes(figure).update_yaxes(showgrid=False)


def line_width(rows: int) -> float:
    """Pixels of a line where so many rows are seen; the page's script says the same when it is zoomed."""
    return float(np.clip(0.8 * ROOM / rows, 1, 16))


def _lines(name: str, stretches: Stretches, colour: str, width: float) -> go.Scattergl:
    return go.Scattergl(
        x=_gapped(stretches.start, stretches.end),
        y=np.repeat(stretches.lane.astype(np.int16), 3),
        name=drawn(name),
        mode="lines",
        line={"color": colour, "width": width},
        hovertemplate="%{y}: " + drawn(name) + " at %{x:.4~f} s<extra></extra>",
    )


def _gapped(start: Array, end: Array) -> Array:
    """Start, end and a gap of each."""
    return np.column_stack([start, end, np.full(len(start), np.nan)]).ravel()
