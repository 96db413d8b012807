"""Tables and their cells: numbers and estimates enter, text that is ready to print leaves. Pure."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from pipeline.analysis.quality.estimates import Estimate

THOUSAND = 999.5
"""What is 1,000 with three digits."""


class Table(Struct, frozen=True):
    """A table whose cells are text, ready to print."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    """What to know when reading it."""


def percent(e: "Estimate", *, sign: bool = False) -> str:
    """A share in percent with its interval; with `sign` for a difference of shares or a change."""
    return _with_interval(e, lambda value: f"{value:+.1%}" if sign else f"{value:.1%}")


def number(e: "Estimate", *, sign: bool = False) -> str:
    """A number with its interval: three digits, from 1,000 on a whole number; with `sign` for a difference."""
    return _with_interval(e, lambda value: f"{value:+.3g}" if sign else plain(value))


def reward(e: "Estimate", *, sign: bool = False) -> str:
    """A reward with its interval, with three decimals; with `sign` for a difference."""
    return _with_interval(e, lambda value: f"{value:+.3f}" if sign else f"{value:.3f}")


def plain(value: float | None) -> str:
    """A number without an interval: three digits, from 1,000 on a whole number; `-` for None."""
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= THOUSAND else f"{value:.3g}"


def plain_percent(value: float | None, *, sign: bool = False) -> str:
    """A share in percent without an interval; `-` for None."""
    return "-" if value is None else f"{value:+.1%}" if sign else f"{value:.1%}"


def size(count: float) -> str:
    """A number of bytes with three digits and its unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < THOUSAND:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{plain(count)} TB"


def times(over: float | None, under: float | None) -> str:
    """The ratio of `over` to `under`, with two decimals; `-` where one of them is None or 0."""
    return f"{over / under:.2f}" if over and under else "-"


def _with_interval(e: "Estimate", form: Callable[[float], str]) -> str:
    if e.value is None:
        return "-"
    return form(e.value) if e.low is None or e.high is None else f"{form(e.value)} [{form(e.low)}, {form(e.high)}]"
