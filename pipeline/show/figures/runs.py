"""Figures that compare runs: a comparison, or the points of a sweep, enter, plotly figures leave. Pure.

Figures of a sweep show medians over the repeats, with bars from the least to the greatest; the black line is the target alone, dashed on
further engines files.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from operator import attrgetter

import plotly.graph_objects as go

from pipeline.analysis.compare.compare import Comparison
from pipeline.analysis.points import Point, Spread, baselines, called, crossing, curves, spread
from pipeline.analysis.quality.estimates import Estimate
from pipeline.analysis.resources import of_answers
from pipeline.show.figures.style import SERIES, axes, bars_to, drawn, layout
from pipeline.show.page import Figure

INK = "#222b36"
TICKS = tuple(round(digit * 10.0**power, 6) for power in range(-4, 6) for digit in (1, 2, 5))
"""Where logarithmic axes have ticks, all with labels."""
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


def _bars(e: Estimate) -> dict[str, object] | None:
    return None if e.value is None or e.low is None or e.high is None else bars_to([e.value], [e.low], [e.high])


def sweep_figures(points: Sequence[Point]) -> Iterator[Figure]:
    """All figures that the points have data for, the most important first."""
    found = curves(points)
    yield Figure("Throughput by batch size", throughput(found))
    if len(found) > 1:
        yield Figure(f"Speed-up over {_baseline(found)}", over_target(found), "Above 1 the system is faster; rings mark break-even points.")
    if any(point.chain_p50_s is not None for point in points):
        yield Figure("Chain latency", latency(found), "p50; the thin line is p90.")
    roles = sorted({role for point in points for role in point.busy_share})
    note = "Share of the time with at least one request at the engine."
    shares: list[tuple[str, str, str, Value]] = [
        *((f"Utilization of {role}", f"{role} utilization", note, _busy(role)) for role in roles),
        ("Acceptance rate", "share of verified steps", "", attrgetter("acceptance_rate")),
        (of_answers("Accuracy", points[0].answers), "share of graded chains, failed ones count as wrong", "", attrgetter("accuracy")),
        ("Tail", "share of the wall time", "", lambda point: point.tail_s / point.timed_s if point.timed_s else None),
    ]
    for title, axis, said, value in shares:
        if any(value(point) is not None for point in points):
            yield Figure(title, plotted(found, value, axis).update_yaxes(tickformat=".0%", range=[0, 1.02]), said)


def _busy(role: str) -> Value:
    return lambda point: point.busy_share.get(role)


def throughput(found: dict[str, Curve]) -> go.Figure:
    """Problems per second by batch size, on logarithmic axes."""
    return _logarithmic(plotted(found, attrgetter("problems_per_s"), "problems/s"))


def over_target(found: dict[str, Curve]) -> go.Figure:
    """Throughput of each curve over the target's at the same batch size, with rings where it passes 1."""
    figure = _empty(f"speed-up over {_baseline(found)}")
    figure.add_hline(y=1, line={"color": INK, "width": 2})
    for (other, alone), colour in zip(baselines(found).items(), cycle(SERIES), strict=False):
        where = crossing(found[other], found[alone])
        if where is None:
            continue
        _line(figure, other, where.ratios, colour)
        if where.at is not None:
            ring = {"size": 13, "symbol": "circle-open", "color": colour, "line": {"width": 2}}
            said = "break-even near batch size %{x:.3~g}<extra></extra>"
            figure.add_scatter(x=[where.at], y=[1], mode="markers", marker=ring, showlegend=False, hovertemplate=said)
    return _sized(_logarithmic(figure), found)


def _baseline(found: dict[str, Curve]) -> str:
    """What the others are compared with: the target alone, or that on the same engines file."""
    names = {called(alone, found) for alone in baselines(found).values()}
    return names.pop() if len(names) == 1 else "the target on the same engines"


def latency(found: dict[str, Curve]) -> go.Figure:
    """Median and p90 of the seconds from a chain's admission to its end, by batch size."""
    figure, looks = plotted(found, attrgetter("chain_p50_s"), "chain latency (s)"), _looks(found)
    for name, curve in found.items():
        slow = {size: p90.median for size, points in curve.items() if (p90 := spread(point.chain_p90_s for point in points)) is not None}
        line = {"color": looks[name][0], "width": 1, "dash": "dot"}
        label = f"{drawn(name)}, p90"
        figure.add_scatter(x=list(slow), y=list(slow.values()), mode="lines", line=line, name=label, showlegend=False)
    return _logarithmic(figure)


def plotted(found: dict[str, Curve], value: Value, title: str) -> go.Figure:
    """A figure of `value` by batch size, with a line for each curve."""
    figure, looks = _empty(title), _looks(found)
    for name, curve in found.items():
        known = {size: each for size, points in curve.items() if (each := spread(map(value, points))) is not None}
        if known:
            _line(figure, name, known, *looks[name])
    return _sized(figure, found)


def _logarithmic(figure: go.Figure) -> go.Figure:
    return figure.update_yaxes(type="log", rangemode="normal", tickvals=TICKS, ticktext=[f"{tick:,g}" for tick in TICKS])


def _line(figure: go.Figure, name: str, values: dict[int, Spread], colour: str, dash: str = "solid") -> None:
    medians = [value.median for value in values.values()]
    figure.add_scatter(
        x=list(values),
        y=medians,
        error_y=bars_to(medians, [value.low for value in values.values()], [value.high for value in values.values()]),
        mode="lines+markers",
        line={"color": colour, "width": 3 if colour == INK else 2, "dash": dash},
        name=drawn(name),
    )


def _looks(found: dict[str, Curve]) -> dict[str, tuple[str, str]]:
    """Colour and dash of each curve: for the target alone black, and dashes that tell several apart; for the others those of `SERIES`."""
    alone, others = cycle(("solid", "dash", "dot", "dashdot")), cycle(SERIES)
    targets = {name: next(iter(curve.values()))[0].baseline for name, curve in found.items()}
    return {name: (INK, next(alone)) if target else (next(others), "solid") for name, target in targets.items()}


def _empty(title: str) -> go.Figure:
    figure = go.Figure(layout=layout(400, hovermode="x unified"))
    return axes(figure.update_yaxes(title=title, rangemode="tozero"))


def _sized(figure: go.Figure, found: dict[str, Curve]) -> go.Figure:
    """`figure` with a logarithmic axis of batch sizes, with a tick at each one that was run."""
    sizes = sorted({size for curve in found.values() for size in curve})
    return figure.update_xaxes(title="batch size", type="log", tickvals=sizes, ticktext=list(map(str, sizes)))
