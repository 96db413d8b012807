"""Figures of steps: counts of steps enter, plotly figures leave. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from pipeline.analysis.arrays import Array
from pipeline.analysis.quality.reward_agreement import BINS, Agreement
from pipeline.analysis.quality.samples import wilson
from pipeline.analysis.quality.step_counts import OutcomeShare, Scores
from pipeline.reasoning.chain import Scale
from pipeline.report.figures.style import (
    BLUE,
    DECISIONS,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
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
    usual = max((_quantile(each, 0.995) for each in counts.values()), default=1)
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


def _quantile(counts: Array, share: float) -> int:
    """The least length that a share `share` of all texts does not exceed; `counts` by length."""
    sums = np.cumsum(counts)
    return int(np.searchsorted(sums, share * sums[-1]))


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
    middle, count = _middle(scores), scores.accepted + scores.rejected
    there = np.flatnonzero(count)
    shares = [wilson_share(int(scores.accepted[place]), int(count[place])) for place in there]
    figure = stacked_rows(2, 460, heights=[0.55, 0.45], bargap=0.1)
    figure.add_trace(_points("acceptance rate, 95% interval", middle[there], shares, GREEN), row=1, col=1)
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


def calibration(scores: Scores) -> go.Figure:
    """Of accepted steps, by the verifier's value: the share whose chain ended right, and that a reward model holds good."""
    middle = _middle(scores)
    figure = stacked_rows(2, 460, heights=[0.72, 0.28], barmode="group")
    if scores.scale.is_share:
        line = {"dash": "dot", "color": GREY}
        figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", line=line, name="perfectly calibrated", hoverinfo="skip")
    series = (("chain correct", scores.right, BLUE, LIGHT), ("reward at least 0.5", scores.good, ORANGE, "#f3d5ae"))
    for name, shares, colour, light in series:
        if any(each.count for each in shares):
            figure.add_trace(_points(name, middle, shares, colour), row=1, col=1)
            _count(figure, f"accepted steps ({name})", middle, [each.count for each in shares], light, "%{y:,}")
    figure.update_yaxes(title="share of accepted steps", tickformat=".0%", range=[-0.02, 1.03], row=1, col=1)
    figure.update_xaxes(range=[scores.edges[0], scores.edges[-1]])
    return _titled(figure, axis_title(scores.scale), "accepted steps")


def agreement(found: Agreement) -> go.Figure:
    """The mean score of speculated steps in bins of their reward, over how many there were (SpecReason figure 7)."""
    places = [(i, mean) for i, mean in enumerate(found.means) if mean.value is not None]
    middle = [(i + 0.5) / BINS for i, _ in places]
    values, lows, highs = ([getattr(mean, name) or 0.0 for _, mean in places] for name in ("value", "low", "high"))
    figure = stacked_rows(2, 460, heights=[0.72, 0.28], bargap=0.1)
    look: Mapping[str, object] = {"error_y": bars_to(values, lows, highs), "marker": {"color": BLUE}}
    figure.add_bar(x=middle, y=values, name="mean, 95% interval", hovertemplate="%{y:.3g}", row=1, col=1, **look)
    _count(figure, "steps", middle, [found.counts[i] for i, _ in places], GREY, "%{y:,}")
    figure.update_yaxes(title=drawn(f"mean {found.scale}"), row=1, col=1).update_xaxes(range=[0, 1])
    return _titled(figure, "reward", "speculated steps")


def wilson_share(part: int, whole: int) -> OutcomeShare:
    """`part` of `whole` independent steps, with Wilson's interval."""
    return OutcomeShare(whole, part / whole, wilson(part / whole, whole))


def _middle(scores: Scores) -> Array:
    return np.asarray((scores.edges[1:] + scores.edges[:-1]) / 2)


def _count(figure: go.Figure, name: str, x: Any, y: Any, colour: str, hover: str) -> None:
    """Add bars of how many there were, below the shares."""
    figure.add_bar(x=x, y=y, name=name, marker={"color": colour}, hovertemplate=hover, row=2, col=1)


def _titled(figure: go.Figure, values: str, counts: str) -> go.Figure:
    """`figure` with the titles of its x axis and of the axis of its bars."""
    return figure.update_yaxes(title=counts, row=2, col=1).update_xaxes(title=values, row=2, col=1)


def _points(name: str, middle: Array, shares: Sequence[OutcomeShare], colour: str) -> go.Scatter:
    known = [(x, each.count, each.share, each.interval) for x, each in zip(middle, shares, strict=True) if each.share is not None]
    counts = [[count, bounds.low, bounds.high] for _, count, _, bounds in known if bounds]
    values = [share for _, _, share, _ in known]
    return go.Scatter(
        x=[x for x, *_ in known],
        y=values,
        customdata=counts,
        error_y=bars_to(values, [low for _, low, _ in counts], [high for *_, high in counts]),
        name=name,
        mode="lines+markers",
        marker={"color": colour, "size": 8},
        line={"color": colour, "width": 1.5},
        hovertemplate="%{y:.1%} of %{customdata[0]:,} steps (%{customdata[1]:.1%} to %{customdata[2]:.1%})",
    )
