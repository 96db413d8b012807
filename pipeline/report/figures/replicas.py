"""Figures of the replicas of a run: `ReplicaFigures` and an `Occupancy` enter, plotly figures and a table leave. Pure.

Of many replicas the table and the throughput show the slowest and the fastest ones, by the tokens that they sampled in a second.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from pipeline.analysis.compare.cells import Table, plain, plain_percent
from pipeline.analysis.time.occupancy import Occupancy, ReplicaFigures
from pipeline.report.figures.style import BLUE, GREY, axes, colours, drawn, layout

ENDS = 10
"""How many of the slowest and of the fastest replicas are shown where there are more than both together."""
LONGEST_NODE = 16
IDLE = {
    "nothing_admitted": "no chain",
    "other_engine": "other engine",
    "recovery": "retry",
    "orchestration": "orchestrator",
    "barrier": "barrier",
    "tail": "tail",
}
"""A short label for each cause of idleness (`occupancy.CAUSES`); those of `figures.time.CAUSES` say more."""
CELLS = 60_000
"""The most cells of the figure of chains in flight, which has a row for every replica."""
SCALE = [[0.0, "rgba(53, 115, 185, 0)"], [1.0, BLUE]]
"""No chain in flight has no colour, so that the figure suits a light and a dark page."""


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
    causes = {cause: words for cause, words in IDLE.items() if any(each.idle_share[cause] > 0 for each in replicas)}
    idle = [f"idle: {words}" for words in causes.values()]
    columns = ("replica", "node", "chains", "problems/s", "generated tokens/s", "busy", *idle, "own tail", "starts", "losses")
    rows = [
        (
            str(each.replica),
            ", ".join(map(_short, each.nodes)) or "-",
            f"{each.chains:,}",
            plain(each.problems_per_s),
            plain(each.output_tokens_per_s),
            plain_percent(each.busy_share),
            *(plain_percent(each.idle_share[cause]) for cause in causes),
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
    rows = [
        (
            str(each.replica),
            "; ".join(why if count == 1 else f"{why} ({count} times)" for why, count in Counter(each.losses).most_common()),
            "dropped" if each.dropped else "started again",
        )
        for each in replicas
        if each.losses
    ]
    return Table("Lost replicas", ("replica", "why", "then"), tuple(rows)) if rows else None


def throughput(replicas: Sequence[ReplicaFigures]) -> go.Figure:
    """Tokens a second of each replica that is `shown`, by the role that sampled them."""
    rows = shown(replicas)
    names = [f"replica {each.replica}" for each in rows]
    roles = list(rows[0].engines) if rows else []
    figure = go.Figure(layout=layout(110 + 24 * len(rows), barmode="stack", bargap=0.25))
    for role, colour in colours(roles).items():
        rates = [each.engines[role].output_tokens_per_s or 0.0 for each in rows]
        about = [[plain(each.problems_per_s), each.chains, drawn(", ".join(each.nodes))] for each in rows]
        said = "%{y}: %{x:,.0f} generated tokens/s<br>%{customdata[0]} problems/s, %{customdata[1]} chains<br>%{customdata[2]}"
        bar = go.Bar(x=rates, y=names, name=drawn(role), orientation="h", customdata=about, hovertemplate=said)
        figure.add_trace(bar.update(marker={"color": colour, "line": {"width": 0}}))
    figure.update_xaxes(title="generated tokens/s", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", type="category", dtick=1)
    return axes(figure)


def chains_in_flight(occupancy: Occupancy, tail_s: float | None, over_s: float) -> go.Figure:
    """Chains in flight on every replica over time, a row each; `tail_s` before `over_s`, the end of the last chain, the tail began."""
    numbers = list(occupancy.replicas)
    live = np.array([each.live for each in occupancy.replicas.values()])
    edges, joined = occupancy.edges_s, max(1, -(-live.size // CELLS))
    starts = np.arange(0, live.shape[1], joined)
    width = np.diff(edges)
    mean = np.add.reduceat(live * width, starts, axis=1) / np.maximum(np.add.reduceat(width, starts), 1e-12)
    figure = go.Figure(layout=layout(min(170 + 26 * len(numbers), 640), margin={"l": 70, "r": 44, "t": 10, "b": 50}))
    bar = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left", "len": 0.4, "thickness": 10}
    figure.add_trace(
        go.Heatmap(
            x=[*edges[starts].tolist(), float(edges[-1])],
            y=numbers,
            z=mean.round(2),
            colorscale=SCALE,
            zmin=0,
            ygap=2 if len(numbers) <= 2 * ENDS else 0,
            colorbar=bar | {"title": {"text": "chains in flight", "side": "top"}, "ticklabelposition": "outside bottom"},
            hovertemplate="replica %{y}, %{x:.3g} s: %{z:.1f} chains<extra></extra>",
        )
    )
    if tail_s is not None:
        figure.add_vline(x=over_s - tail_s, line={"color": GREY, "dash": "dash"}, annotation={"text": "tail", "yshift": 12})
    figure.update_xaxes(title="time since start (s)", range=[0, occupancy.span_s])
    ticks = {"dtick": 1} if len(numbers) <= 2 * ENDS else {"nticks": 10}
    figure.update_yaxes(title="replica", autorange="reversed", **ticks)
    return axes(figure)


def _short(node: str) -> str:
    """A node's id as far as it tells nodes apart: clusters give ids of dozens of characters."""
    return node if len(node) <= LONGEST_NODE else node[: LONGEST_NODE - 1] + "\u2026"
