"""Finds the answered calls of a recorded run: a request enters, the recorded call with the same request leaves, or why there is none.

Three numbers for each call are held in memory; all else is read from the run folder in row groups, of which the last few used
are kept: calls that are asked for together were recorded together.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct

from pipeline.confidence import Confidence
from pipeline.engine import FinishReason, Request, Timing, Usage
from pipeline.errors import NeverGenerated
from pipeline.store.events import MEASURED_IN, confidences
from pipeline.store.read import RowGroups, Value

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
KEPT_GROUPS = 24
"""The maximum number of row groups in memory, at most 16 MiB each as arrays."""
USAGE, TIMING = Usage.__struct_fields__, Timing.__struct_fields__


class RecordedCall(Struct, frozen=True, kw_only=True):
    """One answered call as the trace has it: its request, its answer, and how long it took; fields are columns of the calls table."""

    request_id: str
    engine: str
    temperature: float
    top_p: float
    max_tokens: int
    seed: int
    choice_count: int
    stop_sequences: tuple[str, ...]
    option_ids: tuple[int, ...]
    output_token_ids: tuple[tuple[int, ...], ...]
    finish_reason: tuple[FinishReason, ...]
    stop_reason: tuple[str | None, ...]
    option_logprobs: tuple[float, ...]
    scored_logprobs: tuple[float, ...]
    e2e_latency_s: float
    usage: Usage
    timing: Timing
    confidences: list[Confidence | None]
    """Of each candidate; None where no log probabilities were recorded."""


PARTS = ("usage", "timing", "confidences")
"""The fields that several columns make."""
CALL_COLUMNS = tuple(name for name in RecordedCall.__struct_fields__ if name not in PARTS)
KEY_COLUMNS = ("request_id", "prompt_digest", "error_type")
COLUMNS = (*CALL_COLUMNS, *USAGE, *TIMING, *MEASURED_IN.values())
_MEASURED = ("engine", MEASURED_IN["mean"])


class RecordedCalls:
    """The calls of one run folder."""

    def __init__(self, run: Path) -> None:
        """Read the index of the calls in the folder `run`; raises `InputError` where its table cannot be read."""
        self._groups = RowGroups(run, "calls", tuple({*KEY_COLUMNS, *COLUMNS}))
        self._open: OrderedDict[int, dict[str, Value]] = OrderedDict()
        self.measured = _measured(self._groups)
        """The engines that were asked for log probabilities of what they wrote."""
        self._names, self._digests, self._places = self._index()

    def find(self, request: Request) -> RecordedCall:
        """The answered call with the request's id and prompt. Raises `NeverGenerated` where there is none."""
        known = answered = False
        digest: int | None = None
        for at in self._named(request.request_id):
            known = True
            if (place := int(self._places[at])) < 0:
                continue
            answered = True
            digest = request.digest() if digest is None else digest
            if self._digests[at] == digest and (call := self._call(place)).request_id == request.request_id:
                return call
        raise NeverGenerated(request.request_id, _absence(known, answered))

    def _index(self) -> tuple[Numbers, Numbers, Numbers]:
        """Three arrays with an entry for each row of the table, sorted by the first: the hash of its request id, the digest of its
        prompt, and its row group (upper 32 bits) with its row there (lower 32 bits), -1 for a call without an answer."""
        found = array("q"), array("q"), array("q")
        names, digests, places = found
        for group in range(len(self._groups)):
            rows = zip(*(self._groups.column(group, name) for name in KEY_COLUMNS), strict=True)
            for row, (name, digest, error) in enumerate(rows):
                names.append(hash(name))
                digests.append(digest or 0)
                places.append(-1 if error is not None else group << 32 | row)
        order = np.argsort(np.array(names, np.int64), kind="stable")
        sorted_ = [np.array(each, np.int64)[order] for each in found]
        return sorted_[0], sorted_[1], sorted_[2]

    def _named(self, name: str) -> Iterator[int]:
        """Places in the index whose request id may be `name`: those with the same hash."""
        wanted = hash(name)
        at = int(np.searchsorted(self._names, wanted))
        while at < len(self._names) and self._names[at] == wanted:
            yield at
            at += 1

    def _call(self, place: int) -> RecordedCall:
        values, row = self._group(place >> 32), place & 0xFFFFFFFF
        read: dict[str, Any] = {name: values[name](row) for name in CALL_COLUMNS}
        usage = Usage(**{name: values[name](row) for name in USAGE})
        known = confidences({name: values[name](row) for name in MEASURED_IN.values()}, len(read["output_token_ids"]))
        return RecordedCall(**read, usage=usage, timing=Timing(**{name: values[name](row) for name in TIMING}), confidences=known)

    def _group(self, number: int) -> dict[str, Value]:
        """A row group, from memory or read from the file."""
        found = self._open.pop(number, None) or self._groups.read(number, COLUMNS)
        self._open[number] = found
        if len(self._open) > KEPT_GROUPS:
            self._open.popitem(last=False)
        return found


def measured_in(run: Path) -> set[str]:
    """The engines of the folder `run` that were asked for log probabilities of what they wrote; raises `InputError` as `RecordedCalls`."""
    return _measured(RowGroups(run, "calls", _MEASURED))


def _measured(groups: RowGroups) -> set[str]:
    pairs = (zip(*(groups.column(group, name) for name in _MEASURED), strict=True) for group in range(len(groups)))
    return {engine for of_group in pairs for engine, values in of_group if values}


def _absence(known: bool, answered: bool) -> str:
    """Why there is no answer: whether a call of this request id was recorded, and whether one of them was answered."""
    if not known:
        return "the recorded run made no such call"
    if not answered:
        return "the recorded call got no answer"
    return "the recorded call had a different prompt: the chain took another path before, or the graph uses another wording or adapter"
