"""What a run has learnt about its engines and its loop, with which the next run on the same ones can begin. Pure."""

from msgspec import Struct


class RoundPace(Struct, frozen=True):
    """How fast rounds were with about so many chains."""

    chains: int
    """A power of two."""
    seconds: float
    """Per token of a chain."""
    context: float
    """Mean tokens of the chains' contexts."""
    rounds: float
    """Rounds that it is known from."""


class Knowledge(Struct, frozen=True, kw_only=True):
    """What `Adaptive` knows at the end of a run; the defaults are what it knows before any."""

    direct: tuple[float, ...] = ()
    """Of an iteration of the target alone: seconds, seconds per token of context, seconds per sequence; empty: not known."""
    paces: tuple[RoundPace, ...] = ()
    draft_s: float | None = None
    """Seconds per token of the fastest draft."""
    step_tokens: float = 50.0
    acceptance: float = 0.75
    """Share of the rounds in which a candidate is committed."""


NOTHING_KNOWN = Knowledge()
