"""Figures of engines and replicas over time: an `Occupancy` or `ReplicaFigures` enter, plotly figures and tables leave. Pure.

Of many replicas the table and the throughput show the slowest and the fastest ones, by the tokens that they sampled in a second.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from pipeline.analysis.arrays import Array
from pipeline.analysis.compare.cells import Table, plain, plain_percent
from pipeline.analysis.time.occupancy import Occupancy, ReplicaFigures, Spent
from pipeline.report.figures.style import (
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
    axes,
    colours,
    drawn,
    layout,
    stacked_bars,
    stacked_rows,
)

SECONDS = "time since start (s)"
CAUSES = {
    "nothing_admitted": ("no chain in flight", "no chain", LIGHT),
    "other_engine": ("all chains at the other engine", "other engine", CYAN),
    "recovery": ("waiting for a retry", "retry", "#f0a8a2"),
    "orchestration": ("orchestrator", "orchestrator", RED),
    "barrier": ("barrier (lockstep)", "barrier", SAND),
    "tail": ("tail (too few chains left)", "tail", PURPLE),
}
"""A label, a short one and a colour for each cause of idleness (`occupancy.CAUSES`)."""
ENDS = 10
"""How many of the slowest and of the fastest replicas are shown where there are more than both together."""
MAX_NODE = 16
"""Characters of a node's id that are shown: clusters give ids of dozens of characters."""
MAX_CELLS = 60_000
"""The most cells of the figure of chains in flight, which has a row for every replica."""
SCALE = [[0.0, "rgba(53, 115, 185, 0)"], [1.0, BLUE]]
"""No chain in flight has no colour, so that the figure suits a light and a dark page."""


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
        for cause, (words, _, colour) in CAUSES.items():
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
    for cause, (words, *_) in CAUSES.items():
        idle = [spent.total_idle_s.get(cause, 0.0) for spent in places.values()]
        if any(idle):
            rows.append((f"idle: {words}", *map(seconds, idle)))
    overlap = f"{plain(occupancy.overlap_s)} s ({plain_percent(occupancy.overlap_share)}) two or more engines busy"
    return Table("Utilization and idle time, by cause", ("", *places), tuple(rows), f"Of {plain(occupancy.span_s)} s. {overlap}.")


def shown(replicas: Sequence[ReplicaFigures]) -> list[ReplicaFigures]:
    """All replicas by their numbers or, of many, the slowest and then the fastest ones, from slow to fast."""
    if len(replicas) <= 2 * ENDS:
        return list(replicas)
    ordered = sorted(replicas, key=lambda each: (each.output_tokens_per_s, each.replica))
    return [*ordered[:ENDS], *ordered[-ENDS:]]


def which(replicas: Sequence[ReplicaFigures]) -> str:
    """What `shown` leaves out, as a sentence; empty if nothing."""
    if len(replicas) <= 2 * ENDS:
        return ""
    return f"Of {len(replicas):,} replicas the {ENDS} slowest and the {ENDS} fastest, by generated tokens/s, slowest first."


def replicas_table(replicas: Sequence[ReplicaFigures]) -> Table:
    """A row for each replica that is `shown`."""
    idle = {cause: short for cause, (_, short, _) in CAUSES.items() if any(each.idle_share[cause] > 0 for each in replicas)}
    head = ("replica", "place", "chains", "problems/s", "generated tokens/s", "busy")
    columns = (*head, *(f"idle: {words}" for words in idle.values()), "own tail", "starts", "losses")
    rows = [
        (
            str(each.replica),
            ", ".join(node if len(node) <= MAX_NODE else f"{node[: MAX_NODE - 1]}\u2026" for node in each.nodes) or "-",
            f"{each.chains:,}",
            plain(each.problems_per_s),
            plain(each.output_tokens_per_s),
            plain_percent(each.busy_share),
            *(plain_percent(each.idle_share[cause]) for cause in idle),
            f"{plain(each.tail_s)} s",
            str(each.starts),
            str(len(each.losses)),
        )
        for each in shown(replicas)
    ]
    note = (
        "Busy and idle are shares of the run, means of the replica's engines. Own tail: from the end of its last chain to that of the run."
    )
    return Table("Replicas", columns, tuple(rows), " ".join(filter(None, [which(replicas), note])))


def losses_table(replicas: Sequence[ReplicaFigures]) -> Table | None:
    """A row for each replica that was lost, of all replicas; None where none was."""
    rows = []
    for each in replicas:
        if each.losses:
            why = "; ".join(why if count == 1 else f"{why} ({count} times)" for why, count in Counter(each.losses).most_common())
            rows.append((str(each.replica), why, "dropped" if each.dropped else "started again"))
    return Table("Lost replicas", ("replica", "why", "then"), tuple(rows)) if rows else None


def throughput(replicas: Sequence[ReplicaFigures]) -> go.Figure:
    """Tokens a second of each replica that is `shown`, by the role that sampled them."""
    rows = shown(replicas)
    about = [[plain(each.problems_per_s), each.chains, drawn(", ".join(each.nodes))] for each in rows]
    parts = [
        (drawn(role), [each.engines[role].output_tokens_per_s or 0.0 for each in rows], colour, about)
        for role, colour in colours(list(rows[0].engines) if rows else []).items()
    ]
    said = "%{y}: %{x:,.0f} generated tokens/s<br>%{customdata[0]} problems/s, %{customdata[1]} chains<br>%{customdata[2]}"
    figure = go.Figure(layout=layout(110 + 24 * len(rows), bargap=0.25))
    stacked_bars(figure, [f"replica {each.replica}" for each in rows], parts, said).update_yaxes(type="category", dtick=1)
    return figure.update_xaxes(title="generated tokens/s", rangemode="tozero")


def chains_in_flight(occupancy: Occupancy, tail_s: float | None, over_s: float) -> go.Figure:
    """Chains in flight on every replica over time, a row each; `tail_s` before `over_s`, the end of the last chain, the tail began."""
    numbers = list(occupancy.replicas)
    live = np.array([each.live for each in occupancy.replicas.values()])
    edges, joined = occupancy.edges_s, max(1, -(-live.size // MAX_CELLS))
    starts, width = np.arange(0, live.shape[1], joined), np.diff(edges)
    mean = np.add.reduceat(live * width, starts, axis=1) / np.maximum(np.add.reduceat(width, starts), 1e-12)
    few = len(numbers) <= 2 * ENDS
    figure = go.Figure(layout=layout(min(170 + 26 * len(numbers), 640), margin={"l": 70, "r": 44, "t": 10, "b": 50}))
    bar = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left", "len": 0.4, "thickness": 10}
    figure.add_heatmap(
        x=[*edges[starts].tolist(), float(edges[-1])],
        y=numbers,
        z=mean.round(2),
        colorscale=SCALE,
        zmin=0,
        ygap=2 if few else 0,
        colorbar=bar | {"title": {"text": "chains in flight", "side": "top"}, "ticklabelposition": "outside bottom"},
        hovertemplate="replica %{y}, %{x:.3g} s: %{z:.1f} chains<extra></extra>",
    )
    if tail_s is not None:
        figure.add_vline(x=over_s - tail_s, line={"color": GREY, "dash": "dash"}, annotation={"text": "tail", "yshift": 12})
    figure.update_xaxes(title=SECONDS, range=[0, occupancy.span_s])
    return axes(figure.update_yaxes(title="replica", autorange="reversed", **{"dtick": 1} if few else {"nticks": 10}))


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
