"""The modes of chains over time: a run folder enters; how many chains were in each mode and how fast they wrote, in bins, leaves.

A chain is in the mode of a step from the commit of the step before it until its own; the tokens of a step are spread evenly over that
time. The steps table is streamed; nothing is held of a step.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.analysis.resources import replica_count
from pipeline.analysis.time.outline import Axis
from pipeline.analysis.time.timeline import Array
from pipeline.store.read import read_batches
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


def modes_over_time(folder: Path, run: RunFile, bins: int) -> ModesOverTime | None:
    """The modes of the run in `folder` over time in `bins` bins; None if its chains are not switched, or no step is there.

    Raises `InputError` where the steps cannot be read.
    """
    if run.plan.speculate != "auto" or run.started is None or (last := _last(folder)) is None:
        return None
    axis = Axis(run.started, run.pauses)
    edges = np.linspace(0.0, max(float(axis.seconds(last)), 1e-9), bins + 1)
    sums = {mode: _Sums(edges) for mode in MODES}
    for batch in read_batches(folder, "steps", ["mode", "start_unix_ns", "end_unix_ns", "step_token_ids"]):
        for mode, each in sums.items():
            each.add(batch.filter(pc.equal(batch.column("mode"), mode).fill_null(False)), axis)
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
    modes = {mode: each.result() for mode, each in sums.items()}
    return ModesOverTime(edges_s=edges, modes=modes, changes=changes, replicas=replica_count(run))


def _last(folder: Path) -> int | None:
    """When the last step was committed, ns UTC; None without steps."""
    ends = [pc.max(batch.column("end_unix_ns")).as_py() for batch in read_batches(folder, "steps", ["end_unix_ns"]) if batch.num_rows]
    return max(ends, default=None)


class _Sums:
    """Adds up the steps of one mode."""

    def __init__(self, edges: Array) -> None:
        self._edges = edges
        self._chain_s, self._tokens = np.zeros(len(edges)), np.zeros(len(edges))
        """Seconds of chains and tokens before each edge."""
        self._steps = self._all = 0

    def add(self, batch: pa.RecordBatch, axis: Axis) -> None:
        """Add the steps of `batch`."""
        if not batch.num_rows:
            return
        start, end = (axis.seconds(batch.column(name).to_numpy()) for name in ("start_unix_ns", "end_unix_ns"))
        end = np.maximum(end, start + 1e-9)
        tokens = pc.list_value_length(batch.column("step_token_ids")).to_numpy().astype(float)
        self._chain_s += passed(self._edges, start, end, np.ones(len(start)))
        self._tokens += passed(self._edges, start, end, tokens / (end - start))
        self._steps += len(start)
        self._all += int(tokens.sum())

    def result(self) -> ModeTime:
        """What all steps make together."""
        width = np.diff(self._edges)
        return ModeTime(
            chains=np.maximum(np.diff(self._chain_s), 0.0) / width,
            tokens_per_s=np.maximum(np.diff(self._tokens), 0.0) / width,
            steps=self._steps,
            tokens=self._all,
            chain_s=float(self._chain_s[-1]),
        )


def passed(edges: Array, start: Array, end: Array, rate: Array) -> Array:
    """For each edge, what intervals that gather `rate` a second have gathered by then, added up over the intervals."""
    return _since(edges, start, rate) - _since(edges, end, rate)


def _since(edges: Array, moments: Array, rate: Array) -> Array:
    """For each edge the sum of `rate * (edge - moment)` over the moments before it."""
    order = np.argsort(moments, kind="stable")
    moments, rate = moments[order], rate[order]
    before = np.searchsorted(moments, edges)
    rates, sums = (np.concatenate([[0.0], np.cumsum(values)]) for values in (rate, rate * moments))
    return np.asarray(edges * rates[before] - sums[before])
