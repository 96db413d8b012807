"""Token-level speculation of a simulated engine: how many iterations a candidate takes, and what is accepted in them. Pure.

Each token after a candidate's first one has a number, drawn once for its place in the text. An iteration takes the longest run of tokens
whose numbers are below the acceptance at their position in the proposal, at most `num_speculative_tokens`, and one token of the model's
own: with the same acceptance a everywhere and k tokens proposed that is (1 - a^(k+1)) / (1 - a) tokens on average (Leviathan et al., 2023,
equation 1). Candidates differ in how easy they are to draft for (`acceptance_sigma`). The text is that of an engine without speculation.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.engine import Request, Speculation
from pipeline.engines.sim.spec import SimSpeculativeSpec

_NORMAL = NormalDist()
_GRAIN = 2.0**20
"""Tokens an iteration are multiples of its inverse, so that sums of contexts are exact."""


class CandidateIterations(NamedTuple):
    """The iterations in which one candidate is written."""

    accepted: Sequence[int]
    """Proposed tokens that are accepted in each iteration after the first, which computes the end of the prompt and samples one token."""
    rate: float
    """Mean number of tokens of an iteration after the first, rounded down by less than a millionth."""

    @property
    def iterations(self) -> int:
        """The number of iterations that sample its tokens, at least one."""
        return 1 + len(self.accepted)


def draws(request: Request, candidate: int, tokens: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each of that many tokens after the first one of `candidate`. They follow from these alone, whatever is in the
    batch, and the first of more tokens are the same."""
    key = blake2b(f"speculation\0{request.request_id}\0{request.seed}\0{candidate}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little"))).random(tokens)


def acceptances(spec: SimSpeculativeSpec, request: Request, candidate: int) -> list[float]:
    """The acceptance at each position of what is proposed for `candidate`, which is as easy or as hard to draft for everywhere."""
    stated = spec.acceptance if isinstance(spec.acceptance, tuple) else (spec.acceptance,)
    middle = [stated[min(position, len(stated) - 1)] for position in range(spec.num_speculative_tokens)]
    if not spec.acceptance_sigma:
        return middle
    key = blake2b(f"difficulty\0{request.request_id}\0{request.seed}\0{candidate}".encode(), digest_size=7).digest()
    odds = math.exp(spec.acceptance_sigma * _NORMAL.inv_cdf((int.from_bytes(key) + 0.5) / (1 << 56)))
    return [each * odds / (each * odds + 1 - each) for each in middle]


def iterations_of(spec: SimSpeculativeSpec, request: Request, candidate: int, length: int) -> CandidateIterations:
    """How `candidate` of `request`, of `length` tokens, is written.

    A token at a place of the text agrees with what is proposed for it at position i if its draw is below the acceptance there. An
    iteration that begins at a place takes the tokens from it on that agree, at most `num_speculative_tokens`, and one of the model's own.
    """
    drawn = draws(request, candidate, max(length - 1, 0))
    agrees = np.ones(len(drawn), dtype=bool)
    accepted = np.zeros(len(drawn), dtype=np.int64)  # by the place at which an iteration begins
    for position, rate in enumerate(acceptances(spec, request, candidate)):
        ahead = np.zeros(len(drawn), dtype=bool)
        ahead[: max(len(drawn) - position, 0)] = drawn[position:] < rate
        agrees &= ahead
        accepted += agrees
    at, by_place, taken = 0, accepted.tolist(), list[int]()
    while at < len(by_place):
        taken.append(by_place[at])
        at += by_place[at] + 1
    return CandidateIterations(taken, int((length - 1) * _GRAIN / len(taken)) / _GRAIN if taken else 1.0)


class SpeculationMeter:
    """Counts what was proposed and accepted for the requests that an engine has answered."""

    def __init__(self, spec: SimSpeculativeSpec) -> None:
        self._spec, self._accepted = spec, Counter[int]()
        """Iterations by the tokens that were accepted in them."""

    def count(self, progress: Iterable[CandidateIterations]) -> None:
        """Count the candidates of a request."""
        for each in progress:
            self._accepted.update(each.accepted)

    def totals(self) -> Speculation:
        """The totals since the engine opened."""
        proposals, counts = self._spec.num_speculative_tokens, self._accepted
        by_position = tuple(sum(counts[accepted] for accepted in range(place + 1, proposals + 1)) for place in range(proposals))
        drafts = max(round(counts.total() * self._spec.proposed_share), by_position[0])
        return Speculation(
            drafts=drafts, draft_tokens=drafts * proposals, accepted_tokens=sum(by_position), accepted_by_position=by_position
        )
