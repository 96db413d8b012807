"""Charts as values and as SVG: axes, and marks with their numbers, enter; paths leave. Pure.

The marks of a panel are stretched to whatever width a page has. Text is not: `parts.html` puts it beside them as HTML. Colours are names of
variables in `page.css`, so that light and dark pages have their own.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from pipeline.analysis.time.work import Array

SIDE = 10_000
"""Width and height of the drawing area, in its own units."""
TICKS = 7
"""About how many ticks an axis has."""


class ChartAxis(Struct, frozen=True, kw_only=True):
    """What an axis shows, from `low` to `high`."""

    title: str = ""
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    form: str = "{:,g}"
    """How a tick is written."""
    at: tuple[float, ...] = ()
    """Values with a tick; empty: round ones."""

    def place(self, values: Any) -> Array:
        """Where `values` are between the ends of the axis, 0 to `SIDE`; beyond them, at the end."""
        low, high, found = self.low, self.high, np.asarray(values, float)
        if self.log:
            low, high, found = math.log(low), math.log(high), np.log(np.maximum(found, self.low))
        return np.clip(np.rint(SIDE * (found - low) / ((high - low) or 1)), 0, SIDE)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Each tick: its place in percent, and its label."""
        values = self.at or (_decades(self.low, self.high) if self.log else _round(self.low, self.high))
        shown = [value for value in values if self.low <= value <= self.high]
        return [(float(place) * 100 / SIDE, self.form.format(value)) for place, value in zip(self.place(shown), shown, strict=True)]


class Mark(Struct, frozen=True, kw_only=True):
    """Numbers drawn in one way; the sequences have the same length."""

    kind: Literal["line", "bars", "dots", "bounds", "spans"]
    """`line` through points; `bars` from `x` to `until`; `dots`; `bounds` upright from `low` to `y`; `spans`
    level from `x` to `until`."""
    hue: str
    x: Any
    y: Any
    low: Any = ()
    """Where `bars` and `bounds` begin."""
    until: Any = ()
    name: str = ""
    """Its name in the legend; empty: none."""
    width: float = 2.0
    """Of lines, in pixels."""
    dashed: bool = False


class Panel(Struct, frozen=True, kw_only=True):
    """Marks over one y axis."""

    y: ChartAxis
    marks: Sequence[Mark]
    height: int = 220
    """In pixels."""
    rows: Sequence[str] = ()
    """The names of its rows from the top, where a pointer shows them."""


class Chart(Struct, frozen=True, kw_only=True):
    """Panels below each other over one x axis."""

    title: str
    x: ChartAxis
    panels: Sequence[Panel]
    note: str = ""
    """What a reader must know to read it."""

    @property
    def legend(self) -> dict[str, str]:
        """The names of its marks and their colours."""
        return {mark.name: mark.hue for panel in self.panels for mark in panel.marks if mark.name}


def path(mark: Mark, x: ChartAxis, y: ChartAxis) -> str:
    """The outline of a mark, in the language of SVG paths, without what is beyond the x axis."""
    found = [x.place(mark.x), SIDE - y.place(mark.y), SIDE - y.place(mark.low), x.place(mark.until)]
    given = np.asarray(mark.x, float)
    known = np.isfinite(np.asarray(mark.y, float)) & (given >= x.low) & (given <= x.high)
    points = list(zip(*(each[known].astype(int).tolist() if len(each) else [0] * int(known.sum()) for each in found), strict=True))
    tops = [f"{at} {top}" for at, top, _, _ in points]
    match mark.kind:
        case "line":
            return "M" + "L".join(tops) if tops else ""
        case "bars":
            return "".join(f"M{at} {foot}V{top}H{until}V{foot}" for at, top, foot, until in points if top < foot)
        case "dots":
            return "".join(f"M{top}h0" for top in tops)
        case "bounds":
            return "".join(f"M{at} {foot}V{top}" for at, top, foot, _ in points)
        case "spans":
            before = [(0, -1, 0, 0), *points]
            return "".join(
                f"M{at} {top}H{until}" if top != row else f"m{at - end} 0H{until}"
                for (_, row, _, end), (at, top, _, until) in zip(before, points, strict=False)
            )


def stacked(edges: Array, parts: Iterable[tuple[str, str, Array]]) -> list[Mark]:
    """Bars on top of each other between `edges`, one mark for each `(name, hue, heights)` that has any height."""
    low, marks = np.zeros(len(edges) - 1), []
    for name, hue, heights in parts:
        if np.any(heights > 0):
            marks.append(Mark(kind="bars", name=name, hue=hue, x=edges[:-1], until=edges[1:], low=low, y=low + heights))
            low = low + heights
    return marks


def up_to(values: Any, **axis: Any) -> ChartAxis:
    """An axis from 0 to somewhat more than the greatest of `values`."""
    found = np.asarray(values, float)
    return ChartAxis(high=1.05 * float(np.nanmax(found, initial=0)) or 1.0, **axis)


def _round(low: float, high: float) -> list[float]:
    """About `TICKS` round values."""
    rough = (high - low) / TICKS or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= rough * (1 - 1e-9))
    return [round(step * number, 12) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten, or these alone where there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [float(f"{digit}e{power}") for power in range(first, last + 1) for digit in ((1, 2, 5) if last - first < 4 else (1,))]
