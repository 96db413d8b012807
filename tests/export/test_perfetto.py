"""The Perfetto trace, read back with Perfetto's own protobuf classes, against the table of calls."""

import gzip
from collections import defaultdict
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from pipeline.errors import InputError
from pipeline.export.perfetto import export

pytestmark = pytest.mark.slow  # whole runs

Written = Callable[..., Path]
Interval = tuple[int, int]
NUMBERS = (
    "chain_id",
    "step_index",
    "call_index",
    "attempt",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "client_wait_s",
    "error_message",
)


class Slice:
    """A slice that was read back, with those inside it."""

    def __init__(self, track: int, name: str, category: str, start: int, arguments: dict[str, Any], flows: list[int]) -> None:
        self.track, self.name, self.category, self.start, self.arguments, self.flows = track, name, category, start, arguments, flows
        self.end: int | None = None
        self.inner: list[Slice] = []


class Trace:
    """A trace that was read back: packets in order of time, those of one instant in the order of the file, as Perfetto sorts them."""

    def __init__(self, content: bytes) -> None:
        packets = pb.Trace.FromString(content).packet
        assert packets[0].sequence_flags == pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        self.origin = {clock.clock_id: clock.timestamp for clock in packets[0].clock_snapshot.clocks}[pb.BUILTIN_CLOCK_REALTIME]
        self.texts: dict[tuple[str, int], str] = {}
        self.tracks: dict[int, Any] = {}
        self.values: dict[int, list[Interval]] = defaultdict(list)
        self.slices: list[Slice] = []
        self._open: dict[int, list[Slice]] = defaultdict(list)
        for packet in packets:
            self._define(packet)
        for packet in sorted((packet for packet in packets if packet.HasField("track_event")), key=lambda packet: int(packet.timestamp)):
            self._event(packet.timestamp, packet.track_event)
        assert not any(self._open.values())

    def _define(self, packet: Any) -> None:
        for field, entries in packet.interned_data.ListFields():
            self.texts |= {(field.name, each.iid): each.str.decode() if hasattr(each, "str") else each.name for each in entries}
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in self.tracks
            self.tracks[track.uuid] = track

    def _event(self, time: int, event: Any) -> None:
        assert event.track_uuid in self.tracks
        if event.type == pb.TrackEvent.TYPE_COUNTER:
            self.values[event.track_uuid].append((time, event.counter_value))
        elif event.type == pb.TrackEvent.TYPE_SLICE_END:
            self._open[event.track_uuid].pop().end = time
        else:
            self._begin(time, event, self._open[event.track_uuid])

    def _begin(self, time: int, event: Any, open_: list[Slice]) -> None:
        arguments = {self.texts["debug_annotation_names", note.name_iid]: self._value(note) for note in event.debug_annotations}
        name, category = self.texts["event_names", event.name_iid], self.texts["event_categories", event.category_iids[0]]
        begun = Slice(event.track_uuid, name, category, time, arguments, list(event.flow_ids))
        (open_[-1].inner if open_ else self.slices).append(begun)
        open_.append(begun)

    def _value(self, note: Any) -> Any:
        [(field, value)] = [(field.name, value) for field, value in note.ListFields() if field.name != "name_iid"] or [("int_value", 0)]
        return self.texts["debug_annotation_string_values", value] if field == "string_value_iid" else value

    @property
    def calls(self) -> list[Slice]:
        return [each for each in self.slices if each.category in ("call", "failed")]

    def engine(self, track: int) -> str:
        """The role of the process that a thread or counter stands under."""
        if parent := self.tracks[track].parent_uuid:
            name = self.tracks[parent].process.process_name
        else:
            pid = self.tracks[track].thread.pid
            [name] = [each.process.process_name for each in self.tracks.values() if each.process.pid == pid]
        return str(name.partition(":")[0])

    def counter(self, name: str, role: str = "") -> list[Interval]:
        [track] = [u for u, track in self.tracks.items() if track.HasField("counter") and track.name == name and role in self.engine(u)]
        return self.values[track]


@pytest.fixture(scope="module")
def trace(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    output = tmp_path_factory.mktemp("perfetto") / "trace.pftrace"
    export(run_folder, output)
    return Trace(output.read_bytes())


def levels(spans: list[Interval]) -> list[Interval]:
    """How many of `spans` go on after each instant at which that changes, one instant after the other."""
    steps: dict[int, int] = defaultdict(int)
    for start, end in spans:
        if end > start:
            steps[start] += 1
            steps[end] -= 1
    times = sorted(time for time, step in steps.items() if step)
    return list(zip(times, accumulate(steps[time] for time in times), strict=True))


def test_every_call_is_one_slice_at_its_time_with_its_numbers(trace: Trace, calls: list[dict[str, Any]]) -> None:
    def of_row(row: dict[str, Any]) -> tuple[Any, ...]:
        name = f"{row['stage']} ({row['error_type']})" if row["error_type"] else row["stage"]
        finish = ", ".join(row["finish_reason"])
        kind = "failed" if row["error_type"] else "call"
        return row["engine"], kind, name, row["submit_unix_ns"], row["end_unix_ns"], *(row[name] for name in NUMBERS), finish

    def of_slice(each: Slice) -> tuple[Any, ...]:
        times = trace.origin + each.start, trace.origin + (each.end or 0)
        said = (each.arguments.get(name) for name in (*NUMBERS, "finish_reason"))
        return trace.engine(each.track), each.category, each.name, *times, *said

    assert sorted(map(of_slice, trace.calls), key=str) == sorted(map(of_row, calls), key=str)


def test_what_an_engine_did_lies_within_its_call(trace: Trace, calls: list[dict[str, Any]]) -> None:
    phases = {(row["chain_id"], row["call_index"]): [row[f"{name}_time_s"] for name in ("queue", "prefill", "decode")] for row in calls}
    for each in trace.calls:
        known = phases[each.arguments["chain_id"], each.arguments["call_index"]]
        expected = [(name, s) for name, s in zip(("queue", "prefill", "decode"), known, strict=True) if s]
        assert [inner.name for inner in each.inner] == [name for name, _ in expected]
        assert [(inner.end or 0) - inner.start for inner in each.inner] == pytest.approx([s * 1e9 for _, s in expected], abs=2)
        assert all(each.start <= inner.start <= (inner.end or 0) <= (each.end or 0) for inner in each.inner)


def test_arrows_join_the_calls_of_each_chain_in_order(trace: Trace, calls: list[dict[str, Any]]) -> None:
    flows: dict[int, list[Slice]] = defaultdict(list)
    for each in trace.calls:
        [flow] = each.flows
        flows[flow].append(each)
    assert len(flows) == 24
    for joined in flows.values():
        [chain] = {each.arguments["chain_id"] for each in joined}
        own = sorted(row["call_index"] for row in calls if row["chain_id"] == chain)
        assert [each.arguments["call_index"] for each in joined] == own


@pytest.mark.parametrize("role", ["draft", "target"])
def test_counters_say_what_was_in_flight_and_waiting_and_come_back_to_nothing(trace: Trace, calls: list[dict[str, Any]], role: str) -> None:
    own = [row for row in calls if row["engine"] == role]
    in_flight = [(row["submit_unix_ns"] - trace.origin, row["end_unix_ns"] - trace.origin) for row in own]
    waiting = [(start - round(row["client_wait_s"] * 1e9), start) for row, (start, _) in zip(own, in_flight, strict=True)]
    assert trace.counter("in flight", role) == levels(in_flight)
    assert trace.counter("waiting", role) == levels(waiting)
    assert trace.counter("in flight", role)[-1][1] == 0
    assert trace.counter("output tokens", role)[-1][1] == sum(row["output_tokens"] for row in own)


def test_live_chains_are_those_between_their_admission_and_their_end(trace: Trace, run_folder: Path) -> None:
    rows = pq.read_table(run_folder / "chains", columns=["start_unix_ns", "end_unix_ns"]).to_pylist()
    spans = [(row["start_unix_ns"] - trace.origin, row["end_unix_ns"] - trace.origin) for row in rows]
    assert trace.counter("live chains") == levels(spans)


def test_between_two_sessions_nothing_lives(written: Written, tmp_path: Path) -> None:
    start = 1_700_000_000_000_000_000
    sessions = [
        {"started_unix_ns": start, "status": "interrupted", "ended_unix_ns": start + 100},
        {"started_unix_ns": start + 500, "status": "running"},
    ]
    export(written([[(0, 90), (510, 590)]], [(0, 90), (10, 600), (510, 600)], sessions=sessions), tmp_path / "t")
    trace = pb.Trace.FromString((tmp_path / "t").read_bytes())
    values = [(p.timestamp, p.track_event.counter_value) for p in trace.packet if p.track_event.type == pb.TrackEvent.TYPE_COUNTER]
    assert values[:7] == [(0, 1), (10, 2), (90, 1), (100, 0), (500, 1), (510, 2), (600, 0)]


def test_each_replica_has_tracks_of_its_own(replicas: Path, tmp_path: Path) -> None:
    export(replicas, tmp_path / "t")
    trace = Trace((tmp_path / "t").read_bytes())
    rows = pq.read_table(replicas / "calls").to_pylist()
    names = ("chain_id", "call_index")
    drawn = sorted((trace.engine(each.track), trace.origin + each.start, *(each.arguments[name] for name in names)) for each in trace.calls)
    told = ((f"replica {row['replica']} {row['engine']}", row["submit_unix_ns"], *(row[name] for name in names)) for row in rows)
    assert drawn == sorted(told)
    assert {(each.arguments["replica"], each.arguments["node"]) for each in trace.calls} == {(0, "node-0"), (1, "node-1")}
    for number in range(2):
        mine = [row for row in rows if (row["replica"], row["engine"]) == (number, "draft")]
        own = [(row["submit_unix_ns"] - trace.origin, row["end_unix_ns"] - trace.origin) for row in mine]
        assert trace.counter("in flight", f"replica {number} draft") == levels(own)
    chains = pq.read_table(replicas / "chains", columns=["start_unix_ns", "end_unix_ns", "replica"]).to_pylist()
    lives: dict[int, list[Interval]] = {row["replica"]: [] for row in chains}
    for row in chains:
        lives[row["replica"]].append((row["start_unix_ns"] - trace.origin, row["end_unix_ns"] - trace.origin))
    assert trace.counter("live chains") == levels([span for spans in lives.values() for span in spans])
    assert [trace.counter(f"live chains of replica {number}") for number in range(2)] == [levels(lives[number]) for number in range(2)]


def test_rows_of_many_parts_are_drawn_in_the_order_in_which_they_began(written: Written, tmp_path: Path) -> None:
    ends_first = [[(10, 20), (12, 21)], [(20, 30), (21, 30), (25, 31)], [(0, 100)], [(100, 100), (100, 110), (90, 120)]]
    export(written(ends_first), tmp_path / "t")
    trace = Trace((tmp_path / "t").read_bytes())
    slots = {(each.start, each.end): trace.tracks[each.track].thread.thread_name for each in trace.calls}
    expected = {(0, 100): 0, (10, 20): 1, (12, 21): 2, (20, 30): 1, (21, 30): 2, (25, 31): 3, (90, 120): 1, (100, 100): 0, (100, 110): 0}
    assert slots == {span: f"slot {slot:03}" for span, slot in expected.items()}
    assert trace.counter("in flight", "target") == levels([span for part in ends_first for span in part])


def test_equal_runs_give_equal_files_and_compressed_ones_hold_the_same(run_folder: Path, tmp_path: Path) -> None:
    drawn = [export(run_folder, tmp_path / name) for name in ("a.pftrace", "b.pftrace", "a.gz", "b.gz")]
    one, two, packed, again = ((tmp_path / name).read_bytes() for name in ("a.pftrace", "b.pftrace", "a.gz", "b.gz"))
    assert one == two == gzip.decompress(packed)
    assert packed == again
    assert [each.size for each in drawn] == [len(one), len(one), len(packed), len(packed)]


def test_a_run_without_calls_leaves_no_file(written: Written, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"written: has no calls: there is nothing to export"):
        export(written([]), tmp_path / "t")
    assert [path.name for path in tmp_path.iterdir()] == ["written"]


def test_a_call_to_an_engine_that_nobody_named_is_refused(written: Written, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"run\.json: names no engine `target`"):
        export(written([[(0, 1)]], engines={"draft": {}}), tmp_path / "t")
    assert [path.name for path in tmp_path.iterdir()] == ["written"]
