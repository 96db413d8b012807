"""A run as Chrome trace events: the run folder enters, a JSON file leaves that https://ui.perfetto.dev and chrome://tracing open.

Chains are a process, and so is every engine of each replica. A span is a chain from its admission to its end, or one attempt at a call from
being sent until it was answered. Spans of a process do not nest, so it has a thread for every slot, of which a span takes the lowest free
one. A counter says how many requests each engine has in flight. Times are whole microseconds since the first span began.
"""

from collections import defaultdict
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from pipeline.errors import InputError
from pipeline.files import whole_file
from pipeline.store.query import Query

ENGINE = "coalesce('replica ' || replica || ' ', '') || engine"
ORIGIN = "SELECT least((SELECT min(submit_unix_ns) FROM calls), (SELECT min(start_unix_ns) FROM chains))"
CHAINS = """
SELECT 'chains', chain_id, (start_unix_ns - $origin) // 1000 AS since, (end_unix_ns - $origin) // 1000 AS until,
    struct_pack(steps, thought_tokens, stop_reason, answer, correct, replica, error_type, error_message)
FROM chains ORDER BY since, until, chain_id"""
CALLS = f"""
SELECT {ENGINE}, stage || coalesce(' (' || error_type || ')', ''), (submit_unix_ns - $origin) // 1000 AS since,
    (end_unix_ns - $origin) // 1000 AS until, struct_pack(
        chain_id, step_index, call_index, attempt, input_tokens, cached_input_tokens, output_tokens, client_wait_s, queue_time_s,
        prefill_time_s, decode_time_s, finish_reason, error_message)
FROM calls ORDER BY since, until, chain_id, call_index"""
IN_FLIGHT = f"""
WITH changes AS (
    SELECT {ENGINE} AS engine, (submit_unix_ns - $origin) // 1000 AS time, 1 AS step FROM calls
    UNION ALL SELECT {ENGINE}, (end_unix_ns - $origin) // 1000, -1 FROM calls
), steps AS (SELECT engine, time, sum(step) AS step FROM changes GROUP BY ALL HAVING sum(step) != 0)
SELECT engine, time, (sum(step) OVER (PARTITION BY engine ORDER BY time))::BIGINT FROM steps ORDER BY time, engine"""
TIDS = 100_000
"""How many thread numbers a process has. Perfetto names threads by these alone, so they differ between processes."""


class Slots:
    """The slots of one process: each span takes the lowest free one, so that there are as many as spans ever were at once.

    For example spans from 0 to 5, from 1 to 2 and from 3 to 4 take the slots 0, 1 and again 1.
    """

    def __init__(self) -> None:
        self._free: list[int] = []
        self._taken: list[tuple[int, int]] = []
        self.count = 0
        """Number of slots so far."""

    def take(self, start: int, end: int) -> int:
        """The slot, from 0, of a span from `start` to `end`; no earlier span may have begun later."""
        while self._taken and self._taken[0][0] <= start:
            heappush(self._free, heappop(self._taken)[1])
        if self._free:
            slot = heappop(self._free)
        else:
            slot, self.count = self.count, self.count + 1
        heappush(self._taken, (end, slot))
        return slot


def export(run: Path, output: Path) -> int:
    """Write the trace of the run folder `run` to the new file `output`, and return the number of calls in it; raises `InputError` where the
    run has none."""
    with Query(run) as query:
        if not (calls := query.scalar("SELECT count(*) FROM calls")):
            raise InputError(str(run), "has no calls: there is nothing to export")
        with whole_file(output) as file:
            file.write(b'{"traceEvents":[')
            for number, event in enumerate(_events(query)):
                file.write((b",\n" if number else b"\n") + msgspec.json.encode(event))
            file.write(b"\n]}\n")
    return int(calls)


def _events(query: Query) -> Iterator[dict[str, Any]]:
    """The events of all chains and calls, each after the names of its process and of its thread, and the values of the counters."""
    origin = query.scalar(ORIGIN)
    pids: dict[str, int] = defaultdict(count(1).__next__)
    slots: dict[str, Slots] = defaultdict(Slots)
    for sql in (CHAINS, CALLS):
        for process, name, since, until, args in query.stream(sql, origin=origin):
            if process not in pids:
                yield {"ph": "M", "name": "process_name", "pid": pids[process], "args": {"name": process}}
            known, slot = slots[process].count, slots[process].take(since, until)
            place = {"pid": pids[process], "tid": pids[process] * TIDS + slot}
            if slot == known:
                yield {"ph": "M", "name": "thread_name", **place, "args": {"name": f"slot {slot:03}"}}
            said = {key: value for key, value in args.items() if value is not None}
            yield {"ph": "X", "name": name, **place, "ts": since, "dur": until - since, "args": said}
    for process, time, value in query.stream(IN_FLIGHT, origin=origin):
        yield {"ph": "C", "name": "requests", "pid": pids[process], "ts": time, "args": {"in flight": value}}
