"""Figures of the modes of chains over time: a `ModesOverTime` enters, a plotly figure and tables leave. Pure."""

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pipeline.analysis.compare.cells import Table, plain, plain_percent
from pipeline.analysis.time.modes import ModesOverTime
from pipeline.report.figures.style import BLUE, GREEN, ORANGE, RED, axes, layout

LOOKS = {"speculative": ("speculative", GREEN), "direct": ("target only", BLUE)}
"""A label and a colour for each mode."""
EXPECTED = {"speculative": ("expected, as decided", ORANGE), "direct": ("expected, target only", RED)}
"""The same for the estimates that a decision was based on."""
MOST_CHANGES = 40
"""Most decisions in the table."""


def modes(found: ModesOverTime) -> go.Figure:
    """How many live chains were in each mode, and the tokens a second of all together next to what the controller expected of them, unless
    there were several controls, none of which knew of all."""
    middle = (found.edges_s[1:] + found.edges_s[:-1]) / 2
    figure = make_subplots(rows=2, shared_xaxes=True, vertical_spacing=0.07)
    figure.update_layout(layout(480, hovermode="x unified"))
    for mode, (words, colour) in LOOKS.items():
        each = found.modes[mode]
        for row, values in ((1, each.chains), (2, each.tokens_per_s)):
            look = {"name": words, "legendgroup": words, "showlegend": row == 1, "stackgroup": f"{row}", "mode": "lines"}
            line = {"width": 0, "color": colour}
            figure.add_trace(go.Scatter(x=middle, y=values, line=line, hovertemplate="%{y:,.3g}", **look), row=row, col=1)
    for mode, (words, colour) in EXPECTED.items():
        known = [(change.at_s, value) for change in found.changes if (value := getattr(change, mode)) is not None]
        if known and found.replicas == 1:
            x, y = np.transpose(known)
            mark = {"color": colour, "symbol": "x", "size": 8}
            points = go.Scatter(x=x, y=y, name=words, mode="markers", marker=mark, hovertemplate="%{y:,.3g}")
            figure.add_trace(points, row=2, col=1)
    figure.update_yaxes(title="chains in flight", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title="thought<br>tokens/s", rangemode="tozero", row=2, col=1)
    figure.update_xaxes(range=[0, float(found.edges_s[-1])])
    figure.update_xaxes(title="time since start (s)", row=2, col=1)
    return axes(figure)


def modes_table(found: ModesOverTime) -> Table:
    """Steps, tokens, time and speed by mode."""
    total = sum(each.chain_s for each in found.modes.values())
    rows = []
    for mode, (words, _) in LOOKS.items():
        each = found.modes[mode]
        speed = each.tokens / each.chain_s if each.chain_s else None
        share = plain_percent(each.chain_s / total if total else None)
        rows.append((words, f"{each.steps:,}", f"{each.tokens:,}", f"{plain(each.chain_s)} s ({share})", plain(speed)))
    return Table("Modes", ("mode", "steps", "thought tokens", "chain time", "thought tokens/s per chain"), tuple(rows))


def changes_table(found: ModesOverTime) -> Table:
    """What the control decided, and the tokens a second that it expected."""
    shown = found.changes[:MOST_CHANGES]
    said = [(f"{each.at_s:.3f}", each.what, f"{each.speculating:,} of {each.live:,}") for each in shown]
    expected = [(plain(each.speculative), plain(each.direct)) for each in shown]
    rows = tuple((*left, *right) for left, right in zip(said, expected, strict=True))
    columns = ("time (s)", "decision", "speculating chains", "expected thought tokens/s", "expected thought tokens/s, target only")
    more = len(found.changes) - len(shown)
    return Table("Controller decisions", columns, rows, f"The first {len(shown)}; {more:,} more are in run.json." if more else "")
