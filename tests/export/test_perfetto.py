"""The Chrome trace of a run, read back as JSON, against the tables of chains and calls."""

import json
from collections import Counter, defaultdict
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.export.perfetto import Slots, export
from tests.support.installed import FAULTY, faulty_file, installed
from tests.support.runs import solve

Event = dict[str, Any]


def levels(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """How many of `spans` go on after each instant at which that changes, one instant after the other."""
    steps = Counter(start for start, _ in spans)
    steps.subtract(end for _, end in spans)
    times = sorted(time for time, step in steps.items() if step)
    return list(zip(times, accumulate(steps[time] for time in times), strict=True))


@pytest.mark.slow
def test_every_chain_and_call_is_a_span_in_a_slot_of_its_process(tmp_path: Path) -> None:
    """Of a run whose draft dies after every 40 calls, so that those it had are sent again."""
    settings = ("engines.draft.faults.dies_after_calls=40", "engines.draft.max_restarts=100")
    with installed(FAULTY):
        run = solve(tmp_path, samples=2, engines=faulty_file(tmp_path), settings=settings).folder
    calls, chains = (pq.read_table(run / table).to_pylist() for table in ("calls", "chains"))
    assert export(run, tmp_path / "trace.json") == len(calls)
    kinds: dict[str, list[Event]] = defaultdict(list)
    for event in json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"]:
        kinds[event["ph"]].append(event)
    processes = {each["pid"]: each["args"]["name"] for each in kinds["M"] if each["name"] == "process_name"}
    threads = {each["tid"]: each["pid"] for each in kinds["M"] if each["name"] == "thread_name"}
    origin = min(row.get("submit_unix_ns") or row["start_unix_ns"] for row in (*calls, *chains))

    def times(row: Event) -> tuple[int, int]:
        return (row.get("submit_unix_ns", row.get("start_unix_ns")) - origin) // 1000, (row["end_unix_ns"] - origin) // 1000

    expected = [("chains", row["chain_id"], *times(row), row["answer"], None) for row in chains]
    for row in calls:
        name = f"{row['stage']} ({row['error_type']})" if row["error_type"] else row["stage"]
        expected.append((row["engine"], name, *times(row), None, row["output_tokens"]))
    drawn, slots = [], defaultdict(list)
    for each in kinds["X"]:
        since, until, args = each["ts"], each["ts"] + each["dur"], each["args"]
        drawn.append((processes[each["pid"]], each["name"], since, until, args.get("answer"), args.get("output_tokens")))
        assert threads[each["tid"]] == each["pid"]
        slots[each["tid"]].append((since, until))
    assert sorted(drawn, key=str) == sorted(expected, key=str)
    assert slots.keys() == threads.keys()
    assert all(before[1] <= after[0] for spans in slots.values() for before, after in pairwise(sorted(spans)))
    counted = [(each["ts"], each["args"]["in flight"]) for each in kinds["C"] if processes[each["pid"]] == "draft"]
    assert counted == levels([times(row) for row in calls if row["engine"] == "draft"])


def test_a_span_takes_the_lowest_free_slot() -> None:
    spans = {(0, 100): 0, (10, 20): 1, (12, 21): 2, (20, 30): 1, (21, 30): 2, (25, 31): 3, (90, 120): 1, (100, 100): 0, (100, 110): 0}
    slots = Slots()
    assert {span: slots.take(*span) for span in spans} == spans
    assert slots.count == 4
