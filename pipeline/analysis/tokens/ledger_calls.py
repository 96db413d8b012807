"""Sampled and read tokens of the calls of a run, added up by what tells calls apart. What they were for is the ledger's business."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pipeline.analysis.compiled import compiled
from pipeline.analysis.time.calls import Calls, whole
from pipeline.analysis.time.outline import Outline
from pipeline.analysis.time.timeline import Array, Names

FAILED = 3
"""In the place of a chain's status, of an attempt that was not answered."""
GUIDES, EARLY, LATER = range(3)
"""Where in its chain a call stands: before the first step, among the first steps that its stage writes by itself, behind them."""


class CallKey(NamedTuple):
    """What calls are told apart by."""

    status: int
    """Of their chain: `FINISHED`, `LOST` or `OPEN`; of attempts that were not answered `FAILED`."""
    engine: str
    stage: str
    purpose: str
    """What the calls were for: `guide`, `draft`, `judge`, `write` or `answer`."""
    place: int
    """`GUIDES`, `EARLY` or `LATER`."""


class CallSums(NamedTuple):
    """Of calls that were answered."""

    sampled: int
    ended: int
    """Candidates that ended with an end-of-sequence token."""
    read: int
    """Prompt tokens."""
    cached: int


class CallTokens:
    """Looks at calls. `first_steps`: by stage, how many first steps it writes by itself. `fast`: compiled."""

    columns: tuple[str, ...] = (
        "purpose",
        "step_index",
        "input_tokens",
        "cached_input_tokens",
        "output_tokens",
        "eos_tokens",
    )

    def __init__(self, outline: Outline, first_steps: Mapping[str, int], *, fast: bool) -> None:
        self._outline, self._first_steps, self._purposes = outline, first_steps, Names()
        self._tally = tally if fast else tally.py_func  # type: ignore[attr-defined]
        self.sums: dict[CallKey, CallSums] = {}
        self.failed: Counter[str] = Counter()
        """Attempts that failed, by engine."""
        self.retried: Counter[str] = Counter()
        """Sampled tokens that the rows of those tell of."""

    def add(self, calls: Calls) -> None:
        """Look at some calls."""
        table, engines = calls.table, self._outline.engines
        purpose = self._purposes.codes(whole(table, "purpose"))
        first = np.array([self._first_steps.get(stage, 0) for stage in calls.stages], np.int64)
        sums = np.zeros((4, len(engines), len(calls.stages), len(self._purposes), 3, 5), np.int64)
        numbers = tuple(whole(table, f"{name}_tokens").to_numpy() for name in ("output", "eos", "input", "cached_input"))
        codes = (self._outline.chains.status, calls.chain, calls.engine, calls.stage, purpose)
        self._tally(codes, first, whole(table, "step_index").to_numpy(), calls.failed, numbers, sums)
        names = (range(4), engines, calls.stages, list(self._purposes), range(3))
        for place in zip(*(each.tolist() for each in np.nonzero(sums[..., 0])), strict=True):
            self._enter(CallKey(*(each[at] for each, at in zip(names, place, strict=True))), sums[place])

    def _enter(self, key: CallKey, sums: Array) -> None:
        count, *more = sums.tolist()
        if key.status == FAILED:
            self.failed[key.engine] += count
            self.retried[key.engine] += more[0]
        else:
            self.sums[key] = CallSums(*map(sum, zip(self.sums.get(key, (0, 0, 0, 0)), more, strict=True)))


@compiled
def tally(codes: Any, first: Array, step: Array, failed: Array, numbers: Any, sums: Array) -> None:
    """Add calls to `sums`: by status, engine, stage, purpose and place their number and what `CallSums` holds."""
    status, chains, engines, stages, purposes = codes
    sampled, ended, read, cached = numbers
    for row in range(len(step)):
        place = GUIDES if step[row] == 0 else EARLY if step[row] <= first[stages[row]] else LATER
        into = sums[FAILED if failed[row] else status[chains[row]], engines[row], stages[row], purposes[row], place]
        into[0] += 1
        into[1] += sampled[row]
        into[2] += ended[row]
        into[3] += read[row]
        into[4] += cached[row]
