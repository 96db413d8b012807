"""How long calls took, by stage and part of their time: the tables of a run enter, percentiles leave."""

from msgspec import Struct

from pipeline.store.query import Query

LATENCIES = """
SELECT stage, quantity, count, mean, p[1] AS p50, p[2] AS p90, p[3] AS p99, max FROM (
    SELECT stage, quantity, count(*) AS count, avg(seconds) AS mean, quantile_disc(seconds, [0.5, 0.9, 0.99]) AS p, max(seconds) AS max
    FROM (UNPIVOT (
        SELECT stage, client_wait_s AS wait, queue_time_s AS queue, prefill_time_s AS prefill, decode_time_s AS decode,
               time_to_first_token_s AS first_token, greatest(end_unix_ns - submit_unix_ns, 0) / 1e9 AS e2e,
               time_per_output_token_s AS per_output_token
        FROM calls WHERE error_type IS NULL) ON COLUMNS(* EXCLUDE (stage)) INTO NAME quantity VALUE seconds)
    GROUP BY stage, quantity)
ORDER BY stage, quantity
"""
QUANTITIES = ("wait", "queue", "prefill", "decode", "first_token", "e2e", "per_output_token")
"""The parts of a call's time. `wait`: in the lane or before a barrier; of a repeated attempt, from the failure until it was sent again.
`queue`, `prefill`, `decode`, `first_token`: by the engine's clock, where it measures them. `e2e`: from being sent until answered.
`per_output_token`: decode time for each token after the first."""


class Latency(Struct, frozen=True, kw_only=True):
    """Mean, maximum and percentiles of `count` calls, in seconds. The p90 is the least value that 90 % of the values do not exceed."""

    stage: str
    quantity: str
    """One of `QUANTITIES`."""
    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


def latencies(db: Query) -> list[Latency]:
    """The latencies of a run, but for quantities that no call of a stage has."""
    return db.rows(LATENCIES, Latency)
