"""Token-level speculation of a simulated engine: how many iterations a candidate takes, and what is accepted in them. Pure.

Each token after a candidate's first one has a number, drawn once for its place in the text. An iteration takes the longest run of tokens
whose numbers are below the acceptance at their position in the proposal, at most `num_speculative_tokens`, and one token of the model's
own: with the same acceptance a everywhere and k tokens proposed that is (1 - a^(k+1)) / (1 - a) tokens on average (Leviathan et al., 2023,
equation 1). Candidates differ in how easy they are to draft for (`acceptance_sigma`). The text is that of an engine without speculation.
"""

import math
from collections.abc import Iterable
from functools import cached_property
from hashlib import blake2b
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.engine import Request, Speculation
from pipeline.engines.sim.spec import SimSpeculativeSpec

Counts: TypeAlias = NDArray[np.int64]

_NORMAL = NormalDist()
_GRAIN = 2.0**20
"""Tokens an iteration are multiples of its inverse, so that sums of contexts are exact."""


class CandidateIterations:
    """The iterations in which one candidate is written, at least one."""

    def __init__(self, tokens: Counts, accepted: Counts) -> None:
        self.tokens = tokens
        """Tokens that there are after each iteration; the first, which computes the end of the prompt, samples one."""
        self.accepted = accepted
        """Proposed tokens that are accepted in each iteration but the first."""

    @property
    def iterations(self) -> int:
        """The number of iterations that sample its tokens."""
        return len(self.tokens)

    @cached_property
    def rate(self) -> float:
        """Mean number of tokens of an iteration after the first, rounded down by less than a millionth."""
        rest = self.iterations - 1
        return int((int(self.tokens[-1]) - 1) * _GRAIN / rest) / _GRAIN if rest else 1.0


def draws(request: Request, candidate: int, tokens: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each of that many tokens after the first one of `candidate`. They follow from these alone, whatever is in the
    batch, and the first of more tokens are the same."""
    key = blake2b(f"speculation\0{request.request_id}\0{request.seed}\0{candidate}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little"))).random(tokens)


def acceptances(spec: SimSpeculativeSpec, request: Request, candidate: int) -> list[float]:
    """The acceptance at each position of what is proposed for `candidate`, which is as easy or as hard to draft for everywhere."""
    middle = [spec.accepted_at(position) for position in range(spec.num_speculative_tokens)]
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
    places, at = [], 0
    after = (np.arange(len(drawn)) + accepted + 1).tolist()  # where the next iteration begins
    while at < len(drawn):
        places.append(at)
        at = after[at]
    taken = accepted[places] if places else accepted[:0]
    ends = np.minimum(np.asarray(places, dtype=np.int64) + taken + 1, len(drawn))
    return CandidateIterations(np.concatenate(([1], ends + 1)), taken)


class SpeculationMeter:
    """Counts what was proposed and accepted for the requests that an engine has answered."""

    def __init__(self, proposals: int, share: float = 1.0) -> None:
        """`proposals` are the tokens proposed at a time, in this `share` of the iterations."""
        self._proposals, self._share, self._iterations = proposals, share, 0
        self._by_position = np.zeros(proposals, dtype=np.int64)

    def count(self, progress: Iterable[CandidateIterations]) -> None:
        """Count the candidates of a request."""
        for each in progress:
            self._iterations += len(each.accepted)
            self._by_position += np.bincount(each.accepted, minlength=self._proposals + 1)[::-1].cumsum()[-2::-1]

    def totals(self) -> Speculation:
        """The totals since the engine opened."""
        drafts = max(round(self._iterations * self._share), int(self._by_position[0]))
        return Speculation(
            drafts=drafts,
            draft_tokens=drafts * self._proposals,
            accepted_tokens=int(self._by_position.sum()),
            accepted_by_position=tuple(map(int, self._by_position)),
        )
