"""The bytes of a Perfetto trace: tracks, slices, counters and flows enter, packets of Perfetto's own protobuf classes leave.

Times are nanoseconds since an origin that the clock snapshot ties to UTC. Text that repeats is written once and referred to by
its number. Packets are written some thousand at a time, whatever the length of the trace; Perfetto sorts them by time, and leaves
those of one instant in the order of the file. Knows nothing of runs.
"""

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, BinaryIO

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

CHUNK = 4096
"""Number of packets that are held before they are written."""
SEQUENCE = 1
BEGIN, END, COUNTER = pb.TrackEvent.TYPE_SLICE_BEGIN, pb.TrackEvent.TYPE_SLICE_END, pb.TrackEvent.TYPE_COUNTER
FRESH, LATER = pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED, pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
ARGUMENT = "debug_annotation_names"
TEXT = "debug_annotation_string_values"
NAME = "event_names"
CATEGORY = "event_categories"

Value = int | float | str


def identity(*parts: object) -> int:
    """A number of 63 bits derived from `parts`: equal for equal parts, and different for others but for rare collisions."""
    text = "\0".join(map(str, parts))
    return int.from_bytes(blake2b(text.encode(errors="replace"), digest_size=8).digest()) >> 1


class Packets:
    """Writes a trace to `file`. Times are nanoseconds since `origin_unix_ns`, 0 where they are before it; tracks are referred to by
    their `uuid`."""

    def __init__(self, file: BinaryIO, origin_unix_ns: int) -> None:
        self._file, self._trace, self._held = file, pb.Trace(), 0
        self._numbers: dict[str, dict[str, int]] = {kind: {} for kind in (NAME, CATEGORY, ARGUMENT, TEXT)}
        first = self._packet()
        first.sequence_flags = FRESH
        first.timestamp = 0
        snapshot = first.clock_snapshot
        snapshot.primary_trace_clock = pb.BUILTIN_CLOCK_BOOTTIME
        snapshot.clocks.add(clock_id=pb.BUILTIN_CLOCK_BOOTTIME, timestamp=0)
        snapshot.clocks.add(clock_id=pb.BUILTIN_CLOCK_REALTIME, timestamp=origin_unix_ns)

    def process(self, uuid: int, pid: int, name: str) -> None:
        """Add a process, a track that holds threads and counters."""
        track = self._packet().track_descriptor
        track.uuid, track.child_ordering = uuid, pb.TrackDescriptor.EXPLICIT
        track.process.pid, track.process.process_name = pid, name

    def thread(self, uuid: int, pid: int, tid: int, name: str) -> None:
        """Add a thread of the process `pid`, a track for slices that do not overlap."""
        track = self._packet().track_descriptor
        track.uuid, track.thread.pid, track.thread.tid, track.thread.thread_name = uuid, pid, tid, name

    def counter(self, uuid: int, parent: int, name: str, unit: str, rank: int) -> None:
        """Add a counter of the process `parent`; `rank` is its position among its counters."""
        track = self._packet().track_descriptor
        track.uuid, track.parent_uuid, track.name, track.sibling_order_rank = uuid, parent, name, rank
        track.counter.unit_name = unit

    def value(self, track: int, time: int, value: int) -> None:
        """Set the counter `track` to `value` from `time` on."""
        packet = self._packet()
        packet.timestamp = max(0, time)
        event = packet.track_event
        event.type, event.track_uuid, event.counter_value = COUNTER, track, value

    def begin(self, track: int, time: int, name: str, category: str, arguments: Mapping[str, Value], flow: int | None = None) -> None:
        """Begin a slice on `track`; slices with the same `flow` are joined by arrows in the order of their times."""
        packet = self._packet()
        packet.timestamp = max(0, time)
        event = packet.track_event
        event.type, event.track_uuid = BEGIN, track
        event.name_iid = self._number(packet, NAME, name)
        event.category_iids.append(self._number(packet, CATEGORY, category))
        if flow is not None:
            event.flow_ids.append(flow)
        add = event.debug_annotations.add
        for key, value in arguments.items():
            self._argument(packet, add, key, value)

    def end(self, track: int, time: int) -> None:
        """End the slice that began last on `track`."""
        packet = self._packet()
        packet.timestamp = max(0, time)
        event = packet.track_event
        event.type, event.track_uuid = END, track

    def close(self) -> None:
        """Write the packets that are held."""
        self._file.write(self._trace.SerializeToString())
        self._trace, self._held = pb.Trace(), 0

    def _packet(self) -> Any:
        if self._held >= CHUNK:
            self.close()
        self._held += 1
        return self._trace.packet.add(trusted_packet_sequence_id=SEQUENCE, sequence_flags=LATER)

    def _argument(self, packet: Any, add: Callable[..., object], key: str, value: Value) -> None:
        name = self._number(packet, ARGUMENT, key)
        if isinstance(value, int):
            add(name_iid=name, int_value=value)
        elif isinstance(value, float):
            add(name_iid=name, double_value=value)
        elif key in REPEATING:
            add(name_iid=name, string_value_iid=self._number(packet, TEXT, value))
        else:
            add(name_iid=name, string_value=value)

    def _number(self, packet: Any, kind: str, text: str) -> int:
        """The number of a text of this `kind`; at its first use the text is added to `packet`."""
        numbers = self._numbers[kind]
        number = numbers.get(text)
        if number is None:
            number = numbers[text] = len(numbers) + 1
            value = {"str": text.encode()} if kind == TEXT else {"name": text}
            getattr(packet.interned_data, kind).add(iid=number, **value)
        return number


REPEATING = frozenset({"kind", "finish_reason", "error_type", "status", "node"})
"""Arguments of slices with few different texts, which are written once each."""
