"""What takes the rows of a run: the contract of a run folder or the memory of a caller, and sinks that keep nothing. Never waits.

`Tee` passes rows on to several sinks. Two look at them for what a person should know at once: `FirstRows` decides whether the rest would
be paid for in vain, `Setbacks` knows why nothing happens.
"""

import re
from collections.abc import Callable
from typing import Protocol

from pipeline.errors import EngineDead, RunError
from pipeline.runtime.retry import CallCancelled
from pipeline.store.rows import CallRow, ChainRow, StepRow

FIRST = 32
"""Verdicts, or chains, at the beginning of a session that must all be alike for it to stop."""
QUIET_NS = 10_000_000_000
"""Nanoseconds after which an engine that has answered before counts as one that answers nothing."""


class RowSink(Protocol):
    """Takes the rows of a run. Adding a row never waits; only `room`, before a new chain, may."""

    def call(self, row: CallRow) -> None:
        """Add the row of one attempt at a call."""

    def step(self, row: StepRow) -> None:
        """Add the row of one committed step."""

    def chain(self, row: ChainRow) -> None:
        """Add the row of one chain that is over, after the rows of its calls and steps."""

    async def room(self) -> None:
        """Wait until there is room for the rows of one more chain; raises `RunError` where rows can no longer be kept."""


class Tee:
    """A `RowSink` that passes every row on to several others."""

    def __init__(self, *sinks: RowSink) -> None:
        self._sinks = sinks

    def call(self, row: CallRow) -> None:
        for sink in self._sinks:
            sink.call(row)

    def step(self, row: StepRow) -> None:
        for sink in self._sinks:
            sink.step(row)

    def chain(self, row: ChainRow) -> None:
        for sink in self._sinks:
            sink.chain(row)

    async def room(self) -> None:
        for sink in self._sinks:
            await sink.room()


class NoRows:
    """A `RowSink` that keeps nothing, for those that look at some rows only."""

    def call(self, row: CallRow) -> None: ...

    def step(self, row: StepRow) -> None: ...

    def chain(self, row: ChainRow) -> None: ...

    async def room(self) -> None: ...


class FirstRows(NoRows):
    """Raises `RunError` where no option had any probability in the first verdicts, or where the first chains met one and the same error."""

    def __init__(self) -> None:
        self._verdicts = self._chains = 0
        self._in_vain = True
        """True as long as no option had any probability."""
        self._met: set[tuple[str | None, str]] = set()
        """Errors of the chains that are over, each with its words."""

    def step(self, row: StepRow) -> None:
        if self._verdicts == FIRST or row.score_mass is None or not row.score_probs:
            return  # nothing was chosen among options
        self._verdicts += 1
        self._in_vain = self._in_vain and not row.score_mass
        if self._in_vain and self._verdicts == FIRST:
            asked = f"stage {row.verify_stage!r}, whose options are {', '.join(map(repr, row.score_options))}"
            why = f"no option had any probability in the first {FIRST} verdicts of {asked}: every draft is paid for and rejected"
            raise RunError(f"{why}; read its question (`pipeline graph prompt`), or let another engine judge")

    def chain(self, row: ChainRow) -> None:
        if self._chains == FIRST or row.stop_reason == "cancelled" or (row.error_type and not row.error_stage):
            return  # a row without a problem met no stage, and the next one may be well
        self._chains += 1
        self._met.add((row.error_type, re.sub(r"\d+", "0", (row.error_message or "").replace(row.chain_id, ""))))
        if self._chains == FIRST and len(self._met) == 1 and row.error_type:
            alike = f"the first {FIRST} chains all failed in stage {row.error_stage!r} with one error: {row.error_message}"
            raise RunError(f"{alike}; mend that, and resume with --retry-failed")


class _Streak:
    """Failures of one engine since it answered last."""

    def __init__(self, first: CallRow) -> None:
        self.since_ns, self.latest, self.told = first.end_unix_ns, first, False
        self.chains: set[str] = set()
        """The live chains whose calls have failed."""

    @property
    def sentence(self) -> str:
        """Why nothing happens."""
        row = self.latest
        return f"{row.error_message or row.error_type}; its calls wait for their next attempt, number {row.attempt + 2}"


class Setbacks(NoRows):
    """Knows why engines answer nothing while their calls are repeated, and tells it at once where one has not answered yet."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._answered: set[str] = set()
        self._streaks: dict[str, _Streak] = {}

    def reasons(self, now_ns: int) -> list[str]:
        """A sentence for each engine that answers nothing; `now_ns` is the time since 1970."""
        found = [each for each in [*self._streaks.values()] if each.chains]
        return [each.sentence for each in found if each.told or now_ns - each.since_ns >= QUIET_NS]

    def call(self, row: CallRow) -> None:
        if row.error_type is None:
            self._answered.add(row.engine)
            self._streaks.pop(row.engine, None)
            return
        if row.error_type in (CallCancelled.__name__, EngineDead.__name__):
            return
        if (streak := self._streaks.get(row.engine)) is None:
            streak = self._streaks[row.engine] = _Streak(row)
        streak.latest = row
        streak.chains.add(row.chain_id)
        quiet = row.engine not in self._answered or row.end_unix_ns - streak.since_ns >= QUIET_NS
        if quiet and row.attempt and not streak.told:  # not at the first attempt: a final refusal has no second
            streak.told = True
            self._tell(streak.sentence)

    def chain(self, row: ChainRow) -> None:
        for streak in self._streaks.values():
            streak.chains.discard(row.chain_id)
