"""The contract of what takes the rows of a run: a run folder, the memory of a caller, or both."""

from typing import Protocol

from pipeline.store.events import CallRow, ChainRow, StepRow


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
