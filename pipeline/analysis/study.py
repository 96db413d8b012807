"""All analyses of the calls table, from one reading of it: a run folder enters, one `Analysis` leaves."""

from pathlib import Path

from msgspec import Struct

from pipeline.analysis.ledger import Ledger, LedgerAccumulator
from pipeline.analysis.time.by_replica import ByReplicaAccumulator, ReplicaFigures
from pipeline.analysis.time.calls import accumulate, is_long
from pipeline.analysis.time.critical_path import CriticalPath, CriticalPathAccumulator
from pipeline.analysis.time.latency import LatencyAccumulator, Percentiles
from pipeline.analysis.time.occupancy import BINS, Occupancy, OccupancyAccumulator
from pipeline.analysis.time.outline import Outline
from pipeline.analysis.time.stays import read_stays


class Analysis(Struct, frozen=True, kw_only=True):
    """Where time and tokens of a run went."""

    occupancy: Occupancy
    critical_path: CriticalPath
    ledger: Ledger
    latencies: dict[str, dict[str, Percentiles]]
    """Percentiles by stage and by quantity, one of `latency.QUANTITIES`."""
    replicas: tuple[ReplicaFigures, ...]
    """The replicas by their numbers; empty where the run has fewer than two."""


def analyse(run: Path, bins: int = BINS) -> Analysis:
    """Analyse the run folder `run`, with time divided into `bins`; raises `InputError` when that has no trace that can be read."""
    times, path, tokens, latencies, replicas = accumulate(run, lambda outline: _accumulators(run, outline, bins))
    occupancy = times.result()
    return Analysis(
        occupancy=occupancy,
        critical_path=path.result(),
        ledger=tokens.result(),
        latencies=latencies.result(),
        replicas=replicas.result(occupancy),
    )


def _accumulators(
    run: Path, outline: Outline, bins: int
) -> tuple[OccupancyAccumulator, CriticalPathAccumulator, LedgerAccumulator, LatencyAccumulator, ByReplicaAccumulator]:
    long, stays = is_long(run), read_stays(run, outline)
    return (
        OccupancyAccumulator(outline, bins, long=long, stays=stays),
        CriticalPathAccumulator(outline, long=long),
        LedgerAccumulator(run, outline),
        LatencyAccumulator(),
        ByReplicaAccumulator(run, outline, stays),
    )
