"""A sweep as tables: points enter, tables with medians over the repeats leave, ready to print. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from pipeline.analysis.facts import of_answers, of_facts, resources
from pipeline.analysis.points import Point, Spread, baselines, called, crossing, curves, spread
from pipeline.analysis.tables import Table, plain, plain_percent, times

Curves = dict[str, dict[int, list[Point]]]
COLUMNS = (
    "batch size",
    "problems/s",
    "of {}",
    "= tokens",
    "x rate",
    "before the tail",
    "tail s",
    "chain p50 s",
    "accepted",
    "accuracy",
    "busy",
)
NOTE = (
    "Medians over the repeats, in brackets their least and greatest. What a curve has of the baseline's problems/s is tokens, how many "
    "times shorter its text is, times rate, its kept tokens/s over the baseline's. `before the tail`: problems/s while as many chains live "
    "as the batch size. `busy`: share of the time in which a call was at the engine. Chains that failed count as wrong, and a run with "
    "failed chains has no speed."
)


def sweep_tables(points: Sequence[Point]) -> tuple[Table, ...]:
    """A table for each curve, the target alone first, and one that compares the engines files where there are several."""
    found = curves(points)
    against = baselines(found)
    notes = [NOTE, *[""] * len(found)]
    tables = (_curve(name, found, against.get(name, name), note) for name, note in zip(found, notes, strict=False))
    return (*tables, *_placements(found, against))


def crossings(points: Sequence[Point]) -> list[str]:
    """A sentence for each curve: where it is faster than the target alone, and where not; one for each with failed chains, which has no
    speed there, and for each that had other hardware than its baseline; and how far simulated speeds may be off."""
    found = curves(points)
    against = baselines(found)
    compared = ((name, called(alone, found), crossing(found[name], found[alone])) for name, alone in against.items())
    said = [f"{name}: {where.sentence(alone)}{_unlike(found[name])}." for name, alone, where in compared if where is not None]
    return [*said, *_failures(found), *_hardware(found, against), *_simulated(points)]


def _is_baseline(curve: Mapping[int, Sequence[Point]]) -> bool:
    return any(point.baseline for points in curve.values() for point in points)


def _unlike(curve: Mapping[int, Sequence[Point]]) -> str:
    """How it differs from the target alone, to be shown with a verdict."""
    clauses = dict.fromkeys(clause for points in curve.values() for point in points for clause in point.unlike)
    return f" (not alike: {'; '.join(clauses)})" if clauses else ""


def _failures(found: Curves) -> Iterator[str]:
    for name, curve in found.items():
        lost = {size: sum(point.failed for point in points if point.timed_s is None) for size, points in curve.items()}
        if clauses := [f"{count} at batch size {size}" for size, count in lost.items() if count]:
            yield f"{name}: chains failed, {', '.join(clauses)}: it is not compared there."


def _simulated(points: Sequence[Point]) -> Iterator[str]:
    if any(point.simulated for point in points):
        yield of_facts([facts for point in points for facts in point.facts.values()])


def _hardware(found: Curves, against: Mapping[str, str]) -> Iterator[str]:
    for name, alone in against.items():
        ours, theirs = (resources(next(iter(found[curve].values()))[0].facts.values()) for curve in (name, alone))
        if ours.amounts != theirs.amounts:
            yield f"{name} had {ours.label}, {called(alone, found)} {theirs.label}."


def _curve(name: str, found: Curves, alone: str, note: str) -> Table:
    curve = found[name]
    over = crossing(curve, found[alone])
    ratios = [over.ratios, over.tokens, over.rates] if over else [{}, {}, {}]
    rows = tuple((str(size), *_cells(points, [each.get(size) for each in ratios])) for size, points in curve.items())
    columns = tuple(column.format(_short(alone, found)) for column in COLUMNS)
    return Table(_titled(name, curve), columns, rows, note)


def _short(alone: str, found: Curves) -> str:
    """What a baseline is called at the head of a column."""
    return called(alone, found).removeprefix("the ")


def _titled(name: str, curve: dict[int, list[Point]]) -> str:
    simulated = " (simulated)" if any(point.simulated for points in curve.values() for point in points) else ""
    return f"{name}{simulated}"


def _cells(points: Sequence[Point], ratios: Sequence[Spread | None]) -> tuple[str, ...]:
    roles = sorted({role for point in points for role in point.busy_share})
    busy = (spread(point.busy_share.get(role) for point in points) for role in roles)
    accuracy = of_answers(plain_percent(_median(spread(point.accuracy for point in points))), points[0].answers)
    failed = sum(point.failed for point in points)
    return (
        ranged(spread(point.problems_per_s for point in points)),
        *map(ranged, ratios),
        ranged(spread(point.steady_problems_per_s for point in points)),
        ranged(spread(None if point.timed_s is None else point.tail_s for point in points)),
        ranged(spread(point.chain_p50_s for point in points)),
        plain_percent(_median(spread(point.acceptance_rate for point in points))),
        f"{accuracy} ({failed} chains failed)" if failed else accuracy,
        " ".join(f"{role} {plain_percent(_median(share))}" for role, share in zip(roles, busy, strict=True)),
    )


def ranged(figure: Spread | None) -> str:
    """A median and, where the printed values of the repeats differ, the least and greatest in brackets."""
    if figure is None:
        return "-"
    value, low, high = map(plain, (figure.median, figure.low, figure.high))
    return value if low == high else f"{value} [{low}, {high}]"


def _median(figure: Spread | None) -> float | None:
    return figure.median if figure else None


def _placements(found: Curves, against: Mapping[str, str]) -> Iterator[Table]:
    """Where there are several engines files: each system on all of them, over the target alone on the same and on the best of them."""
    sizes = {size for curve in found.values() for size in curve}
    best = {size: max((_rate(found[alone].get(size, ())) for alone in set(against.values())), default=0.0) for size in sizes}
    alike: dict[tuple[str, int], list[tuple[str, ...]]] = {}
    for name, alone in against.items():
        for size, points in found[name].items():
            system, rate = points[0].curve.replace(f" on {points[0].engines}", ""), _rate(points)
            cells = (points[0].engines, ranged(spread(point.problems_per_s for point in points)))
            over = (times(rate, _rate(found[alone].get(size, ())) or None), times(rate, best[size] or None))
            alike.setdefault((system, size), []).append((*cells, *over))
    if len({points[0].engines for name in against for points in found[name].values()}) > 1:
        rows = tuple((system, str(size), *cells) for (system, size), each in sorted(alike.items()) for cells in each)
        columns = ("system", "batch size", "engines", "problems/s", "of target alone", "of the best target alone")
        yield Table("The same system on different engines", columns, rows)


def _rate(points: Sequence[Point]) -> float:
    return _median(spread(point.problems_per_s for point in points)) or 0.0
