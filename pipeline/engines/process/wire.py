"""What the main process and a worker say to each other: length-prefixed msgpack messages.

The main process sends `Setup` once, then `Submit`, `Abort` and `ResetPrefixCache`; the worker answers with `Ready` or `Failed`
once, then with a `Report` whenever something is finished, and with `PrefixCacheIsEmpty`. A spec travels as plain data, and only
the worker program decodes it: neither a backend nor a model nor a socket is known here.
"""

from collections.abc import Iterator
from typing import Any, Literal, TypeVar

from msgspec import Struct, convert, msgpack, to_builtins

from pipeline.engine import Completion, EngineStatistics, Fact, Request
from pipeline.engines.meter import UsageMeter
from pipeline.graph.spec import EngineSpec

S = TypeVar("S", bound=EngineSpec)
NO_STATISTICS = UsageMeter().statistics()
HEADER_BYTES = 4


class Setup(Struct, frozen=True, tag=True, array_like=True):
    """The first message: what to load, and where."""

    role: str
    spec: dict[str, Any]
    """The engine's spec, as an engines file has it; `spec_as` gives it back."""
    model: str
    """What is loaded: the spec's model as a folder or hub name."""
    cores: tuple[int, ...] = ()
    """CPU cores to stay on if the model is computed by the CPU; empty: any."""

    @classmethod
    def of(cls, role: str, spec: EngineSpec, model: str, cores: tuple[int, ...] = ()) -> "Setup":
        """The setup of an engine with this `spec`."""
        return cls(role, to_builtins(spec), model, cores)

    def spec_as(self, kind: type[S]) -> S:
        """The spec, which was of this `kind`."""
        return convert(self.spec, kind)


class Submit(Struct, frozen=True, tag=True, array_like=True):
    """Compute `request`; `number` names it from now on."""

    number: int
    request: Request


class Abort(Struct, frozen=True, tag=True, array_like=True):
    """Nobody waits for this request any more."""

    number: int


class ResetPrefixCache(Struct, frozen=True, tag=True, array_like=True):
    """Empty the prefix cache; nothing is in flight."""


class PrefixCacheIsEmpty(Struct, frozen=True, tag=True, array_like=True):
    """It was emptied."""


class Ready(Struct, frozen=True, tag=True, array_like=True):
    """The model is loaded."""

    max_model_len: int
    vocab_size: int
    facts: dict[str, Fact]


class Failed(Struct, frozen=True, tag=True, array_like=True):
    """The model cannot be loaded, and why, in one clause."""

    what: str | None
    """Null where only what was said on stderr tells."""


class Report(Struct, frozen=True, tag=True, array_like=True):
    """What was finished since the last report, and the counters."""

    statistics: EngineStatistics
    done: list[tuple[int, Completion]]
    refused: list[tuple[int, str]] = []
    """Requests that the engine will not compute, and why."""


ToWorker = Setup | Submit | Abort | ResetPrefixCache
FromWorker = Ready | Failed | Report | PrefixCacheIsEmpty

_encoder = msgpack.Encoder()


def frame(message: ToWorker | FromWorker) -> bytes:
    """`message` as it goes over the socket."""
    payload = _encoder.encode(message)
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


class Unframer:
    """Cuts a byte stream back into messages."""

    def __init__(self, reads: Literal["worker", "parent"]) -> None:
        self._decoder: msgpack.Decoder[Any] = msgpack.Decoder(FromWorker if reads == "parent" else ToWorker)
        self._pending = bytearray()

    def feed(self, received: bytes) -> Iterator[Any]:
        """The messages that `received` completes."""
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
