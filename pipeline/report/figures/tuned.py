"""The curve of accuracy against speed of a tuned graph: its settings enter, a plotly figure leaves. Pure."""

from collections.abc import Sequence

import plotly.graph_objects as go

from pipeline.analysis.tuned import Tuned, TunedSetting
from pipeline.report.figures.style import BLUE, GREEN, GREY, axes, bars_to, drawn, layout

INK = "#222b36"


def curve(found: Tuned) -> go.Figure:
    """Accuracy against speed over the target alone: measured settings as points, with the interval of their loss; predicted ones as rings
    at the middle of what their accuracy may be, with bars to its ends."""
    figure = go.Figure(layout=layout(460, hovermode="closest"))
    target = found.target.accuracy or 0.0
    figure.add_hline(y=target, line={"color": INK, "width": 2})
    figure.add_hline(y=target - found.max_loss, line={"color": INK, "width": 1, "dash": "dot"})
    _predicted(figure, [each for each in found.settings if each.measured is None])
    _measured(figure, "measured", [each for each in found.measured if each.values != found.chosen], target, BLUE)
    _measured(figure, "chosen", [each for each in found.measured if each.values == found.chosen], target, GREEN)
    figure.update_xaxes(title="speed over the target alone")
    figure.update_yaxes(title="accuracy", tickformat=".1%")
    return axes(figure)


def _predicted(figure: go.Figure, settings: Sequence[TunedSetting]) -> None:
    known = [(each, each.accuracy_low, each.accuracy_high) for each in settings if each.over_target is not None]
    bounds = [(each, low, high) for each, low, high in known if low is not None and high is not None]
    middle = [(low + high) / 2 for _, low, high in bounds]
    bars = bars_to(middle, [low for _, low, _ in bounds], [high for _, _, high in bounds]) | {"color": GREY}
    figure.add_scatter(
        x=[each.over_target for each, _, _ in bounds],
        y=middle,
        error_y=bars,
        mode="markers",
        marker={"size": 8, "symbol": "circle-open", "color": GREY},
        name="predicted, with what its accuracy may be",
        text=[drawn(each.label) for each, _, _ in bounds],
        hovertemplate="%{text}<br>predicted: %{x:.2f} times<extra></extra>",
    )


def _measured(figure: go.Figure, name: str, settings: Sequence[TunedSetting], target: float, colour: str) -> None:
    runs = [(each, each.measured) for each in settings if each.measured is not None and each.measured.over_target is not None]
    values = [target - (run.loss.value or 0.0) for _, run in runs]
    lows = [target - (run.loss.high or 0.0) for _, run in runs]
    highs = [target - (run.loss.low or 0.0) for _, run in runs]
    figure.add_scatter(
        x=[run.over_target for _, run in runs],
        y=values,
        error_y=bars_to(values, lows, highs),
        mode="markers",
        marker={"size": 11, "color": colour},
        name=name,
        text=[drawn(each.label) for each, _ in runs],
        hovertemplate="%{text}<br>measured: %{y:.1%}, %{x:.2f} times<extra></extra>",
    )
