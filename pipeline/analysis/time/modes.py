"""The modes of chains over time: a run folder enters; how many chains were in each mode and how fast they wrote, in bins, leaves.

A chain is in the mode of a step from the commit of the step before it until its own; the tokens of a step are spread evenly over that time.
"""

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.analysis.resources import replica_count
from pipeline.analysis.time.work import Axis
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile

MODES = ("speculative", "direct")


class ModeTime(Struct, frozen=True, kw_only=True):
    """What was done in one mode; the arrays have one element for each bin."""

    chains: Array
    """Chains in the mode, averaged over the bin."""
    tokens_per_s: Array
    """Tokens of thoughts that they committed in a second."""
    steps: int
    tokens: int
    chain_s: float
    """Seconds that chains spent in the mode, added up over the chains."""


class ChangeAt(Struct, frozen=True, kw_only=True):
    """A decision of the run's control, as `run.json` has it."""

    at_s: float
    """Seconds since the run began."""
    what: str
    speculating: int
    live: int
    speculative: float | None
    """Expected thought tokens a second of all live chains together, if as many speculate as was decided about."""
    direct: float | None
    """The same if none speculates."""


class ModesOverTime(Struct, frozen=True, kw_only=True):
    """The modes of a run's chains over time."""

    edges_s: Array
    """Seconds since the run began, without pauses: the edges of the bins."""
    modes: dict[str, ModeTime]
    """By mode, one of `MODES`."""
    changes: tuple[ChangeAt, ...]
    """In the order of time."""
    replicas: int = 1
    """How many controls decided, each about the chains of its replica alone; 1 where the run has one process."""


class _Bin(Struct, frozen=True):
    mode: str
    bin: int
    chain_s: float
    tokens: float


class _Total(Struct, frozen=True):
    mode: str
    steps: int
    tokens: int
    chain_s: float


def modes_over_time(db: Query, run: RunFile, bins: int) -> ModesOverTime | None:
    """The modes of a run over time in `bins` bins; None if its chains are not switched, or no step is there."""
    last = db.scalar("SELECT max(end_unix_ns) FROM steps")
    if run.plan.speculate != "auto" or run.started is None or last is None:
        return None
    axis = Axis(run.started, run.pauses)
    edges = np.linspace(0.0, max(float(axis.seconds(last)), 1e-9), bins + 1)
    width = edges[-1] / bins
    db.execute(f"""
        CREATE OR REPLACE TEMP VIEW moded AS
        SELECT mode, len(step_token_ids) AS tokens, {axis.sql("start_unix_ns")} / 1e9 AS start,
               greatest({axis.sql("end_unix_ns")} / 1e9, start + 1e-9) AS "end"
        FROM steps WHERE mode IN {MODES}""")
    chain_s, tokens = ({mode: np.zeros(bins) for mode in MODES} for _ in range(2))
    for each in db.rows(_BINS.format(width=width, last=bins - 1), _Bin):
        chain_s[each.mode][each.bin], tokens[each.mode][each.bin] = each.chain_s, each.tokens
    totals = {each.mode: each for each in db.rows(_TOTALS, _Total)}
    changes = tuple(
        ChangeAt(
            at_s=float(axis.seconds(change.unix_ns)),
            what=change.what,
            speculating=change.speculating,
            live=change.live,
            speculative=change.speculative,
            direct=change.direct,
        )
        for change in sorted(run.mode_changes, key=lambda change: change.unix_ns)
    )
    modes = {
        mode: ModeTime(
            chains=chain_s[mode] / width,
            tokens_per_s=tokens[mode] / width,
            steps=total.steps,
            tokens=total.tokens,
            chain_s=total.chain_s,
        )
        for mode in MODES
        for total in [totals.get(mode, _Total(mode, 0, 0, 0.0))]
    }
    return ModesOverTime(edges_s=edges, modes=modes, changes=changes, replicas=replica_count(run))


_BINS = """
SELECT mode, bin, sum(inside) AS chain_s, sum(tokens * inside / ("end" - start)) AS tokens
FROM (
    SELECT *, greatest(least("end", (bin + 1) * {width}) - greatest(start, bin * {width}), 0) AS inside
    FROM (
        SELECT *, unnest(range(greatest(floor(start / {width}), 0)::BIGINT, least(floor("end" / {width}), {last})::BIGINT + 1)) AS bin
        FROM moded))
GROUP BY mode, bin
"""
_TOTALS = """
SELECT mode, count(*) AS steps, sum(tokens)::BIGINT AS tokens, sum("end" - start) AS chain_s FROM moded GROUP BY mode
"""
