"""What decides, at every step boundary, in which mode a chain goes on: facts enter, a mode leaves. No I/O, no clock, no task."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

from pipeline.graph.spec import Purpose

Mode = Literal["speculative", "direct"]
"""`speculative`: the body of the loop writes the next step; `direct`: the target writes on in one request, as it does alone."""


class CallFacts(Struct, frozen=True, kw_only=True):
    """A call that was answered. Times are seconds of the run's clock."""

    role: str
    purpose: Purpose
    direct: bool
    """Whether it wrote in direct mode."""
    n: int
    """Candidates that were sampled."""
    input_tokens: int
    cached_input_tokens: int
    """0 where the engine does not say: then all of the prompt counts as computed."""
    output_tokens: int
    """Over all candidates."""
    submit: float
    end: float
    in_flight: int
    """Calls in flight at its engine when it was sent, itself included."""


class Change(Struct, frozen=True, kw_only=True):
    """A decision of a control, with the estimates that it was based on."""

    time: float
    """Seconds of the run's clock."""
    what: str
    """What was decided, in a word or a few."""
    speculating: int
    """Chains that are to speculate from then on."""
    live: int
    """Chains in their loop."""
    speculative: float | None
    """Expected thought tokens a second of all live chains together, if as many speculate as was decided about; None: not known."""
    direct: float | None
    """The same if none speculates."""


class ModeControl(Protocol):
    """Decides synchronously in which mode each chain goes on.

    A chain is named by its `order`, the number of its start in the input; `now` is the time of the run's clock in seconds.
    """

    @property
    def changes(self) -> Iterable[Change]:
        """The decisions so far, oldest first, so many that `run.json` can hold them."""

    @property
    def most(self) -> int | None:
        """How many chains may go on beside each other, because the target computes no more at once; None: as many as the schedule lets."""

    def enter(self, order: int, now: float) -> None:
        """A chain began its loop."""

    def leave(self, order: int, now: float) -> None:
        """A chain left its loop."""

    def pause(self, order: int, now: float) -> None:
        """The chain pauses in its step, because the engines' caches are full."""

    def resume(self, order: int, now: float) -> None:
        """The chain goes on after a pause."""

    def exhausted(self) -> None:
        """No more chains will enter."""

    def mode(self, order: int, context_tokens: int, now: float) -> Mode:
        """The mode of the chain's next step, asked at every step boundary; `context_tokens` are those of the target."""

    def wrote(self, order: int, mode: Mode, tokens: int, accepted: bool, now: float) -> None:
        """The chain committed `tokens` of its thought: a step of a round, `accepted` where a candidate was, or all that a direct request
        wrote until its end or its interruption."""

    def called(self, call: CallFacts) -> None:
        """A call of a chain was answered that has entered its loop; also behind it, where the target may write the answer."""

    def interrupts(self, now: float) -> Sequence[int]:
        """The chains whose direct request is to be interrupted now; asked after every event, and at `wake`."""

    def wake(self) -> float:
        """When to ask for `interrupts` again though nothing happens; infinite: never."""


class Decision(NamedTuple):
    """What was decided at one step boundary of a chain."""

    mode: Mode
    tokens: int | None = None
    """After how many tokens the direct request was interrupted; None: it was not."""


class Recorded:
    """The `ModeControl` that repeats recorded decisions, so that the same chains come out; it interrupts nothing.

    A direct request that was interrupted after some tokens is to ask for no more than those (`limit`). A chain that goes on after its
    recorded decisions keeps the last mode; one that has none keeps `otherwise`.
    """

    def __init__(self, decisions: Mapping[int, Sequence[Decision]], otherwise: Mode = "speculative") -> None:
        """`decisions`: those of each chain, by its order, in turn."""
        self._decisions, self._otherwise = decisions, otherwise
        self._next: dict[int, int] = {}
        self.changes: tuple[Change, ...] = ()
        self.most: int | None = None

    def enter(self, order: int, now: float) -> None:
        """See `ModeControl.enter`."""
        self._next[order] = 0

    def leave(self, order: int, now: float) -> None:
        """See `ModeControl.leave`."""
        del self._next[order]

    def pause(self, order: int, now: float) -> None:
        """See `ModeControl.pause`."""

    def resume(self, order: int, now: float) -> None:
        """See `ModeControl.resume`."""

    def exhausted(self) -> None:
        """See `ModeControl.exhausted`."""

    def mode(self, order: int, context_tokens: int, now: float) -> Mode:
        """See `ModeControl.mode`."""
        decisions, place = self._decisions.get(order, ()), self._next[order]
        self._next[order] = place + 1
        return decisions[min(place, len(decisions) - 1)].mode if decisions else self._otherwise

    def limit(self, order: int) -> int | None:
        """After how many tokens the direct request that was decided upon last was interrupted; None: it was not."""
        decisions, place = self._decisions.get(order, ()), self._next[order]
        return decisions[place - 1].tokens if 0 < place <= len(decisions) else None

    def wrote(self, order: int, mode: Mode, tokens: int, accepted: bool, now: float) -> None:
        """See `ModeControl.wrote`."""

    def called(self, call: CallFacts) -> None:
        """See `ModeControl.called`."""

    def interrupts(self, now: float) -> Sequence[int]:
        """See `ModeControl.interrupts`."""
        return ()

    def wake(self) -> float:
        """See `ModeControl.wake`."""
        return math.inf
