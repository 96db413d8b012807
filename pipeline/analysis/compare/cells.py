"""What a table is, and how figures look in it. Pure."""

from collections.abc import Callable

from msgspec import Struct

from pipeline.analysis.quality.estimates import Estimate


class Table(Struct, frozen=True):
    """A table: what it answers, its columns, and rows of cells ready to print."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    """What to know when reading it."""


def percent(e: Estimate, *, sign: bool = False) -> str:
    """A share, or with `sign` a difference of shares or a change."""
    return _with_interval(e, lambda value: f"{value:+.1%}" if sign else f"{value:.1%}")


def number(e: Estimate, *, sign: bool = False) -> str:
    """Three digits, in full from 1,000 on."""
    return _with_interval(e, lambda value: f"{value:+.3g}" if sign else plain(value))


def reward(e: Estimate, *, sign: bool = False) -> str:
    """Three decimals."""
    return _with_interval(e, lambda value: f"{value:+.3f}" if sign else f"{value:.3f}")


def plain(value: float | None) -> str:
    """A number without an interval."""
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def plain_percent(value: float | None, *, sign: bool = False) -> str:
    """A share without an interval."""
    return "-" if value is None else f"{value:+.1%}" if sign else f"{value:.1%}"


def times(over: float | None, under: float | None) -> str:
    """How often one goes into the other."""
    return f"{over / under:.2f}" if over and under else "-"


def _with_interval(e: Estimate, form: Callable[[float], str]) -> str:
    if e.value is None:
        return "-"
    return form(e.value) if e.low is None or e.high is None else f"{form(e.value)} [{form(e.low)}, {form(e.high)}]"
