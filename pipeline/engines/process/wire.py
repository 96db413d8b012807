"""The messages between the main process and a worker, and how they go over a socket: as length-prefixed msgpack.

The main process sends `Setup` once, then `Submit`, `Abort` and `ResetPrefixCache`. The worker sends `Loading` until it answers with `Ready`
or `Failed`, then a `Report` whenever a request is finished. Messages arrive in the order in which they were sent. A spec travels as plain
data; only the worker program decodes it.
"""

from typing import Any, TypeVar

from msgspec import Struct, convert, msgpack, to_builtins

from pipeline.engine import Completion, EngineStatistics, Fact, Request
from pipeline.graph.spec import EngineSpec
from pipeline.system.machine import ranges

S = TypeVar("S", bound=EngineSpec)
HEADER_BYTES = 4
"""Length of the number before each message, which counts the message's bytes."""


class Setup(Struct, frozen=True, tag=True, array_like=True):
    """The first message: what to load, and where."""

    role: str
    spec: dict[str, Any]
    """The engine's spec as plain data; `spec_as` decodes it."""
    model: str
    """The folder or hub name of the model."""
    cores: tuple[int, ...] = ()
    """CPU cores to compute on if there is no GPU; empty: any."""

    @classmethod
    def of(cls, role: str, spec: EngineSpec, model: str, cores: tuple[int, ...] = ()) -> "Setup":
        """The setup of the engine `role` with this `spec`."""
        return cls(role, to_builtins(spec), model, cores)

    def core_facts(self, threads: int) -> dict[str, Fact]:
        """The part of `Engine.facts` about the `cores`, on which the engine computes with `threads` threads."""
        name = f"CPU core{'s' if len(self.cores) > 1 else ''} {ranges(self.cores)}" if self.cores else f"CPU cores of {self.role}"
        return {"devices": (name,), "cores": threads}

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
    """Empty the prefix cache before computing later requests; sent only while no request is in flight."""


class Loading(Struct, frozen=True, tag=True, array_like=True):
    """A phase of the start begins."""

    phase: str
    """Such as `loading weights`."""


class Ready(Struct, frozen=True, tag=True, array_like=True):
    """The model is loaded and requests may be sent; the fields are those of `Engine`."""

    max_model_len: int
    vocab_size: int
    facts: dict[str, Fact]


class Failed(Struct, frozen=True, tag=True, array_like=True):
    """The model cannot be loaded; the worker ends."""

    what: str
    """The reason, as a clause."""


class Report(Struct, frozen=True, tag=True, array_like=True):
    """The requests that ended since the last report, by number, and the engine's statistics."""

    statistics: EngineStatistics
    done: list[tuple[int, Completion]] = []
    failed: list[tuple[int, str, bool]] = []
    """Requests without an answer, with the reason, and whether they may be sent again."""


ToWorker = Setup | Submit | Abort | ResetPrefixCache
FromWorker = Loading | Ready | Failed | Report

TO_WORKER: "msgpack.Decoder[ToWorker]" = msgpack.Decoder(ToWorker)
FROM_WORKER: "msgpack.Decoder[FromWorker]" = msgpack.Decoder(FromWorker)
_encoder = msgpack.Encoder(enc_hook=list)


def frame(message: ToWorker | FromWorker) -> bytes:
    """The bytes of `message` on the socket: its length and its encoding."""
    payload = _encoder.encode(message)
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


def cut(pending: bytearray, decoder: "msgpack.Decoder[Any]") -> list[Any]:
    """The messages that are complete in `pending`, the bytes that have arrived; what is left there is the beginning of the next one."""
    found, start = [], 0
    with memoryview(pending) as view:
        while len(view) - start >= HEADER_BYTES:
            end = start + HEADER_BYTES + int.from_bytes(view[start : start + HEADER_BYTES], "big")
            if end > len(view):
                break
            found.append(decoder.decode(view[start + HEADER_BYTES : end]))
            start = end
    del pending[:start]
    return found
