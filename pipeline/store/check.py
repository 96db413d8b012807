"""Checking a run folder: are its files those of the run, and does each chain have the calls and steps that it rests on?

Nothing is written. A folder that is not whole is refused in one sentence; what a kill leaves is no flaw.
"""

from pathlib import Path

from pipeline.errors import InputError
from pipeline.store.parts import REMEDY
from pipeline.store.query import Query

SHOWN = 5
"""Chains that are named in a sentence."""
TORN = """
    WITH c AS (SELECT chain_id, count(*) AS n, max(call_index) + 1 AS top FROM calls GROUP BY chain_id),
    s AS (
        SELECT chain_id, count(*) FILTER (step_index > 0) AS n, max(step_index) AS top, max(calls) AS needed FROM steps GROUP BY chain_id
    ),
    e AS (
        SELECT chain_id, count(*) AS n, max(calls) FILTER (stop_reason <> 'cancelled') AS calls,
            max(steps) FILTER (stop_reason <> 'cancelled') AS steps, bool_or(error_type = 'ResumeMismatch') AS mismatched
        FROM chains GROUP BY chain_id
    )
    SELECT chain_id FROM e FULL JOIN c USING (chain_id) FULL JOIN s USING (chain_id)
    WHERE NOT coalesce(e.mismatched, false) AND (
        e.n > 1 OR c.n <> c.top OR s.n <> s.top OR s.needed > coalesce(c.n, 0) OR coalesce(c.n, 0) <> e.calls OR coalesce(s.n, 0) <> e.steps
    )
    ORDER BY chain_id
"""
"""Chains whose calls or steps have a gap, whose steps rest on calls that are not there, or whose row in `chains` counts others.

Guidance, step 0, is not counted. A chain that failed of a resumed step that came out differently has steps of both.
"""


def check_chains(folder: Path) -> None:
    """Raise `InputError` where files of a run folder are none of the run's, or rows are missing or there twice."""
    if torn := torn_chains(folder):
        named = ", ".join(torn[:SHOWN]) + (", ..." if len(torn) > SHOWN else "")
        what = f"calls or steps of {len(torn):,} chains are missing or are there twice ({named})"
        raise InputError(str(folder), f"{what}; a file of the run is damaged or was removed: {REMEDY}")


def torn_chains(folder: Path) -> list[str]:
    """The ids of chains whose rows in the three tables do not fit together. Raises `InputError` where a table cannot be read."""
    with Query(folder) as query:
        return [str(chain) for chain in query.columns(TORN)["chain_id"]]
