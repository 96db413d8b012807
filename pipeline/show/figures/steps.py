"""Figures of steps: counts of steps enter, plotly figures leave. Pure."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

from pipeline.analysis.arrays import Array
from pipeline.analysis.quality.samples import wilson
from pipeline.analysis.quality.step_counts import Scores
from pipeline.reasoning.chain import Scale
from pipeline.show.figures.style import (
    DECISIONS,
    GREEN,
    GREY,
    RED,
    WORDS,
    axes,
    bars_to,
    drawn,
    layout,
    stacked_rows,
)

MAX_BINS = 60


def lengths(counts: dict[str, Array]) -> go.Figure:
    """Histograms of the tokens of steps and candidates, one for each kind of text, as shares of that kind.

    The axis ends where nearly all are shown. Guidance, whose length is a setting, is shown after a click on its name.
    """
    usual = max((_usual(each) for each in counts.values()), default=1)
    width = max(1, -(-usual // MAX_BINS))
    figure = go.Figure(layout=layout(380))
    for kind in (kind for kind in DECISIONS if kind in counts):
        binned = np.append(np.add.reduceat(counts[kind], np.arange(0, len(counts[kind]), width)), 0)
        total, mean = int(binned.sum()), float(np.average(np.arange(len(counts[kind])), weights=counts[kind]))
        figure.add_scatter(
            x=np.arange(len(binned)) * width + (width - 1) / 2,
            y=binned / total,
            customdata=binned,
            name=f"{WORDS[kind]}: {total:,}, mean {mean:.1f}",
            visible="legendonly" if kind == "guidance" and len(counts) > 1 else True,
            mode="lines",
            line={"shape": "hvh", "color": DECISIONS[kind], "width": 2},
            hovertemplate="about %{x} tokens: %{customdata:,} (%{y:.1%})",
        )
    figure.update_xaxes(title=f"tokens{f', in bins of {width}' if width > 1 else ''}", range=[0, usual + width])
    return axes(figure.update_yaxes(title="share of texts", tickformat=".0%", rangemode="tozero"))


def _usual(counts: Array) -> int:
    """The least length that 99.5 % of all texts do not exceed; `counts` by length."""
    sums = np.cumsum(counts)
    return int(np.searchsorted(sums, 0.995 * sums[-1]))


def acceptance(verified: Array, accepted: Array) -> go.Figure:
    """The share of accepted steps by step number, with Wilson's 95% interval, over how many there were."""
    steps = np.flatnonzero(verified)
    count, share = verified[steps], accepted[steps] / verified[steps]
    bounds = [wilson(float(p), int(n)) for p, n in zip(share, count, strict=True)]
    figure = stacked_rows(2, 460, heights=[0.7, 0.3])
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    figure.add_scatter(x=steps, y=[b.low for b in bounds], **edge)
    figure.add_scatter(x=steps, y=[b.high for b in bounds], fill="tonexty", fillcolor="rgba(47,158,110,0.2)", **edge)
    figure.add_scatter(
        x=steps,
        y=share,
        customdata=count,
        name="acceptance rate, 95% interval",
        mode="lines+markers",
        marker={"size": 5},
        line={"color": GREEN},
        hovertemplate="step %{x}: %{y:.1%} of %{customdata:,}<extra></extra>",
    )
    _count(figure, "verified steps", steps, count, GREY, "step %{x}: %{y:,}<extra></extra>")
    figure.update_yaxes(title="accepted", tickformat=".0%", range=[0, 1.03], row=1, col=1)
    return _titled(figure, "step number", "verified steps")


def by_score(scores: Scores) -> go.Figure:
    """The share of accepted steps by the verifier's value, with Wilson's 95% interval, over how many were accepted and not."""
    middle, count = (scores.edges[1:] + scores.edges[:-1]) / 2, scores.accepted + scores.rejected
    there = np.flatnonzero(count)
    share = scores.accepted[there] / count[there]
    bounds = [wilson(float(p), int(n)) for p, n in zip(share, count[there], strict=True)]
    figure = stacked_rows(2, 460, heights=[0.55, 0.45], bargap=0.1)
    figure.add_scatter(
        x=middle[there],
        y=share,
        customdata=[[n, b.low, b.high] for n, b in zip(count[there].tolist(), bounds, strict=True)],
        error_y=bars_to(share.tolist(), [b.low for b in bounds], [b.high for b in bounds]),
        name="acceptance rate, 95% interval",
        mode="lines+markers",
        marker={"color": GREEN, "size": 8},
        line={"color": GREEN, "width": 1.5},
        hovertemplate="%{y:.1%} of %{customdata[0]:,} steps (%{customdata[1]:.1%} to %{customdata[2]:.1%})",
        row=1,
        col=1,
    )
    for name, counts, colour in (("accepted", scores.accepted, GREEN), ("rejected", scores.rejected, RED)):
        _count(figure, name, middle, counts, colour, "about %{x:.3g}: %{y:,}")
    if scores.threshold is not None:
        said = {"text": f"threshold {scores.threshold:g}"}
        figure.add_vline(x=scores.threshold, line={"dash": "dot", "color": GREY}, annotation=said, row=1, col=1)
    figure.update_xaxes(range=[scores.edges[0], scores.edges[-1]])
    figure.update_yaxes(title="accepted", tickformat=".0%", range=[-0.03, 1.05], row=1, col=1)
    figure.update_yaxes(type="log", dtick=1, range=[-0.2, np.log10(1.6 * max(1, count.max()))], row=2, col=1)
    return _titled(figure, axis_title(scores.scale), "verified steps<br>(log scale)")


def axis_title(scale: Scale) -> str:
    """The title of an axis of values on `scale`: its name, its ends unless they are 0 and 1, and its unit."""
    ends = "" if scale.low is None or scale.high is None or scale.is_share else f"{scale.low:g} to {scale.high:g}"
    return drawn(", ".join(filter(None, (scale.name, ends, scale.unit))))


def _count(figure: go.Figure, name: str, x: Any, y: Any, colour: str, hover: str) -> None:
    """Add bars of how many there were, below the shares."""
    figure.add_bar(x=x, y=y, name=name, marker={"color": colour}, hovertemplate=hover, row=2, col=1)


def _titled(figure: go.Figure, values: str, counts: str) -> go.Figure:
    """`figure` with the titles of its x axis and of the axis of its bars."""
    return figure.update_yaxes(title=counts, row=2, col=1).update_xaxes(title=values, row=2, col=1)
