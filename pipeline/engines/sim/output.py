"""The answer of a simulated engine without the time that it takes, whole or cut by a stop, and how sure it is of that, or of
candidates that it judges. Pure."""

import math
from bisect import bisect_left
from functools import cached_property
from statistics import NormalDist
from typing import Protocol

from msgspec import Struct

from pipeline.confidence import Confidence
from pipeline.engine import Candidate, Fact, FinishReason, Request, Tokenizer
from pipeline.engines.sim.tokenizer import END, SimTokenizer
from pipeline.graph.prompts import DELIMITER

_NORMAL = NormalDist()
_TOKENIZER = SimTokenizer()
_END = _TOKENIZER.special_ids[END]
(_BLANK_LINE,), (_LINE,) = _TOKENIZER.encode(DELIMITER), _TOKENIZER.encode("\n")
_MEAN, _MIN, _ENTROPY = 0.3, 2.4, 0.6
"""The doubt of a step as nats of its mean log probability, of its least one, and of the entropy of its first token, where z is 0: round
figures, measured nowhere."""

TRIAL_DOUBT = 0.27
"""The doubt of a trial answer in steps' doubts: a right one is as often above a probability of 0.95 a token, the threshold of DEER, as a
wrong one is below it."""
GATE_AUC, TRIAL_AUC = 0.75, 0.9
"""How well log probabilities tell right steps, and right trial answers, from wrong ones: the area under the ROC curve, assumed."""


class Output(Struct, frozen=True, dict=True):
    """The answer to a request without its timing: texts and log probabilities."""

    candidates: tuple[Candidate, ...]
    option_logprobs: tuple[float, ...] = ()

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Tokens that are sampled for each candidate, at least one."""
        return tuple(max(len(each.ids) + each.ended, 1) for each in self.candidates)

    @property
    def cached(self) -> tuple[tuple[int, ...], ...]:
        """The output tokens of each candidate whose keys and values the cache will hold: all but the last sampled one."""
        return tuple(one.ids[: size - 1] for one, size in zip(self.candidates, self.lengths, strict=True)) or ((),)

    @property
    def sampled(self) -> int:
        """Tokens that were sampled for the candidates."""
        return sum(len(candidate.ids) + candidate.ended for candidate in self.candidates)


class TextSource(Protocol):
    """Where a simulated engine's text comes from: a seeded model, or a recorded run."""

    tokenizer: Tokenizer
    vocab_size: int
    facts: dict[str, Fact]
    """What it says of the answers (`Engine.facts`)."""

    def output(self, request: Request, max_model_len: int) -> Output:
        """The answer to `request`, which must fit into the context. Raises `ChainError` where there is none."""


def simulated_confidence(auc: float, right: bool, uniform: float, doubt: float = 1.0) -> Confidence:
    """The confidence of a step or a trial answer, by the number `uniform` of [0, 1).

    A standard normal number z is drawn, with d = sqrt(2) times the normal quantile of `auc` added where the step is `right`: so that of a
    right and a wrong step the right one has the greater z with probability `auc`. All four numbers are functions of z alone, and each
    of them separates right steps from wrong ones equally well: with u = exp(-z / 2), times `doubt`, the mean is -0.3 u, the least log
    probability -2.4 u, the entropy of the first token 0.6 u, the margin exp(-0.3 u).
    """
    z = normal_of(uniform) + right * math.sqrt(2) * _NORMAL.inv_cdf(auc)
    doubt *= math.exp(-z / 2)
    return Confidence(mean=-_MEAN * doubt, min=-_MIN * doubt, first_entropy=_ENTROPY * doubt, margin=math.exp(-_MEAN * doubt))


def normal_of(uniform: float) -> float:
    """The standard normal number of which `uniform` is the quantile."""
    return _NORMAL.inv_cdf(min(max(uniform, 1e-12), 1 - 1e-12))


def written(ids: tuple[int, ...], text: str, limit: int, request: Request) -> Candidate:
    """`ids`, whose text is `text`, as a candidate, cut at `limit` and at the first stop of the request; its log probability is -0.25 to
    -0.75 nat a token."""
    count, reason = _stopped(ids[:limit], request)
    kept = ids[:count]
    ended = reason is None and count < limit and ids[count : count + 1] == (_END,)
    finish: FinishReason = "length" if reason is None and not ended else "stop"
    logprob = -(count + ended) * (0.25 + hash(kept) % 1024 / 2048)
    text = text if count == len(ids) else _TOKENIZER.decode(kept)
    return Candidate(ids=kept, text=text, cumulative_logprob=logprob, finish_reason=finish, stop_reason=reason)


def _stopped(ids: tuple[int, ...], request: Request) -> tuple[int, str | int | None]:
    """How many of `ids` are left when they are cut at the request's first stop, and the stop reason."""
    found: list[tuple[int, str | int | None]] = [(ids.index(token) + 1, token) for token in request.stop_ids if token in ids]
    if _END in ids and _END not in request.stop_ids:
        found.append((ids.index(_END), None))
    for stop in request.stop:
        if stop == DELIMITER and _LINE not in ids:
            found += [(ids.index(_BLANK_LINE) + 1, stop)] if _BLANK_LINE in ids else []
        else:
            found += _completed(ids, stop)
    return min(found, key=lambda item: item[0], default=(len(ids), None))


def _completed(ids: tuple[int, ...], stop: str) -> list[tuple[int, str | int | None]]:
    """How many of `ids` it takes to complete the first `stop` in their text, with that stop; empty where it is not there."""
    if stop not in _TOKENIZER.decode(ids):
        return []
    return [(bisect_left(range(len(ids)), True, key=lambda count: stop in _TOKENIZER.decode(ids[:count])), stop)]
