"""All analyses of the calls table, from one reading of it: a run folder enters, one `Analysis` leaves."""

from pathlib import Path

from msgspec import Struct

from pipeline.analysis.ledger import Ledger, LedgerAccumulator
from pipeline.analysis.time.calls import accumulate, is_long
from pipeline.analysis.time.critical_path import CriticalPath, CriticalPathAccumulator
from pipeline.analysis.time.latency import LatencyAccumulator, Percentiles
from pipeline.analysis.time.occupancy import BINS, Occupancy, OccupancyAccumulator
from pipeline.analysis.time.stays import read_stays


class Analysis(Struct, frozen=True, kw_only=True):
    """Where time and tokens of a run went."""

    occupancy: Occupancy
    critical_path: CriticalPath
    ledger: Ledger
    latencies: dict[str, dict[str, Percentiles]]
    """Percentiles by stage and by quantity, one of `latency.QUANTITIES`."""


def analyse(run: Path, bins: int = BINS) -> Analysis:
    """Analyse the run folder `run`, with time divided into `bins`; raises `InputError` when that has no trace that can be read."""
    long = is_long(run)
    times, path, tokens, latencies = accumulate(
        run,
        lambda outline: (
            OccupancyAccumulator(outline, bins, long=long, stays=read_stays(run, outline)),
            CriticalPathAccumulator(outline, long=long),
            LedgerAccumulator(run, outline),
            LatencyAccumulator(),
        ),
    )
    return Analysis(occupancy=times.result(), critical_path=path.result(), ledger=tokens.result(), latencies=latencies.result())
