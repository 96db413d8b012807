"""Everything that the calls table tells of a run, from one reading of it: a run folder enters, one `Analysis` leaves."""

from pathlib import Path

from msgspec import Struct

from pipeline.analysis.time.calls import is_long, observe
from pipeline.analysis.time.critical_path import CriticalPath, Walker
from pipeline.analysis.time.latency import Percentiles, Stopwatch
from pipeline.analysis.time.occupancy import BINS, Occupancy, Watch
from pipeline.analysis.time.outline import Outline
from pipeline.analysis.tokens.ledger import Clerk, Ledger


class Analysis(Struct, frozen=True, kw_only=True):
    """Where time and tokens of a run went."""

    occupancy: Occupancy
    critical_path: CriticalPath
    ledger: Ledger
    latencies: dict[str, dict[str, Percentiles]]
    """By stage and quantity."""


def analyse(run: Path, bins: int = BINS) -> Analysis:
    """The analysis of the run folder `run`; raises `InputError` when that has no trace that can be read."""
    fast = is_long(run)

    def observers(outline: Outline) -> tuple[Watch, Walker, Clerk, Stopwatch]:
        return Watch(outline, bins, fast=fast), Walker(outline, fast=fast), Clerk(run, outline, fast=fast), Stopwatch()

    watch, walker, clerk, stopwatch = observe(run, observers)
    return Analysis(
        occupancy=watch.occupancy(), critical_path=walker.critical_path(), ledger=clerk.ledger(), latencies=stopwatch.latencies()
    )
