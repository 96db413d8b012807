"""What the driver of a run on replicas and a replica send each other. Pure data.

They exchange one for the other, again and again: the driver's orders bring chains, the replica's report brings rows and says for how many
more chains it has room. So each replica takes chains from one queue as fast as it solves them.
"""

from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from pipeline.engine import EngineStatistics, Fact
from pipeline.errors import ReplicaLost
from pipeline.runtime.admission.feed import Item
from pipeline.runtime.resume_state import ResumedChain
from pipeline.store.events import CallRow, ChainRow, StepRow


class Assignment(Struct, frozen=True, kw_only=True):
    """One chain that a replica is to solve."""

    item: Item
    sample_index: int
    order: int
    """Its place in the input."""
    resumed: ResumedChain | None = None
    """What is recorded of it, if it was begun elsewhere or in an earlier session."""


class Orders(Struct, frozen=True, kw_only=True):
    """What a replica is to do."""

    chains: tuple[Assignment, ...] = ()
    """Chains to solve from now on."""
    no_more: bool = False
    """The input has no further chains, though those of a lost replica may still come."""
    unix_ns: int = 0
    """The present time of the driver, by whose clock all rows are dated, ns UTC."""
    end: Literal["", "drain", "abort"] = ""
    """`drain`: start no more chains and end when those in flight are over; `abort`: cancel them."""


class OpenReplica(Struct, frozen=True, kw_only=True):
    """A replica whose engines are open."""

    facts: dict[str, dict[str, Fact]]
    """What each of its engines states about itself, by role."""
    notices: tuple[str, ...] = ()
    """Notices for the user about these engines."""


class ReplicaFailure(Struct, frozen=True, kw_only=True):
    """Why a replica does not continue."""

    what: str
    """The error message."""
    usage: bool = False
    """The graph or the engines file is wrong there, so that starting it again would change nothing."""


class ReplicaReport(Struct, frozen=True, kw_only=True):
    """What happened on a replica since its report before."""

    phases: list[tuple[str, str]] = []
    """What its engines have begun to do while they start, each with its role."""
    lines: list[tuple[str, str]] = []
    """What their processes have printed, each line with the role."""
    opened: OpenReplica | None = None
    """In the first report after its engines were open."""
    calls: list[CallRow] = []
    steps: list[StepRow] = []
    chains: list[ChainRow] = []
    wants: int = 0
    """The number of further chains for which it has room."""
    live: int = 0
    """Chains in flight on it."""
    statistics: dict[str, EngineStatistics] = {}
    """Of its engines since they opened, by role."""
    pauses: int | None = None
    """How often a chain had to pause since then."""
    failure: ReplicaFailure | None = None
    over: bool = False
    """This is its last report."""


_decoder = msgspec.msgpack.Decoder(ReplicaReport)


def encoded(report: ReplicaReport) -> bytes:
    """A report as it leaves the process of its replica: MessagePack."""
    return msgspec.msgpack.encode(report)


def decoded(data: bytes) -> ReplicaReport:
    """The report in `data`; raises `ReplicaLost` where there is none."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, TypeError) as error:
        raise ReplicaLost(f"it sent an invalid report: {error}") from error


class ReplicaLink(Protocol):
    """The driver's end of the connection to a replica that was started."""

    node: str
    """The cluster's id of the node that it is on; empty on this machine."""
    address: str
    """The network address of the node."""
    devices: str
    """The devices of this machine that it has, such as `GPU 2-3`; empty on a cluster, and for simulated engines."""

    async def exchange(self, orders: Orders) -> ReplicaReport:
        """Hand orders over, and wait until something has happened on the replica or some seconds have passed. Raises `ReplicaLost`."""
