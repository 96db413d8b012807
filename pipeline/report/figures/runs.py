"""Figures that compare runs: a comparison, or the points of a sweep, enter, plotly figures leave. Pure.

Figures of a sweep show medians over the repeats, with bars from the least to the greatest; the black line is the target alone, dashed on
further engines files.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle

import plotly.graph_objects as go

from pipeline.analysis.compare.compare import Comparison
from pipeline.analysis.points import Point, Spread, baselines, crossing, curves, spread
from pipeline.analysis.quality.estimates import Estimate
from pipeline.analysis.resources import of_answers
from pipeline.report.figures.style import SERIES, axes, drawn, layout
from pipeline.report.page import Figure

INK = "#222b36"
TICKS = tuple(round(digit * 10.0**power, 6) for power in range(-4, 6) for digit in (1, 2, 5))
"""Where logarithmic axes have ticks, all with labels."""
AS_FAST = "break-even near batch size %{x:.3~g}<extra></extra>"
Value = Callable[[Point], float | None]
Curve = dict[int, list[Point]]


def latency_and_accuracy(comparison: Comparison) -> go.Figure | None:
    """A point for each run, latency against accuracy with 95% intervals (SpecReason figure 3); None where no run was graded."""
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
                hovertemplate="accuracy %{y:.1%}, %{x:.3~g} s per problem",
            )
    figure.update_xaxes(title="latency per problem (s)", rangemode="tozero")
    made = next((run.answers for run in comparison.runs if run.answers), None)
    figure.update_yaxes(title=of_answers("accuracy", made), tickformat=".0%")
    return axes(figure) if figure.data else None


def _bars(estimate: Estimate) -> dict[str, object] | None:
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return None
    return {"array": [estimate.high - estimate.value], "arrayminus": [estimate.value - estimate.low], "thickness": 1.2}


def sweep_figures(points: Sequence[Point]) -> Iterator[Figure]:
    """All figures that the points have data for, the most important first."""
    found = curves(points)
    yield Figure("Throughput by batch size", throughput(found))
    if len(found) > 1:
        yield Figure("Speed-up over the target alone", over_target(found), "Above 1 the system is faster; rings mark break-even points.")
    if any(point.chain_p50_s is not None for point in points):
        yield Figure("Chain latency", latency(found), "p50; the thin line is p90.")
    for role in sorted({role for point in points for role in point.busy_share}):
        busy = plotted(found, lambda point, role=role: point.busy_share.get(role), f"{role} utilization", percent=True)  # type: ignore[misc]
        yield Figure(f"Utilization of {role}", busy, "Share of the time with at least one request at the engine.")
    if any(point.acceptance_rate is not None for point in points):
        yield Figure("Acceptance rate", plotted(found, lambda point: point.acceptance_rate, "share of verified steps", percent=True))
    if any(point.accuracy is not None for point in points):
        yield Figure(
            of_answers("Accuracy", points[0].answers),
            plotted(found, lambda point: point.accuracy, "share of graded chains, failed ones count as wrong", percent=True),
        )
    if any(point.wall_s for point in points):
        tail = plotted(found, lambda point: point.tail_s / point.timed_s if point.timed_s else None, "share of the wall time", percent=True)
        yield Figure("Tail", tail)


def throughput(found: dict[str, Curve]) -> go.Figure:
    """Problems per second by batch size, on logarithmic axes."""
    figure = plotted(found, lambda point: point.problems_per_s, "problems/s")
    return _logarithmic(figure)


def over_target(found: dict[str, Curve]) -> go.Figure:
    """Throughput of each curve over the target's at the same batch size, with rings where it passes 1."""
    figure = _empty("speed-up over the target alone")
    figure.add_hline(y=1, line={"color": INK, "width": 2})
    for place, (other, alone) in enumerate(baselines(found).items()):
        where = crossing(found[other], found[alone])
        if where is None:
            continue
        _line(figure, other, where.ratios, SERIES[place % len(SERIES)])
        if where.at is not None:
            ring = {"size": 13, "symbol": "circle-open", "color": SERIES[place % len(SERIES)], "line": {"width": 2}}
            figure.add_scatter(
                x=[where.at],
                y=[1],
                mode="markers",
                marker=ring,
                showlegend=False,
                hovertemplate=AS_FAST,
            )
    return _sized(_logarithmic(figure), found)


def latency(found: dict[str, Curve]) -> go.Figure:
    """Median and p90 of the seconds from a chain's admission to its end, by batch size."""
    figure = plotted(found, lambda point: point.chain_p50_s, "chain latency (s)")
    for name, curve in found.items():
        slow = {size: p90 for size, points in curve.items() if (p90 := spread(point.chain_p90_s for point in points)) is not None}
        colour = _colours(found)[name]
        line = {"color": colour, "width": 1, "dash": "dot"}
        figure.add_scatter(
            x=list(slow), y=[value.median for value in slow.values()], mode="lines", line=line, name=f"{drawn(name)}, p90", showlegend=False
        )
    return _logarithmic(figure)


def plotted(found: dict[str, Curve], value: Value, title: str, *, percent: bool = False) -> go.Figure:
    """A figure of `value` by batch size, with a line for each curve."""
    figure = _empty(title)
    for name, curve in found.items():
        known = {size: each for size, points in curve.items() if (each := spread(map(value, points))) is not None}
        if known:
            _line(figure, name, known, _colours(found)[name], _dashes(found).get(name, "solid"))
    if percent:
        figure.update_yaxes(tickformat=".0%", range=[0, 1.02])
    return _sized(figure, found)


def _logarithmic(figure: go.Figure) -> go.Figure:
    return figure.update_yaxes(type="log", rangemode="normal", tickvals=TICKS, ticktext=[f"{tick:,g}" for tick in TICKS])


def _line(figure: go.Figure, name: str, values: dict[int, Spread], colour: str, dash: str = "solid") -> None:
    bars = {
        "array": [value.high - value.median for value in values.values()],
        "arrayminus": [value.median - value.low for value in values.values()],
        "thickness": 1.2,
    }
    figure.add_scatter(
        x=list(values),
        y=[value.median for value in values.values()],
        error_y=bars,
        mode="lines+markers",
        line={"color": colour, "width": 3 if colour == INK else 2, "dash": dash},
        name=drawn(name),
    )


def _colours(found: dict[str, Curve]) -> dict[str, str]:
    """The colour of each curve: black for the target alone, those of `SERIES` in order for the others."""
    others = [name for name in found if not _alone(found[name])]
    return dict.fromkeys(found, INK) | {name: SERIES[place % len(SERIES)] for place, name in enumerate(others)}


def _dashes(found: dict[str, Curve]) -> dict[str, str]:
    """How the line of each target alone is drawn, for they have one colour."""
    return dict(zip((name for name in found if _alone(found[name])), cycle(("solid", "dash", "dot", "dashdot")), strict=False))


def _alone(curve: Curve) -> bool:
    return next(iter(curve.values()))[0].baseline


def _empty(title: str) -> go.Figure:
    figure = go.Figure(layout=layout(400, hovermode="x unified"))
    figure.update_yaxes(title=title, rangemode="tozero")
    return axes(figure)


def _sized(figure: go.Figure, found: dict[str, Curve]) -> go.Figure:
    """`figure` with a logarithmic axis of batch sizes, with a tick at each one that was run."""
    sizes = sorted({size for curve in found.values() for size in curve})
    return figure.update_xaxes(title="batch size", type="log", tickvals=sizes, ticktext=list(map(str, sizes)))
