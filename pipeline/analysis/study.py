"""All analyses of where time and tokens of a run went: a run folder enters, one `Analysis` leaves."""

from pathlib import Path

from msgspec import Struct

from pipeline.analysis.ledger import Ledger, read_ledger
from pipeline.analysis.time.latency import Percentiles, latencies
from pipeline.analysis.time.occupancy import BINS, Occupancy, ReplicaFigures, by_replica, occupancy
from pipeline.analysis.time.work import RunTimes, read_work
from pipeline.store.query import Query


class Analysis(Struct, frozen=True, kw_only=True):
    """Where time and tokens of a run went."""

    occupancy: Occupancy
    ledger: Ledger
    latencies: dict[str, dict[str, Percentiles]]
    """Percentiles by stage and by quantity, one of `latency.QUANTITIES`."""
    replicas: tuple[ReplicaFigures, ...]
    """The replicas by their numbers; empty where the run has fewer than two."""


def analyse(run: Path, bins: int = BINS) -> Analysis:
    """Analyse the run folder `run`, with time divided into `bins`; raises `InputError` when that has no tables that can be read."""
    with Query(run) as db:
        return analyse_work(read_work(db), bins)


def analyse_work(work: RunTimes, bins: int = BINS) -> Analysis:
    """The same of a run that is open."""
    over_time = occupancy(work, bins)
    return Analysis(
        occupancy=over_time,
        ledger=read_ledger(work.db),
        latencies=latencies(work.db),
        replicas=by_replica(work, over_time),
    )
