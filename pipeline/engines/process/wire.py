"""The messages between the main process and a worker, and how they go over a socket: as length-prefixed msgpack.

The main process sends `Setup` once, then `Submit`, `Abort` and `ResetPrefixCache`; the worker says what it does by `Loading` until it
answers with `Ready` or `Failed`, once, then with a `Report` whenever something is finished, and with `CacheReset`. A spec is sent as plain
data, and only the worker program decodes it: neither a backend nor a model nor a socket is known here.
"""

from collections.abc import Iterator
from math import inf
from typing import Any, Literal, TypeVar

from msgspec import Struct, convert, msgpack, to_builtins

from pipeline.engine import Completion, EngineStatistics, Fact, Request
from pipeline.engines.meter import UsageMeter
from pipeline.graph.spec import EngineSpec

S = TypeVar("S", bound=EngineSpec)
NO_STATISTICS = UsageMeter().statistics()
"""The statistics of an engine that has done nothing yet."""
HEADER_BYTES = 4
"""Length of the number before each message that says how many bytes the message has."""


class Setup(Struct, frozen=True, tag=True, array_like=True):
    """The first message: what to load, and where."""

    role: str
    spec: dict[str, Any]
    """The engine's spec as plain data; `spec_as` decodes it."""
    model: str
    """The folder or hub name of the model to load."""
    cores: tuple[int, ...] = ()
    """CPU cores to stay on if the model is computed by the CPU; empty: any."""

    @classmethod
    def of(cls, role: str, spec: EngineSpec, model: str, cores: tuple[int, ...] = ()) -> "Setup":
        """The setup of the engine `role` with this `spec`."""
        return cls(role, to_builtins(spec), model, cores)

    @property
    def startup_timeout_s(self) -> float:
        """Longest time that the start may take, in seconds; unlimited where the spec has no such field."""
        return float(self.spec.get("startup_timeout_s", inf))

    def spec_as(self, kind: type[S]) -> S:
        """The spec decoded; `kind` must be its class."""
        return convert(self.spec, kind)


class Submit(Struct, frozen=True, tag=True, array_like=True):
    """Compute `request`; later messages name it by its `number`."""

    number: int
    request: Request


class Abort(Struct, frozen=True, tag=True, array_like=True):
    """Stop computing a request: nothing waits for it any more."""

    number: int


class ResetPrefixCache(Struct, frozen=True, tag=True, array_like=True):
    """Empty the prefix cache; sent only while no request is in flight."""


class CacheReset(Struct, frozen=True, tag=True, array_like=True):
    """The prefix cache was emptied, as `ResetPrefixCache` asked, or could not be."""

    flaw: str | None = None
    """Why it is not empty, in one clause."""


class Loading(Struct, frozen=True, tag=True, array_like=True):
    """What the worker begins to do before it is ready."""

    phase: str
    """Such as `loading weights`."""


class Ready(Struct, frozen=True, tag=True, array_like=True):
    """The model is loaded and requests may be sent; the fields are those of `Engine`."""

    max_model_len: int
    vocab_size: int
    facts: dict[str, Fact]


class Failed(Struct, frozen=True, tag=True, array_like=True):
    """The model cannot be loaded; the worker ends."""

    what: str | None
    """The reason, as a clause; None where only stderr tells it."""


class Report(Struct, frozen=True, tag=True, array_like=True):
    """The requests that were finished since the last report, and the engine's statistics."""

    statistics: EngineStatistics
    done: list[tuple[int, Completion]] = []
    """Each finished request by its number, with its completion."""
    refused: list[tuple[int, str]] = []
    """Each request that the engine will not compute by its number, with the reason."""
    again: list[tuple[int, str]] = []
    """Each request that failed though the engine could serve others, by its number, with the reason: it may be sent again."""


ToWorker = Setup | Submit | Abort | ResetPrefixCache
FromWorker = Loading | Ready | Failed | Report | CacheReset

_encoder = msgpack.Encoder(enc_hook=list)


def frame(message: ToWorker | FromWorker) -> bytes:
    """The bytes of `message` on the socket: its length and its encoding."""
    payload = _encoder.encode(message)
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


class Unframer:
    """Cuts a byte stream back into messages."""

    def __init__(self, reads: Literal["worker", "parent"]) -> None:
        """`reads` says who receives the stream, the worker or the main process, and so which messages may come."""
        self._decoder: msgpack.Decoder[Any] = msgpack.Decoder(FromWorker if reads == "parent" else ToWorker)
        self._pending = bytearray()

    def feed(self, received: bytes) -> Iterator[Any]:
        """The messages that are complete with the bytes `received`; the rest is kept for the next call."""
        self._pending += received
        start = 0
        with memoryview(self._pending) as view:
            while len(view) - start >= HEADER_BYTES:
                end = start + HEADER_BYTES + int.from_bytes(view[start : start + HEADER_BYTES], "big")
                if end > len(view):
                    break
                yield self._decoder.decode(view[start + HEADER_BYTES : end])
                start = end
        del self._pending[:start]
