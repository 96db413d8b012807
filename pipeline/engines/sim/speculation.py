"""Token-level speculation of a simulated engine: how many iterations a candidate takes, and what is accepted in them. Pure.

Each token after a candidate's first one is as the draft would propose it with the stated acceptance, which is drawn once for each position
of the text. An iteration takes the longest run of such tokens, at most `num_speculative_tokens`, and one token of the model's own: with
acceptance a and k tokens proposed that is (1 - a^(k+1)) / (1 - a) tokens on average (Leviathan et al., 2023, equation 1). The text is
that of an engine without speculation.
"""

from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.engine import Request, Speculation
from pipeline.engines.sim.spec import SimSpeculativeSpec

Counts: TypeAlias = NDArray[np.int64]

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

    def after(self, iterations: int) -> int:
        """Number of tokens after that many iterations."""
        return int(self.tokens[iterations - 1]) if iterations else 0


def agreement(acceptance: float, request: Request, candidate: int, tokens: int) -> NDArray[np.bool_]:
    """Which of that many tokens after the first one of `candidate` are as the draft proposes them. It follows from these alone, whatever is
    in the batch, and the first of more tokens are the same."""
    key = blake2b(f"speculation\0{request.request_id}\0{request.seed}\0{candidate}".encode(), digest_size=16).digest()
    draws = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little"))).random(tokens)
    return draws < acceptance


def iterations_of(spec: SimSpeculativeSpec, request: Request, candidate: int, length: int) -> CandidateIterations:
    """How `candidate` of `request`, of `length` tokens, is written.

    Tokens that agree form stretches, each up to and with the next token that does not. Within a stretch every iteration takes
    `num_speculative_tokens` + 1 tokens, the last of them the model's own, until the stretch or the candidate ends.
    """
    agrees = agreement(spec.acceptance, request, candidate, max(length - 1, 0))
    places = np.arange(len(agrees))
    begins = np.concatenate(([0], np.maximum.accumulate(np.where(agrees, -1, places))[:-1] + 1))[: len(agrees)]
    own = (places - begins) % (spec.num_speculative_tokens + 1) == spec.num_speculative_tokens
    ends = own | ~agrees
    ends[-1:] = True
    tokens = np.concatenate(([1], np.flatnonzero(ends) + 2))
    return CandidateIterations(tokens, np.diff(tokens) - 1 + (agrees & ~own)[ends])


class SpeculationMeter:
    """Counts what was proposed and accepted for the requests that an engine has answered."""

    def __init__(self, proposals: int) -> None:
        """`proposals` are the tokens proposed at a time."""
        self._proposals, self._drafts = proposals, 0
        self._by_position = np.zeros(proposals, dtype=np.int64)

    def count(self, progress: Sequence[CandidateIterations], lengths: Sequence[int]) -> None:
        """Count a request whose candidates had that many tokens."""
        for each, length in zip(progress, lengths, strict=True):
            accepted = each.accepted[: max(int(np.searchsorted(each.tokens, length, side="right")) - 1, 0)]
            self._drafts += len(accepted)
            self._by_position += np.bincount(accepted, minlength=self._proposals + 1)[::-1].cumsum()[-2::-1]

    def totals(self) -> Speculation:
        """The totals since the engine opened."""
        return Speculation(
            drafts=self._drafts,
            draft_tokens=self._drafts * self._proposals,
            accepted_tokens=int(self._by_position.sum()),
            accepted_by_position=tuple(map(int, self._by_position)),
        )
