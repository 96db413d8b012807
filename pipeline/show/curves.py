"""Charts that compare runs: a comparison, or the points of a sweep, enter, charts leave. Pure.

Charts of a sweep show medians over the repeats, with bars from the least to the greatest; the target alone has the colour of text, and is
dashed on further engines files.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle

from pipeline.analysis.compare import Comparison
from pipeline.analysis.curves import Curve, Measured, Spread, crossing, curves, label_of, ratios, spread
from pipeline.analysis.facts import of_answers
from pipeline.show.charts import SERIES, SHARE
from pipeline.show.plot import Chart, ChartAxis, Mark, Panel, up_to

INK = "ink"
Value = Callable[[Measured], float | None]
Looks = Mapping[str, tuple[str, bool]]


def latency_and_accuracy(comparison: Comparison) -> Chart | None:
    """A point for each run, latency against accuracy with 95% intervals (SpecReason figure 3); None where no run was graded."""
    marks, far = [], [0.0]
    for run, hue in zip(comparison.runs, cycle(SERIES), strict=False):
        across, up = run.figures["latency_s"], run.figures["accuracy"]
        if up.value is None or across.value is None:
            continue
        marks.append(Mark(kind="dots", name=run.name, hue=hue, x=[across.value], y=[up.value], width=10))
        if up.low is not None and up.high is not None:
            marks.append(Mark(kind="bounds", hue=hue, x=[across.value], y=[up.high], low=[up.low], width=1.5))
        if across.low is not None and across.high is not None:
            marks.append(Mark(kind="spans", hue=hue, x=[across.low], until=[across.high], y=[up.value], width=1.5))
        far += [across.value, across.high or 0.0]
    if not marks:
        return None
    made = next((run.answers for run in comparison.runs if run.answers), None)
    panel = Panel(y=ChartAxis(title=of_answers("accuracy", made), form=SHARE, high=1.02), marks=marks, height=300)
    return Chart(title="Accuracy against latency, by run", x=up_to(far, title="seconds per problem"), panels=[panel])


def sweep_charts(points: Sequence[Measured]) -> Iterator[Chart]:
    """All charts that the points have data for, the most important first."""
    found = curves(points)
    looks = _looks(found)
    yield plotted("Throughput by batch size", found, looks, lambda point: point.run.problems_per_s, "problems/s", log=True)
    if len(found) > 1:
        yield over_baseline(found, looks)
    yield plotted("Time of a problem", found, looks, lambda point: point.run.figures["latency_s"].value, "seconds", log=True)
    shares: list[tuple[str, str, Value]] = [
        ("Fallback rate", "of verified steps", lambda point: point.run.figures["fallback_rate"].value),
        ("Accuracy", "right", lambda point: None if point.run.answers == "simulated" else point.run.figures["accuracy"].value),
        ("Tail", "of the wall time", lambda point: point.tail_s / point.run.wall_time_s if point.run.wall_time_s else None),
    ]
    for title, axis, value in shares:
        if any(value(point) is not None for point in points):
            yield plotted(title, found, looks, value, axis, share=True)


def over_baseline(found: Mapping[str, Curve], looks: Looks) -> Chart:
    """Throughput of each curve over the best baseline's at the same batch size, with a dot where it passes 1."""
    x, marks, high = _sizes(found), list[Mark](), 1.0
    for name in found:
        if over := ratios(name, found):
            marks += _line(name, over, *looks[name])
            high = max(high, *(ratio.high for ratio in over.values()))
            if (at := crossing(over)) is not None:
                marks.append(Mark(kind="dots", hue=looks[name][0], x=[at], y=[1], width=12))
    one = Mark(kind="line", hue=INK, x=[x.low, x.high], y=[1, 1], width=1)
    panel = Panel(y=up_to(high, title="times the best baseline"), marks=[one, *marks], height=280)
    return Chart(
        title="Throughput over the best baseline",
        x=x,
        panels=[panel],
        note="Above 1 the system is faster; large dots mark where it breaks even.",
    )


def plotted(
    title: str, found: Mapping[str, Curve], looks: Looks, value: Value, axis: str, *, log: bool = False, share: bool = False
) -> Chart:
    """A chart of `value` by batch size, with a line for each curve."""
    known = {
        name: {size: each for size, points in curve.items() if (each := spread(map(value, points))) is not None}
        for name, curve in found.items()
    }
    marks = [mark for name, values in known.items() if values for mark in _line(name, values, *looks[name])]
    ends = [end for values in known.values() for each in values.values() for end in (each.low, each.high) if end > 0]
    if share:
        y = ChartAxis(title=axis, form=SHARE, high=1.02)
    elif log and ends:
        y = ChartAxis(title=axis, log=True, low=0.8 * min(ends), high=1.25 * max(ends))
    else:
        y = up_to(ends, title=axis)
    return Chart(title=title, x=_sizes(found), panels=[Panel(y=y, marks=marks, height=280 if log else 200)])


def _line(name: str, values: Mapping[int, Spread], hue: str, dashed: bool) -> Iterator[Mark]:
    sizes, medians = list(values), [each.median for each in values.values()]
    low, high = [each.low for each in values.values()], [each.high for each in values.values()]
    if low != high:
        yield Mark(kind="bounds", hue=hue, x=sizes, y=high, low=low, width=1.5)
    yield Mark(kind="line", name=name, hue=hue, x=sizes, y=medians, width=2.5 if hue == INK else 2, dashed=dashed)
    yield Mark(kind="dots", hue=hue, x=sizes, y=medians, width=7)


def _looks(found: Mapping[str, Curve]) -> dict[str, tuple[str, bool]]:
    """Colour of each curve, and whether it is dashed: the same in all charts."""
    hues = cycle(SERIES)
    targets = [name for name, curve in found.items() if label_of(curve).baseline]
    return {name: (INK, name != targets[0]) if name in targets else (next(hues), False) for name in found}


def _sizes(found: Mapping[str, Curve]) -> ChartAxis:
    """A logarithmic axis of batch sizes, with a tick at each one that was run."""
    sizes = sorted({size for curve in found.values() for size in curve})
    return ChartAxis(title="batch size", log=True, low=0.9 * sizes[0], high=1.1 * sizes[-1], at=tuple(map(float, sizes)))
