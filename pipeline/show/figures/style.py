"""The look of all figures: colours, one layout, the kinds of plots that several of them share, and escaping of text for plotly. Pure."""

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pipeline.text import one_line

GREY, LIGHT, RED, ORANGE, GREEN, BLUE, PURPLE = "#8a94a3", "#d5dae1", "#c8453c", "#e08a1e", "#2f9e6e", "#3573b9", "#8157b5"
TEAL, PINK, BROWN, CYAN, SAND = "#1b998b", "#cf5f9b", "#8c6239", "#56aee0", "#c9b458"
LIME = "#8fbf3f"
MINT = "#9fd6ba"
SERIES = (BLUE, TEAL, PURPLE, ORANGE, PINK, BROWN, CYAN, SAND)
"""Colours of names that have none of their own, in order."""
DECISIONS = {
    "guidance": BLUE,
    "accepted": GREEN,
    "unverified": MINT,
    "fallback": ORANGE,
    "first_steps": PURPLE,
    "written": TEAL,
    "rejected": RED,
    "not_chosen": GREY,
}
"""Colours by what became of a text; `page.css` has the same ones."""
WORDS = {
    "guidance": "guidance",
    "accepted": "accepted step",
    "unverified": "step by the draft that nothing verified",
    "fallback": "fallback step",
    "first_steps": "first steps, without drafts",
    "written": "step written without a draft",
    "rejected": "rejected candidate",
    "not_chosen": "candidate not chosen",
}
"""Plain words for the keys of `DECISIONS`."""

Part = tuple[str, Sequence[float], str, Any]
"""A part of stacked bars: its name, a value for each bar, its colour, and what plotly's hover text needs besides."""


def colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each of `names`."""
    return {name: SERIES[place % len(SERIES)] for place, name in enumerate(names)}


def drawn(text: str) -> str:
    """`text` escaped and on one line, so that plotly shows it as it is."""
    return html.escape(one_line(text), quote=False)


def layout(height: int, **more: Any) -> go.Layout:
    """The layout of every figure, `height` in pixels; `more` are further fields of it."""
    base: dict[str, Any] = {
        "height": height,
        "margin": {"l": 70, "r": 44, "t": 30, "b": 50},
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', sans-serif", "size": 13, "color": "#222b36"},
        "paper_bgcolor": "#fff",
        "plot_bgcolor": "#fff",
        "legend": {"orientation": "h", "traceorder": "normal", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        "hoverlabel": {"align": "left"},
        "modebar": {"orientation": "v", "bgcolor": "rgba(0,0,0,0)"},
        "colorway": list(SERIES),
    }
    return go.Layout(base | more)


def decades(values: Sequence[float]) -> list[float]:
    """Ticks of a logarithmic axis: 1, 2 and 5 times the powers of ten around the positive ones of `values`, or the powers alone where
    these are many."""
    known = [value for value in values if value > 0]
    if not known:
        return []
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    steps = (1, 2, 5) if high - low <= 3 else (1,)
    return [step * 10.0**power for power in range(low, high + 1) for step in steps]


def axes(figure: go.Figure) -> go.Figure:
    """`figure` with light grid lines on all its axes."""
    lines = {"gridcolor": "#e9ecf0", "linecolor": "#aab2bd", "tickcolor": "#aab2bd"}
    look = lines | {"zeroline": False, "ticks": "outside", "automargin": True}
    return figure.update_xaxes(**look).update_yaxes(**look)


def stacked_rows(rows: int, height: int, *, heights: Sequence[float] | None = None, spacing: float = 0.06, **more: Any) -> go.Figure:
    """An empty figure of several plots over one x axis; `heights` are their shares of the height."""
    figure = make_subplots(rows=rows, shared_xaxes=True, row_heights=heights, vertical_spacing=spacing)
    return axes(figure.update_layout(layout(height, **more)))


def stacked_bars(figure: go.Figure, rows: Sequence[str], parts: Iterable[Part], hover: str) -> go.Figure:
    """Add to `figure` a horizontal bar for each of `rows`, of its `parts` one after the other."""
    for name, values, colour, custom in parts:
        bar = go.Bar(y=rows, x=values, customdata=custom, orientation="h", name=name, marker={"color": colour}, hovertemplate=hover)
        figure.add_trace(bar)
    figure.update_layout(barmode="stack")
    return axes(figure.update_yaxes(autorange="reversed"))


def bars_to(values: Sequence[float], lows: Sequence[float], highs: Sequence[float]) -> dict[str, Any]:
    """Error bars of `values` from `lows` to `highs`."""
    return {
        "array": [high - value for value, high in zip(values, highs, strict=True)],
        "arrayminus": [value - low for value, low in zip(values, lows, strict=True)],
        "thickness": 1.2,
    }
