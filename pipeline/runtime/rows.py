"""Where the rows of a run go, whatever keeps them: a run folder, the memory of a caller, or both."""

from typing import Protocol

from pipeline.trace.events import CallRow, ChainRow, StepRow


class RowSink(Protocol):
    """What rows are dropped into. Dropping never waits; only `room`, before a new chain, may."""

    def call(self, row: CallRow) -> None:
        """Take one engine request."""

    def step(self, row: StepRow) -> None:
        """Take one committed step."""

    def chain(self, row: ChainRow) -> None:
        """Take one finished chain, after its calls and steps."""

    async def room(self) -> None:
        """Wait until there is room for the rows of one more chain; raises `RunError` where rows cannot be kept any more."""


class Tee:
    """Rows for several sinks."""

    def __init__(self, *sinks: RowSink) -> None:
        self._sinks = sinks

    def call(self, row: CallRow) -> None:
        """See `RowSink.call`."""
        for sink in self._sinks:
            sink.call(row)

    def step(self, row: StepRow) -> None:
        """See `RowSink.step`."""
        for sink in self._sinks:
            sink.step(row)

    def chain(self, row: ChainRow) -> None:
        """See `RowSink.chain`."""
        for sink in self._sinks:
            sink.chain(row)

    async def room(self) -> None:
        """See `RowSink.room`."""
        for sink in self._sinks:
            await sink.room()
