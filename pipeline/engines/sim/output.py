"""The answer of a simulated engine without the time that it takes, whole or cut by an interruption, and how sure it is of that. Pure."""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

from msgspec import Struct, structs

from pipeline.confidence import Confidence
from pipeline.engine import Candidate, Tokenizer

_NORMAL = NormalDist()
_MEAN, _MIN, _ENTROPY = 0.3, 2.4, 0.6
"""The doubt of a step as nats of its mean log probability, of its least one, and of the entropy of its first token, where z is 0: round
figures, measured nowhere."""

TRIAL_DOUBT = 0.27
"""The doubt of a trial answer in steps' doubts: at the default `trial_auc` a right one is as often above a probability of 0.95 a token, the
threshold of DEER, as a wrong one is below it."""


class Output(Struct, frozen=True):
    """The answer to a request without its timing: text, log probabilities, and the lengths that decide how long it takes."""

    candidates: tuple[Candidate, ...]
    lengths: tuple[int, ...]
    """Number of tokens that are sampled for each candidate, at least one until it is cut; a request that only scores samples one, which
    is dropped."""
    option_logprobs: tuple[float, ...] = ()
    scored_logprobs: tuple[float, ...] = ()

    @property
    def cached(self) -> tuple[tuple[int, ...], ...]:
        """The output tokens of each candidate whose keys and values the cache will hold: all but the last sampled one."""
        each = zip(self.candidates, self.lengths, strict=True)
        return tuple(candidate.ids[: length - 1] for candidate, length in each) if self.candidates else ((),)

    @property
    def sampled(self) -> int:
        """Tokens that were sampled for the candidates."""
        return sum(len(candidate.ids) + candidate.ended for candidate in self.candidates)

    def cut(self, counts: Sequence[int], tokenizer: Tokenizer) -> "Output":
        """The part of it that a request gets if it is interrupted after `counts` tokens of each candidate."""
        each = zip(self.candidates, self.lengths, counts, strict=True)
        candidates = tuple(_interrupted(one, length, count, tokenizer) for one, length, count in each)
        return structs.replace(self, candidates=candidates, lengths=tuple(counts))


def _interrupted(candidate: Candidate, length: int, count: int, tokenizer: Tokenizer) -> Candidate:
    """`candidate`, of `length` sampled tokens, once `count` of them were there: with that share of its log probability."""
    if count == length:
        return candidate
    ids, total = candidate.ids[:count], candidate.cumulative_logprob
    return Candidate(
        ids=ids,
        text=tokenizer.decode(ids),
        cumulative_logprob=None if total is None else total * count / length,
        finish_reason="interrupted",
        confidence=candidate.confidence if ids else None,
    )


def simulated_confidence(auc: float, right: bool, uniform: float, doubt: float = 1.0) -> Confidence:
    """The confidence of a step or a trial answer, by the number `uniform` of [0, 1).

    A standard normal number z is drawn, with d = sqrt(2) times the normal quantile of `auc` added where the step is `right`: so that of a
    right and a wrong step the right one has the greater z with probability `auc`. All four numbers are functions of z alone, and each
    of them separates right steps from wrong ones equally well: with u = exp(-z / 2), times `doubt`, the mean is -0.3 u, the least log
    probability -2.4 u, the entropy of the first token 0.6 u, the margin exp(-0.3 u).
    """
    z = _NORMAL.inv_cdf(min(max(uniform, 1e-12), 1 - 1e-12)) + (_shift(auc) if right else 0.0)
    doubt *= math.exp(-z / 2)
    return Confidence(mean=-_MEAN * doubt, min=-_MIN * doubt, first_entropy=_ENTROPY * doubt, margin=math.exp(-_MEAN * doubt))


@lru_cache(maxsize=64)
def _shift(auc: float) -> float:
    return math.sqrt(2) * _NORMAL.inv_cdf(auc)
