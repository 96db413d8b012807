"""What a run has learnt about its engines and its loop, with which the next run on the same ones can begin. Pure.

The bounds hold where it is read from a file: values outside of them would break the arithmetic of the controller.
"""

from typing import Annotated

from msgspec import Meta, Struct

Positive = Annotated[float, Meta(gt=0, le=1e12)]
Weight = Annotated[float, Meta(ge=0, le=1e12)]


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
    """What `Adaptive` knows at the end of a run; the defaults are what it knows before any."""

    direct: tuple[Weight, ...] = ()
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
