"""A run as OpenTelemetry spans: the run folder enters, spans leave for a server or a file, some hundred at a time.

Of the whole run only the ids of its steps are held, 8 bytes each: a call of which no step came, such as an answer, belongs to
its chain.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from opentelemetry.sdk.trace import ReadableSpan

from pipeline.export.sinks import Sink, check_endpoint, to_file, to_server
from pipeline.export.source import open_run
from pipeline.export.spans import Spans, columns
from pipeline.trace.events import CallRow, ChainRow, StepRow
from pipeline.trace.read import read_batches

__all__ = ["Sent", "check_endpoint", "export", "to_file", "to_server"]

BATCH = 512
"""Spans sent together."""
CALL = ("chain_id", "step_index", "call_index", "engine", "stage", "request_model", "submit_unix_ns", "end_unix_ns", "error_message")
STEP = ("chain_id", "step_index", "decision", "start_unix_ns", "end_unix_ns")
CHAIN = ("chain_id", "start_unix_ns", "end_unix_ns", "error_message")
"""Columns without which there is no span; of the others those that are there."""
Ids: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]


class Sent(Struct, frozen=True):
    """How many spans left."""

    chains: int
    steps: int
    calls: int

    @property
    def spans(self) -> int:
        """All of them."""
        return self.chains + self.steps + self.calls


def export(run: Path, sink: AbstractContextManager[Sink], texts: bool = False) -> Sent:
    """Send every chain, step and call of the run folder; raises `InputError` where there is none."""
    file, _ = open_run(run)
    rows = Rows(run, Spans(file, texts), texts)
    with sink as place:
        spans = chain(rows.chains(), rows.steps(), rows.calls())
        while batch := list(islice(spans, BATCH)):
            place.send(batch)
    return Sent(*rows.counts)


class Rows:
    """The tables of a run, read in batches, as spans."""

    def __init__(self, run: Path, spans: Spans, texts: bool) -> None:
        self._run, self._spans, self._texts = run, spans, texts
        self._steps: list[Ids] = []
        self.counts = [0, 0, 0]
        """Chains, steps and calls so far."""

    def chains(self) -> Iterator[ReadableSpan]:
        """One for each chain that is over."""
        for row in self._read("chains", CHAIN, ChainRow):
            self.counts[0] += 1
            yield self._spans.chain(row)

    def steps(self) -> Iterator[ReadableSpan]:
        """One for each committed step."""
        ids: list[int] = []
        for row in self._read("steps", STEP, StepRow):
            self.counts[1] += 1
            span = self._spans.step(row)
            ids.append(self._spans.step_id(row["chain_id"], row["step_index"]))
            if len(ids) == 1 << 16:
                self._keep(ids)
            yield span
        self._keep(ids)

    def calls(self) -> Iterator[ReadableSpan]:
        """One for each attempt at a call; the steps must have been gone through."""
        committed = np.sort(np.concatenate(self._steps))
        for row in self._read("calls", CALL, CallRow):
            self.counts[2] += 1
            step = self._spans.step_id(row["chain_id"], row["step_index"])
            place = int(np.searchsorted(committed, np.uint64(step)))
            yield self._spans.call(row, place < len(committed) and int(committed[place]) == step)

    def _keep(self, ids: list[int]) -> None:
        self._steps.append(np.array(ids, np.uint64))
        ids.clear()

    def _read(self, table: str, needed: tuple[str, ...], row: type[Struct]) -> Iterator[dict[str, Any]]:
        others = [name for name in columns(row, self._texts) if name not in needed]
        for batch in read_batches(self._run, table, needed, others):
            yield from batch.to_pylist()
