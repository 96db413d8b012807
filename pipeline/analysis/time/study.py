"""All analyses of where time and tokens of a run went: a run folder enters, one `Analysis` leaves."""

from pathlib import Path

from msgspec import Struct

from pipeline.analysis.ledger import Ledger, read_ledger
from pipeline.analysis.time.occupancy import BINS, Occupancy, occupancy
from pipeline.analysis.time.work import RunTimes, read_work
from pipeline.store.query import Query

COLUMNS = {
    "wait": "client_wait_s",
    "queue": "queue_time_s",
    "prefill": "prefill_time_s",
    "decode": "decode_time_s",
    "first_token": "time_to_first_token_s",
    "e2e": "greatest(end_unix_ns - submit_unix_ns, 0) / 1e9",
    "per_output_token": "time_per_output_token_s",
}
"""The parts of a call's time, and the SQL of each. `wait`: in the lane or before a barrier; of a repeated attempt, from the failure until
it was sent again. `queue`, `prefill`, `decode`, `first_token`: by the engine's clock, where it measures them. `e2e`: from being sent
until answered. `per_output_token`: decode time for each token after the first."""
QUANTITIES = tuple(COLUMNS)


class Percentiles(Struct, frozen=True, kw_only=True):
    """Mean, maximum and percentiles of `count` values, in seconds. The p90 is the least value that 90 % of the values do not exceed."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class StageLatencies(Struct, frozen=True):
    """The calls of one stage."""

    stage: str
    parts: dict[str, Percentiles | None]
    """By quantity; null where no call has it."""


class Analysis(Struct, frozen=True, kw_only=True):
    """Where time and tokens of a run went."""

    occupancy: Occupancy
    ledger: Ledger
    latencies: dict[str, dict[str, Percentiles]]
    """Percentiles by stage and by quantity, one of `QUANTITIES`."""


def analyse(run: Path) -> Analysis:
    """Analyse the run folder `run`; raises `InputError` when that has no tables that can be read."""
    with Query(run) as db:
        return analyse_work(read_work(db))


def analyse_work(work: RunTimes, bins: int = BINS) -> Analysis:
    """The same of a run that is open."""
    over_time = occupancy(work, bins)
    return Analysis(
        occupancy=over_time,
        ledger=read_ledger(work.db),
        latencies=latencies(work.db),
    )


def latencies(db: Query) -> dict[str, dict[str, Percentiles]]:
    """Percentiles by stage and quantity, without quantities that no call has."""
    parts = ", ".join(f"{quantity}: {_percentiles(column)}" for quantity, column in COLUMNS.items())
    rows = db.rows(f"SELECT stage, {{{parts}}} AS parts FROM calls WHERE error_type IS NULL GROUP BY stage ORDER BY stage", StageLatencies)
    return {row.stage: {quantity: one for quantity, one in row.parts.items() if one is not None} for row in rows}


def _percentiles(column: str) -> str:
    """The SQL of the `Percentiles` of a column, as a struct."""
    at = {name: f"quantile_disc({column}, [0.5, 0.9, 0.99])[{place}]" for place, name in enumerate(("p50", "p90", "p99"), 1)}
    fields = {"count": f"count({column})", "mean": f"avg({column})", **at, "max": f"max({column})"}
    return f"CASE WHEN count({column}) > 0 THEN {{{', '.join(f'{name}: {value}' for name, value in fields.items())}}} END"
