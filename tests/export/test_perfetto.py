"""The Chrome trace of a run, read back as JSON, against the tables of chains and calls."""

import gzip
import json
from collections import defaultdict
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.errors import InputError
from pipeline.export.perfetto import Slots, export
from tests.support.installed import FAULTY, faulty_file, installed
from tests.support.replicas import replica_run
from tests.support.run_files import write_run_json
from tests.support.runs import solve

Interval = tuple[int, int]
Event = dict[str, Any]


class Trace:
    """A trace that was read back, with the names of its processes and threads."""

    def __init__(self, run: Path, output: Path) -> None:
        self.calls: list[Event] = pq.read_table(run / "calls").to_pylist()
        self.chains: list[Event] = pq.read_table(run / "chains").to_pylist()
        self.origin: int = min(row.get("submit_unix_ns") or row["start_unix_ns"] for row in (*self.calls, *self.chains))
        self.count = export(run, output)
        events: list[Event] = json.loads(output.read_bytes())["traceEvents"]
        kinds: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            kinds[event["ph"]].append(event)
        self.spans, self.values, named = kinds["X"], kinds["C"], kinds["M"]
        assert len(self.spans) + len(self.values) + len(named) == len(events)
        self.processes = {each["pid"]: each["args"]["name"] for each in named if each["name"] == "process_name"}
        self.threads = {each["tid"]: (each["pid"], each["args"]["name"]) for each in named if each["name"] == "thread_name"}
        assert len(self.processes) + len(self.threads) == len(named)

    def time(self, unix_ns: int) -> int:
        return (unix_ns - self.origin) // 1000

    def process(self, call: Event) -> str:
        return call["engine"] if call["replica"] is None else f"replica {call['replica']} {call['engine']}"


@pytest.fixture(scope="module", params=["one process", "replicas"])
def trace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Of a run whose draft dies after every 40 calls, so that those it had are sent again; and of one on two replicas."""
    folder = tmp_path_factory.mktemp("run")
    settings = ("engines.draft.faults.dies_after_calls=40", "engines.draft.max_restarts=100")
    with installed(FAULTY):
        dying = {"engines": faulty_file(folder), "settings": settings}
        run = replica_run(folder, 2) if request.param == "replicas" else solve(folder, samples=2, **dying).folder
        return Trace(run, folder / "trace.json")


def levels(spans: list[Interval]) -> list[Interval]:
    """How many of `spans` go on after each instant at which that changes, one instant after the other."""
    steps: dict[int, int] = defaultdict(int)
    for start, end in spans:
        steps[start] += 1
        steps[end] -= 1
    times = sorted(time for time, step in steps.items() if step)
    return list(zip(times, accumulate(steps[time] for time in times), strict=True))


@pytest.mark.slow
def test_every_call_is_one_span_at_its_time_with_its_numbers(trace: Trace) -> None:
    numbers = ("chain_id", "step_index", "call_index", "attempt", "input_tokens", "output_tokens", "client_wait_s", "error_message")

    def of_row(row: Event) -> tuple[Any, ...]:
        name = f"{row['stage']} ({row['error_type']})" if row["error_type"] else row["stage"]
        since, until = trace.time(row["submit_unix_ns"]), trace.time(row["end_unix_ns"])
        return trace.process(row), name, since, until - since, *(row[name] for name in numbers)

    def of_span(each: Event) -> tuple[Any, ...]:
        return trace.processes[each["pid"]], each["name"], each["ts"], each["dur"], *(each["args"].get(name) for name in numbers)

    drawn = [each for each in trace.spans if trace.processes[each["pid"]] != "chains"]
    assert trace.count == len(drawn)
    assert sorted(map(of_span, drawn), key=str) == sorted(map(of_row, trace.calls), key=str)


@pytest.mark.slow
def test_every_chain_is_one_span(trace: Trace) -> None:
    drawn = [each for each in trace.spans if trace.processes[each["pid"]] == "chains"]
    told = [(row["chain_id"], trace.time(row["start_unix_ns"]), trace.time(row["end_unix_ns"]), row["answer"]) for row in trace.chains]
    assert sorted((each["name"], each["ts"], each["ts"] + each["dur"], each["args"].get("answer")) for each in drawn) == sorted(told)


@pytest.mark.slow
def test_spans_of_a_slot_never_overlap_and_its_names_are_known(trace: Trace) -> None:
    slots: dict[int, list[Interval]] = defaultdict(list)
    for each in trace.spans:
        assert trace.threads[each["tid"]][0] == each["pid"]
        slots[each["tid"]].append((each["ts"], each["ts"] + each["dur"]))
    assert slots.keys() == trace.threads.keys()
    for spans in slots.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(spans)))
    for pid in trace.processes:
        own = [name for process, name in trace.threads.values() if process == pid]
        assert own == [f"slot {number:03}" for number in range(len(own))]


@pytest.mark.slow
def test_counters_say_what_was_in_flight(trace: Trace) -> None:
    expected: dict[str, list[Interval]] = defaultdict(list)
    for row in trace.calls:
        expected[trace.process(row)].append((trace.time(row["submit_unix_ns"]), trace.time(row["end_unix_ns"])))
    drawn: dict[str, list[Interval]] = defaultdict(list)
    for each in trace.values:
        drawn[trace.processes[each["pid"]]].append((each["ts"], each["args"]["in flight"]))
    assert drawn == {name: levels(spans) for name, spans in expected.items()}
    assert all(values[-1][1] == 0 for values in drawn.values())


@pytest.mark.slow
def test_equal_runs_give_equal_files_and_compressed_ones_hold_the_same(tmp_path: Path) -> None:
    run = solve(tmp_path, limit=3).folder
    for name in ("a.json", "b.json", "a.gz", "b.gz"):
        export(run, tmp_path / name)
    one, two, packed, again = ((tmp_path / name).read_bytes() for name in ("a.json", "b.json", "a.gz", "b.gz"))
    assert one == two == gzip.decompress(packed)
    assert packed == again


def test_a_span_takes_the_lowest_free_slot() -> None:
    spans = {(0, 100): 0, (10, 20): 1, (12, 21): 2, (20, 30): 1, (21, 30): 2, (25, 31): 3, (90, 120): 1, (100, 100): 0, (100, 110): 0}
    slots = Slots()
    assert {span: slots.take(*span) for span in spans} == spans
    assert slots.count == 4


def test_a_run_without_calls_leaves_no_file(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_run_json(run)
    with pytest.raises(InputError, match=r"run: has no calls: there is nothing to export"):
        export(run, tmp_path / "trace.json")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
