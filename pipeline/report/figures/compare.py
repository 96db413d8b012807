"""Runs side by side in a picture: a comparison enters, a plotly figure leaves. Pure."""

import plotly.graph_objects as go

from pipeline.analysis.compare.compare import Comparison
from pipeline.analysis.quality.estimates import Estimate
from pipeline.report.figures.style import axes, drawn, layout


def latency_and_accuracy(comparison: Comparison) -> go.Figure | None:
    """Each run by its seconds and its right answers, with their 95 % intervals (SpecReason figure 3); None where none was graded."""
    figure = go.Figure(layout=layout(420, hovermode="closest"))
    for run in comparison.runs:
        if run.accuracy.value is not None and run.latency_s.value is not None:
            figure.add_scatter(
                x=[run.latency_s.value],
                y=[run.accuracy.value],
                error_x=_bars(run.latency_s),
                error_y=_bars(run.accuracy),
                mode="markers",
                marker={"size": 11},
                name=drawn(run.run),
                hovertemplate="%{y:.1%} right, %{x:.3~g} s a problem",
            )
    figure.update_xaxes(title="seconds of a problem, from admission to its end", rangemode="tozero")
    figure.update_yaxes(title="right answers", tickformat=".0%")
    return axes(figure) if figure.data else None


def _bars(estimate: Estimate) -> dict[str, object] | None:
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return None
    return {"array": [estimate.high - estimate.value], "arrayminus": [estimate.value - estimate.low], "thickness": 1.2}
