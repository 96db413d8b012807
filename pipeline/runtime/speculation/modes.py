"""What leaves the controller: the modes of chains, its decisions, and what it has learnt, with which it begins the next run."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

Mode = Literal["speculative", "direct"]
"""`speculative`: the body of the loop writes the next step; `direct`: the target writes on in one request, as it does alone."""
Positive = Annotated[float, Meta(gt=0, le=1e12)]


class ModeDecision(Struct, frozen=True, kw_only=True):
    """A decision of `Adaptive`, with the estimates that it was based on."""

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


class RoundPace(Struct, frozen=True):
    """How fast rounds were with about so many chains."""

    chains: Annotated[int, Meta(ge=1, le=1 << 30)]
    """A power of two."""
    seconds: Positive
    """Per token of a chain."""
    context: Positive
    """Mean tokens of the chains' contexts."""
    rounds: Positive
    """Rounds that it is known from."""


class Knowledge(Struct, frozen=True, kw_only=True):
    """What a run has learnt about its engines and its loop, with which the next one on the same ones can begin; the defaults are what is
    known before any. The bounds hold where it is read from a file: values outside of them would break arithmetic."""

    direct: tuple[Annotated[float, Meta(ge=0, le=1e12)], ...] = ()
    """Of an iteration of the target alone: seconds, seconds per token of context, seconds per sequence; empty: not known."""
    paces: tuple[RoundPace, ...] = ()
    draft_s: Positive | None = None
    """Seconds per token of the fastest draft."""
    step_tokens: Positive = 50.0
    acceptance: Annotated[float, Meta(ge=0, le=1)] = 0.75
    """Share of the rounds in which a candidate is committed."""

    def __post_init__(self) -> None:
        """Raise `ValueError` where `direct` is no curve."""
        if len(self.direct) not in (0, 3):
            raise ValueError("expected no figures or three in `direct`")


NOTHING_KNOWN = Knowledge()
