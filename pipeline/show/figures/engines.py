"""Figures of engines over time: an `Occupancy` enters, plotly figures and tables leave. Pure."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

from pipeline.analysis.arrays import Array
from pipeline.analysis.compare.cells import Table, plain, plain_percent
from pipeline.analysis.time.occupancy import Occupancy, Spent
from pipeline.show.figures.style import (
    BLUE,
    CYAN,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    PURPLE,
    RED,
    SAND,
    TEAL,
    drawn,
    stacked_rows,
)

SECONDS = "time since start (s)"
CAUSES = {
    "nothing_admitted": ("no chain in flight", LIGHT),
    "other_engine": ("all chains at the other engine", CYAN),
    "recovery": ("waiting for a retry", "#f0a8a2"),
    "orchestration": ("orchestrator", RED),
    "barrier": ("barrier (lockstep)", SAND),
    "tail": ("tail (too few chains left)", PURPLE),
}
"""A label and a colour for each cause of idleness (`occupancy.CAUSES`)."""


def requests(occupancy: Occupancy) -> go.Figure:
    """Requests at each engine and in its lane, stacked, and the live chains, over time."""
    middle, last = _middle(occupancy.edges_s), len(occupancy.engines) + 1
    figure = stacked_rows(last, 150 + 160 * last, spacing=0.05, hovermode="x unified")
    for row, (role, engine) in enumerate(occupancy.engines.items(), 1):
        for name, values, colour in (("running", engine.in_flight, BLUE), ("client queue", engine.waiting, ORANGE)):
            figure.add_trace(_area(name, middle, values, colour, row), row=row, col=1)
        figure.update_yaxes(title=f"{drawn(role)}:<br>requests", rangemode="tozero", row=row, col=1)
    live = go.Scatter(x=middle, y=occupancy.live, name="chains in flight", line={"color": GREY, "shape": "hvh"}, hovertemplate="%{y:.1f}")
    figure.add_trace(live, row=last, col=1)
    figure.update_yaxes(title="chains<br>in flight", rangemode="tozero", row=last, col=1)
    return figure.update_xaxes(range=[0, occupancy.span_s]).update_xaxes(title=SECONDS, row=last, col=1)


def causes(occupancy: Occupancy) -> go.Figure:
    """For every engine and shared device the share of each bin that it was busy, or idle for each cause; and the overlap."""
    middle, width = _middle(occupancy.edges_s), np.diff(occupancy.edges_s)
    places = _places(occupancy)
    last = len(places) + 1
    figure = stacked_rows(last, 130 + 120 * last, spacing=0.12 / last, barmode="stack", bargap=0, hovermode="x unified")
    shown: set[str] = set()

    def add(what: str, seconds: Array, colour: str, row: int) -> None:
        if row == last or np.any(seconds > 0):
            share = np.nan_to_num(np.divide(seconds, width, out=np.zeros(len(width)), where=width > 0))
            look = {"legendgroup": what, "showlegend": what not in shown, "marker": {"color": colour, "line": {"width": 0}}}
            figure.add_trace(go.Bar(x=middle, y=share, width=width, name=what, hovertemplate="%{y:.0%}", **look), row=row, col=1)
            shown.add(what)

    for row, (name, spent) in enumerate(places.items(), 1):
        add("busy", spent.busy_s, GREEN, row)
        for cause, (words, colour) in CAUSES.items():
            add(words, spent.idle_s.get(cause, np.zeros(1)), colour, row)
        figure.update_yaxes(title=drawn(name).replace(" ", "<br>", 1), row=row, col=1)
    add("two or more engines busy", occupancy.overlap, TEAL, last)
    figure.update_yaxes(title="overlap", row=last, col=1).update_yaxes(range=[0, 1], tickformat=".0%", nticks=3)
    return figure.update_xaxes(title=SECONDS, row=last, col=1)


def causes_table(occupancy: Occupancy) -> Table:
    """Seconds of each engine and shared device, busy and idle by cause."""
    places = _places(occupancy)

    def seconds(value: float) -> str:
        return f"{plain(value)} s ({plain_percent(value / occupancy.span_s if occupancy.span_s else None)})"

    rows = [("busy", *(seconds(spent.total_busy_s) for spent in places.values()))]
    for cause, (words, _) in CAUSES.items():
        idle = [spent.total_idle_s.get(cause, 0.0) for spent in places.values()]
        if any(idle):
            rows.append((f"idle: {words}", *map(seconds, idle)))
    overlap = f"{plain(occupancy.overlap_s)} s ({plain_percent(occupancy.overlap_share)}) two or more engines busy"
    return Table("Utilization and idle time, by cause", ("", *places), tuple(rows), f"Of {plain(occupancy.span_s)} s. {overlap}.")


def _places(occupancy: Occupancy) -> Mapping[str, Spent]:
    """Everything with its own row, by its name: engines, and devices that hold several."""
    devices = {f"device {name}": device for name, device in occupancy.devices.items() if len(device.roles) > 1}
    return {**occupancy.engines, **devices}


def _middle(edges: Array) -> Array:
    return np.asarray((edges[1:] + edges[:-1]) / 2)


def _area(name: str, x: Array, y: Array, colour: str, row: int) -> go.Scatter:
    """A part of the stacked areas of one row; its name is in the legend once."""
    look = {"legendgroup": name, "showlegend": row == 1, "stackgroup": f"{row}", "mode": "lines", "line": {"width": 0, "color": colour}}
    return go.Scatter(x=x, y=y, name=name, hovertemplate="%{y:.1f}", **look)
