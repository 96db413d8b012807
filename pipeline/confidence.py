"""How sure a model was of what it wrote: log probabilities of its tokens enter, four numbers leave. Pure.

Every engine works them out where it has the log probabilities, so that neither its answers nor a trace hold a list for each token.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from msgspec import Struct

LIKELIEST = 20
"""How many of the likeliest tokens an engine looks at in each place: as many as OpenAI's servers name. One that names fewer does with
those."""
Measure = Literal["mean", "min", "first_entropy", "margin"]
"""A number of a `Confidence`, by its field."""


class Confidence(Struct, frozen=True, kw_only=True):
    """How sure a model was of a text that it sampled, an end-of-sequence token included, under its own distribution at temperature 1."""

    mean: float
    """Mean log probability of the sampled tokens, nats; at most 0."""
    min: float
    """Log probability of the least likely of them, nats; at most 0."""
    first_entropy: float
    """Entropy of the distribution that the first token was sampled from, nats; at least 0. The k likeliest tokens count as they are
    and all others, which have the mass r together, as one token. So it is at most r ln(V - k) too low, where V is the size of the
    vocabulary, and never too high."""
    margin: float
    """Probability of the likeliest token less that of the next, 0 to 1: the mean over all tokens. Where an engine names one token alone,
    all others count as the next, so that it is never too high."""

    @property
    def flaw(self) -> str | None:
        """Why no text can have these numbers, in one clause; None where one can. A hundredth is for rounding in half precision."""
        for name, low, high in (
            ("mean", -math.inf, 0.01),
            ("min", -math.inf, 0.01),
            ("first_entropy", 0.0, math.inf),
            ("margin", -0.01, 1.01),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                return f"{value} is not a valid {name} of log probabilities"
        return None


def confidence_of(logprobs: Sequence[float], likeliest: Sequence[Sequence[float]]) -> Confidence | None:
    """The confidence of a text from the log probabilities of its sampled tokens, and of the likeliest tokens in each place, the likeliest
    first; None of a text without tokens."""
    if not logprobs:
        return None
    margins = fmean(map(_margin, likeliest))
    return Confidence(mean=fmean(logprobs), min=min(logprobs), first_entropy=_entropy(likeliest[0]), margin=margins)


def _margin(likeliest: Sequence[float]) -> float:
    first = math.exp(likeliest[0])
    return first - math.exp(likeliest[1]) if len(likeliest) > 1 else max(0.0, 2 * first - 1)


def _entropy(likeliest: Sequence[float]) -> float:
    """Entropy in nats where the mass that the `likeliest` tokens leave is that of one more token."""
    shares = [math.exp(logprob) for logprob in likeliest]
    rest = 1.0 - math.fsum(shares)
    return max(0.0, -math.fsum(share * math.log(share) for share in (*shares, rest) if share > 0))
