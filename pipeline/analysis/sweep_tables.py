"""A sweep as tables: points enter, tables with medians over the repeats leave, ready to print. Pure."""

from collections.abc import Iterator, Sequence

from pipeline.analysis.compare.cells import Table, plain, plain_percent, times
from pipeline.analysis.points import Point, Spread, crossing, curves, spread

COLUMNS = (
    "batch size",
    "problems/s",
    "of target alone",
    "before the tail",
    "tail s",
    "chain p50 s",
    "accepted",
    "accuracy",
    "busy",
    "/ limit",
)
NOTE = (
    "Medians over the repeats, in brackets their least and greatest. `before the tail`: problems/s while as many chains live as the batch "
    "size. `busy`: share of the time in which a call was at the engine. `/ limit`: wall time over that of the slower engine for the "
    "same calls alone, all ready at once, as many in flight as chains may live."
)
ABOVE_LIMIT = "Below 1: the replay gained nothing by having all calls at once, for example because prefixes did not stay in the cache."


def sweep_tables(points: Sequence[Point]) -> tuple[Table, ...]:
    """A table for each curve, the target alone first, then for each curve one in the form of SpecCoT's table 6."""
    found = curves(points)
    alone = found[next(iter(found))] if found else {}
    notes = [NOTE, *[""] * len(found)]
    return (*(_curve(name, found[name], alone, note) for name, note in zip(found, notes, strict=False)), *_table_6(found))


def crossings(points: Sequence[Point]) -> list[str]:
    """One sentence for each curve: where it is faster than the target alone, and where not."""
    found = curves(points)
    name, *others = found
    compared = ((other, crossing(found[other], found[name])) for other in others)
    return [f"{other}: {where.sentence}." for other, where in compared if where is not None]


def _curve(name: str, curve: dict[int, list[Point]], alone: dict[int, list[Point]], note: str) -> Table:
    over = crossing(curve, alone)
    ratios = over.ratios if over else {}
    rows = tuple((str(size), *_cells(points, ratios.get(size))) for size, points in curve.items())
    below = any(point.over_limit is not None and point.over_limit < 0.995 for points in curve.values() for point in points)
    return Table(_titled(name, curve), COLUMNS, rows, " ".join([note, ABOVE_LIMIT] if below else [note]).strip())


def _titled(name: str, curve: dict[int, list[Point]]) -> str:
    simulated = " (simulated)" if any(point.simulated for points in curve.values() for point in points) else ""
    return f"{name}{simulated}"


def _cells(points: Sequence[Point], ratio: Spread | None) -> tuple[str, ...]:
    roles = sorted({role for point in points for role in point.busy_share})
    busy = (spread(point.busy_share.get(role) for point in points) for role in roles)
    accuracy = spread(point.accuracy for point in points)
    return (
        ranged(spread(point.problems_per_s for point in points)),
        ranged(ratio),
        ranged(spread(point.steady_problems_per_s for point in points)),
        ranged(spread(point.tail_s for point in points)),
        ranged(spread(point.chain_p50_s for point in points)),
        plain_percent(_median(spread(point.acceptance_rate for point in points))),
        plain_percent(_median(accuracy)),
        " ".join(f"{role} {plain_percent(_median(share))}" for role, share in zip(roles, busy, strict=True)),
        plain(_median(spread(point.over_limit for point in points))),
    )


def ranged(figure: Spread | None) -> str:
    """A median and, where the printed values of the repeats differ, the least and greatest in brackets."""
    if figure is None:
        return "-"
    value, low, high = map(plain, (figure.median, figure.low, figure.high))
    return value if low == high else f"{value} [{low}, {high}]"


def _median(figure: Spread | None) -> float | None:
    return figure.median if figure else None


def _table_6(found: dict[str, dict[int, list[Point]]]) -> Iterator[Table]:
    """SpecCoT's table 6 for each curve: wall time, committed tokens/s and speed-up over the smallest batch size and the target alone."""
    alone = {size: points for name in list(found)[:1] for size, points in found[name].items()}
    for name, curve in list(found.items())[1:]:
        walls = {size: spread(point.wall_s for point in points) for size, points in curve.items()}
        first = _median(walls[min(walls)])
        rows = tuple(
            (
                str(size),
                ranged(walls[size]),
                ranged(spread(point.committed_tokens_per_s for point in points)),
                times(first, _median(walls[size])),
                times(_median(spread(point.wall_s for point in alone.get(size, ()))), _median(walls[size])),
            )
            for size, points in curve.items()
        )
        if len(rows) > 1:
            columns = ("batch size", "wall time s", "throughput, committed tokens/s", "speed-up", "over target alone")
            yield Table(f"{_titled(name, curve)}: in the form of SpecCoT's table 6", columns, rows)
