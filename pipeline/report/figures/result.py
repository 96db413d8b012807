"""A figure of the result of a query: columns and rows enter, a plot with a note leaves. Pure."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import plotly.graph_objects as go

from pipeline.report.figures.style import SERIES, axes, drawn, layout
from pipeline.report.page import Figure

KINDS = ("bars", "lines", "points")
MOST_SERIES = len(SERIES)
Series = dict[str, tuple[list[Any], list[float | None]]]


def result_figure(columns: Sequence[str], rows: Sequence[Sequence[Any]], kind: str) -> Figure | None:
    """The first column is drawn to the right and columns of numbers upwards; a second column of text makes a series of each of its values.

    `kind` is one of `KINDS`. The note says how many series are left out, as there are no more colours. None where there is nothing to draw:
    no second column of numbers, or no such kind.
    """
    found = _series(columns, rows)
    if not found or kind not in KINDS:
        return None
    series = dict(list(found.items())[:MOST_SERIES])
    note = f"The first {MOST_SERIES} of {len(found):,} series." if len(found) > MOST_SERIES else ""
    return Figure("", _plot(columns[0], series, kind), note)


def _plot(right_title: str, series: Series, kind: str) -> go.Figure:
    figure = go.Figure(layout=layout(420, showlegend=len(series) > 1))
    for (name, (right, up)), colour in zip(series.items(), SERIES, strict=False):
        look = {"name": drawn(name), "x": right, "y": up}
        if kind == "bars":
            figure.add_trace(go.Bar(**look, marker={"color": colour}))
        else:
            mode = "lines+markers" if kind == "lines" else "markers"
            figure.add_trace(go.Scatter(**look, mode=mode, line={"color": colour}, marker={"color": colour}))
    figure.update_xaxes(title=drawn(right_title))
    figure.update_yaxes(title=drawn(next(iter(series))) if len(series) == 1 else "")
    return axes(figure)


def _series(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Series:
    """The values to draw by the names of their series."""
    numbers = [place for place in range(1, len(columns)) if _has_numbers([row[place] for row in rows])]
    if not numbers:
        return {}
    found: Series = {}
    by_text = numbers[0] == 2 and any(isinstance(row[1], str) for row in rows)
    for place in numbers[:1] if by_text else numbers:
        for row in rows:
            right, up = found.setdefault(str(row[1]) if by_text else columns[place], ([], []))
            right.append(_at(row[0]))
            up.append(None if row[place] is None else float(row[place]))
    return found


def _has_numbers(values: Sequence[Any]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float | Decimal) for value in known)


def _at(value: Any) -> Any:
    """A place on the axis to the right: a number, or text that plotly shows as it is."""
    if isinstance(value, Decimal):
        return float(value)
    return value if isinstance(value, int | float) or value is None else drawn(str(value))
