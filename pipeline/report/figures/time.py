"""Figures of engines over time: an `Occupancy` enters, plotly figures and a table of busy and idle time leave. Pure."""

from collections.abc import Iterator, Mapping

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pipeline.analysis.arrays import Array
from pipeline.analysis.compare.cells import Table, plain, plain_percent
from pipeline.analysis.time.occupancy import DeviceOccupancy, Occupancy
from pipeline.report.figures.style import BLUE, CYAN, GREEN, GREY, LIGHT, ORANGE, PURPLE, RED, SAND, TEAL, axes, drawn, layout

CAUSES = {
    "nothing_admitted": ("no chain in flight", LIGHT),
    "other_engine": ("all chains at the other engine", CYAN),
    "recovery": ("waiting for a retry", "#f0a8a2"),
    "orchestration": ("orchestrator", RED),
    "barrier": ("barrier (lockstep)", SAND),
    "tail": ("tail (too few chains left)", PURPLE),
}
"""A label and a colour for each cause of idleness (`occupancy.CAUSES`)."""
BUSY = GREEN


def requests(occupancy: Occupancy) -> go.Figure:
    """Requests at each engine and in its lane, stacked, and the live chains, over time."""
    middle = _middle(occupancy.edges_s)
    roles = list(occupancy.engines)
    figure = make_subplots(rows=len(roles) + 1, shared_xaxes=True, vertical_spacing=0.05)
    figure.update_layout(layout(150 + 160 * (len(roles) + 1), hovermode="x unified"))
    for row, role in enumerate(roles, 1):
        engine = occupancy.engines[role]
        for name, values, colour in (("running", engine.in_flight, BLUE), ("client queue", engine.waiting, ORANGE)):
            figure.add_trace(_area(name, middle, values, colour, f"{row}", row == 1), row=row, col=1)
        figure.update_yaxes(title=f"{drawn(role)}:<br>requests", rangemode="tozero", row=row, col=1)
    live = go.Scatter(x=middle, y=occupancy.live, name="chains in flight", line={"color": GREY, "shape": "hvh"}, hovertemplate="%{y:.1f}")
    figure.add_trace(live, row=len(roles) + 1, col=1)
    figure.update_yaxes(title="chains<br>in flight", rangemode="tozero", row=len(roles) + 1, col=1)
    figure.update_xaxes(range=[0, occupancy.span_s])
    figure.update_xaxes(title="time since start (s)", row=len(roles) + 1, col=1)
    return axes(figure)


def causes(occupancy: Occupancy) -> go.Figure:
    """For every engine and shared device the share of each bin that it was busy, or idle for each cause; and the overlap."""
    middle, width = _middle(occupancy.edges_s), np.diff(occupancy.edges_s)
    places = list(_places(occupancy))
    rows = len(places) + 1
    figure = make_subplots(rows=rows, shared_xaxes=True, vertical_spacing=0.12 / rows)
    figure.update_layout(layout(130 + 120 * rows, barmode="stack", bargap=0, hovermode="x unified"))
    shown: set[str] = set()
    for row, (name, busy, idle) in enumerate(places, 1):
        parts = [("busy", busy, BUSY), *((CAUSES[cause][0], idle[cause], CAUSES[cause][1]) for cause in CAUSES if cause in idle)]
        for what, seconds, colour in parts:
            if np.any(seconds > 0):
                figure.add_trace(_share(what, middle, seconds, width, colour, what not in shown), row=row, col=1)
                shown.add(what)
        figure.update_yaxes(title=drawn(name).replace(" ", "<br>", 1), row=row, col=1)
    figure.add_trace(_share("two or more engines busy", middle, occupancy.overlap, width, TEAL, True), row=rows, col=1)
    figure.update_yaxes(title="overlap", row=rows, col=1)
    figure.update_yaxes(range=[0, 1], tickformat=".0%", nticks=3)
    figure.update_xaxes(title="time since start (s)", row=rows, col=1)
    return axes(figure)


def causes_table(occupancy: Occupancy) -> Table:
    """Seconds of each engine and shared device, busy and idle by cause."""
    columns = {role: (each.total_busy_s, each.total_idle_s) for role, each in occupancy.engines.items()}
    columns |= {f"device {name}": (each.total_busy_s, each.total_idle_s) for name, each in _shared(occupancy).items()}
    rows = [("busy", *(_seconds(busy, occupancy.span_s) for busy, _ in columns.values()))]
    for cause, (words, _) in CAUSES.items():
        if any(idle.get(cause) for _, idle in columns.values()):
            rows.append((f"idle: {words}", *(_seconds(idle.get(cause, 0.0), occupancy.span_s) for _, idle in columns.values())))
    overlap = f"{plain(occupancy.overlap_s)} s ({plain_percent(occupancy.overlap_share)}) two or more engines busy"
    return Table("Utilization and idle time, by cause", ("", *columns), tuple(rows), f"Of {plain(occupancy.span_s)} s. {overlap}.")


def _places(occupancy: Occupancy) -> Iterator[tuple[str, Array, Mapping[str, Array]]]:
    """Name, busy and idle seconds of everything with its own row: engines and shared devices."""
    for role, engine in occupancy.engines.items():
        yield role, engine.busy_s, engine.idle_s
    for name, device in _shared(occupancy).items():
        yield f"device {name}", device.busy_s, device.idle_s


def _shared(occupancy: Occupancy) -> dict[str, DeviceOccupancy]:
    """Devices that hold several engines."""
    return {name: device for name, device in occupancy.devices.items() if len(device.roles) > 1}


def _seconds(value: float, span: float) -> str:
    return f"{plain(value)} s ({plain_percent(value / span if span else None)})"


def _middle(edges: Array) -> Array:
    return np.asarray((edges[1:] + edges[:-1]) / 2)


def _area(name: str, x: Array, y: Array, colour: str, group: str, legend: bool) -> go.Scatter:
    return go.Scatter(
        x=x,
        y=y,
        name=name,
        legendgroup=name,
        showlegend=legend,
        stackgroup=group,
        mode="lines",
        line={"width": 0, "color": colour},
        hovertemplate="%{y:.1f}",
    )


def _share(name: str, x: Array, seconds: Array, width: Array, colour: str, legend: bool) -> go.Bar:
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.nan_to_num(seconds / width)
    return go.Bar(
        x=x,
        y=share,
        width=width,
        name=name,
        legendgroup=name,
        showlegend=legend,
        marker={"color": colour, "line": {"width": 0}},
        hovertemplate="%{y:.0%}",
    )
