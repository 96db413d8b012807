"""The contract of a controller that decides, at every step boundary, in which mode a chain continues. No I/O, no clock, no task."""

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from pipeline.graph.spec import Purpose
from pipeline.runtime.speculation.knowledge import Knowledge

Mode = Literal["speculative", "direct"]
"""`speculative`: the body of the loop writes the next step; `direct`: the target writes on in one request, as it does alone."""


class CallFacts(Struct, frozen=True, kw_only=True):
    """A call that was answered. Times are seconds of the run's clock."""

    role: str
    purpose: Purpose
    direct: bool
    """True if it wrote in direct mode."""
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


class ModeDecision(Struct, frozen=True, kw_only=True):
    """A decision of a control, with the estimates that it was based on."""

    time: float
    """Seconds of the run's clock."""
    what: str
    """The decision, in a word or a few."""
    speculating: int
    """Chains that are to speculate from then on."""
    live: int
    """Chains in their loop."""
    speculative: float | None
    """Expected thought tokens a second of all live chains together, if as many speculate as was decided about; where it ended because it
    was slow, those that it had; None: not known."""
    direct: float | None
    """The same if none speculates."""


class ModeControl(Protocol):
    """Decides synchronously in which mode each chain continues.

    A chain is named by its `order`, the number of its start in the input; `now` is the time of the run's clock in seconds.
    """

    @property
    def changes(self) -> Iterable[ModeDecision]:
        """The decisions so far, oldest first, few enough for `run.json` to hold them."""

    @property
    def knowledge(self) -> Knowledge:
        """What is known by now, with which a later run can begin."""

    @property
    def max_running(self) -> int | None:
        """The maximum number of chains that may run at once, because the target computes no more; None: the schedule's own."""

    def enter(self, order: int, now: float) -> None:
        """A chain began its loop."""

    def leave(self, order: int, now: float) -> None:
        """A chain left its loop."""

    def pause(self, order: int, now: float) -> None:
        """The chain pauses in its step, because the engines' caches are full."""

    def resume(self, order: int, now: float) -> None:
        """The chain continues after a pause."""

    def mode(self, order: int, context_tokens: int, now: float) -> Mode:
        """The mode of the chain's next step, asked at every step boundary; `context_tokens` are those of the target."""

    def wrote(self, order: int, mode: Mode, tokens: int, accepted: bool, now: float) -> None:
        """The chain committed `tokens` of its thought: a step of a round, `accepted` where a candidate was, or all that a direct request
        wrote until its end or its interruption."""

    def called(self, call: CallFacts) -> None:
        """A call of a chain was answered that has entered its loop; also after it, where the target may write the answer."""

    def interrupts(self, now: float) -> Sequence[int]:
        """The chains whose direct request is to be interrupted now; asked after every event, and at `wake`."""

    def wake(self) -> float:
        """When to ask for `interrupts` again though nothing happens; infinite: never."""
