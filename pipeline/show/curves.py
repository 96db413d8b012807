"""Charts that compare runs: a comparison, or the points of a sweep, enter, charts leave. Pure.

Charts of a sweep show medians over the repeats, with bars from the least to the greatest; the target alone has the colour of text, and is
dashed on further engines files.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle

from pipeline.analysis.compare import Comparison, Run
from pipeline.analysis.curves import Curve, Measured, Spread, crossing, curves, label_of, ratios, spread
from pipeline.analysis.facts import made_up
from pipeline.show.charts import SERIES, SHARE
from pipeline.show.plot import Chart, ChartAxis, Mark, Panel, up_to

INK = "ink"
Looks = Mapping[str, tuple[str, bool]]
Values = Mapping[str, Mapping[int, Spread]]


def latency_and_accuracy(comparison: Comparison) -> Chart | None:
    """A point for each run, latency against accuracy with 95% intervals (SpecReason figure 3); None where no run was graded."""
    marks, far = [], [0.0]
    for run, hue in zip(comparison.runs, cycle(SERIES), strict=False):
        across, up = run.figures["latency_s"], run.figures["accuracy"]
        if up.value is None or across.value is None or made_up(run.answers, up.value):
            continue
        marks.append(Mark(kind="dots", name=run.name, hue=hue, x=[across.value], y=[up.value], width=10))
        if up.low is not None and up.high is not None:
            marks.append(Mark(kind="bounds", hue=hue, x=[across.value], y=[up.high], low=[up.low], width=1.5))
        if across.low is not None and across.high is not None:
            marks.append(Mark(kind="spans", hue=hue, x=[across.low], until=[across.high], y=[up.value], width=1.5))
        far += [across.value, across.high or 0.0]
    if not marks:
        return None
    panel = Panel(y=ChartAxis(title=_of_answers("accuracy", comparison.runs), form=SHARE, high=1.02), marks=marks, height=300)
    return Chart(title="Accuracy against latency, by run", x=up_to(far, title="seconds per problem"), panels=[panel])


def _of_answers(share: str, runs: Iterable[Run]) -> str:
    """The title of an axis with accuracies, which says what gave the answers where models did not."""
    made = next((run.answers for run in runs if run.answers), None)
    return f"{share} of {made} answers" if made else share


def _accuracy(point: Measured) -> float | None:
    value = point.run.figures["accuracy"].value
    return None if made_up(point.run.answers, value) else value


def sweep_charts(points: Sequence[Measured]) -> Iterator[Chart]:
    """All charts that the points have data for, the most important first."""
    found = curves(points)
    looks, sizes = _looks(found), sorted({size for curve in found.values() for size in curve})
    x = ChartAxis(title="batch size", log=True, low=0.9 * sizes[0], high=1.1 * sizes[-1], at=tuple(map(float, sizes)))
    draw = partial(_drawn, x, looks)

    def by_size(value: Callable[[Measured], float | None]) -> Values:
        known = {name: {size: spread(map(value, each)) for size, each in curve.items()} for name, curve in found.items()}
        return {name: {size: each for size, each in curve.items() if each is not None} for name, curve in known.items()}

    yield draw("Throughput by batch size", "problems/s", by_size(lambda point: point.run.problems_per_s), scale="log")
    if len(found) > 1:
        over = {name: ratios(name, found) for name in found}
        even = [Mark(kind="line", hue=INK, x=[x.low, x.high], y=[1, 1], width=1)]
        even += [
            Mark(kind="dots", hue=looks[name][0], x=[at], y=[1], width=12) for name in found if (at := crossing(over[name])) is not None
        ]
        note = "Above 1 the system is faster; large dots mark where it breaks even."
        yield draw("Throughput over the best baseline", "times the best baseline", over, more=even, note=note)
    yield draw("Time of a problem", "seconds", by_size(lambda point: point.run.figures["latency_s"].value), scale="log")
    right = by_size(_accuracy)
    if any(right.values()):
        yield draw("Accuracy", _of_answers("right", [point.run for point in points]), right, scale="share")


def _drawn(
    x: ChartAxis, looks: Looks, title: str, axis: str, values: Values, *, scale: str = "", more: Sequence[Mark] = (), note: str = ""
) -> Chart:
    """A line for each curve that has values, and `more`; `scale`: `log`, `share` or linear."""
    marks = [mark for name, each in values.items() if each for mark in _line(name, each, *looks[name])]
    ends = [end for curve in values.values() for each in curve.values() for end in (each.low, each.high) if end > 0]
    y = up_to([1.0, *ends], title=axis)
    if scale == "share":
        y = ChartAxis(title=axis, form=SHARE, high=1.02)
    elif scale == "log" and ends:
        y = ChartAxis(title=axis, log=True, low=0.8 * min(ends), high=1.25 * max(ends))
    return Chart(title=title, x=x, panels=[Panel(y=y, marks=[*more, *marks], height=200 if scale == "share" else 280)], note=note)


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
