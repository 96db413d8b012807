"""What a draft and a target engine take for chains in both modes: figures of the engines and of a round enter, speeds leave. Pure.

An iteration of an engine takes the longer of its memory traffic and its arithmetic, plus overhead. How many calls of each kind are in
flight follows from how long they take, and the other way round: `speeds` finds where both agree.
"""

import math

from msgspec import Struct

STEPS = 40
"""Iterations of the fixed point, each of which halves the distance to it."""
SHORTEST_S = 1e-9
"""Minimum seconds that anything counts as: a clock may not advance between two events."""


class IterationCost(Struct, frozen=True, kw_only=True):
    """How long one iteration of an engine takes that has its device to itself; all fields are seconds."""

    fixed: float
    """Memory traffic whatever is computed: reading the weights."""
    per_context: float = 0.0
    """Memory traffic of one token of context that is read."""
    per_token: float = 0.0
    """Arithmetic of one token, sampled or of a prompt."""
    overhead: float = 0.0
    """Added to every iteration."""

    def seconds(self, context: float, tokens: float) -> float:
        """Seconds of an iteration that reads `context` tokens of context and computes `tokens` tokens."""
        return max(self.fixed + self.per_context * context, self.per_token * tokens, SHORTEST_S) + self.overhead

    def scaled(self, factor: float) -> "IterationCost":
        """The cost of an engine that takes `factor` times as long for everything."""
        return IterationCost(
            fixed=self.fixed * factor,
            per_context=self.per_context * factor,
            per_token=self.per_token * factor,
            overhead=self.overhead * factor,
        )


class Round(Struct, frozen=True, kw_only=True):
    """A round of a chain on average: what is drafted, verified and, after a rejection, written by the target."""

    tokens: float = 50.0
    """Tokens of the committed step."""
    drafted: float = 50.0
    """Tokens of one candidate."""
    candidates: float = 1.0
    verified: float = 100.0
    """Tokens of the verification that are not in the target's cache: candidates and question."""
    acceptance: float = 0.75
    """Share of the rounds in which a candidate is committed."""


class Speeds(Struct, frozen=True):
    """Tokens of its thought that a chain gets in a second, by its mode."""

    speculative: float
    direct: float
    target_load: float = 1.0
    """Share of the time of a draft's call in which the target computes for other chains."""


class CostModel(Struct, frozen=True, kw_only=True):
    """A draft and a target engine that may slow each other."""

    target: IterationCost
    draft: IterationCost
    interference: float = 1.0
    """By what share of its time each engine takes longer while the other one computes: 0 on separate hardware, 1 in time slices."""

    def direct(self, chains: float, context: float) -> float:
        """Tokens a second of each of `chains` chains that are all direct and have `context` tokens each."""
        return 1 / self.target.seconds(chains * context, chains)

    def speeds(self, speculative: float, direct: float, context: float, step: Round) -> Speeds:
        """Speeds of the chains if that many are `speculative` and `direct`, with `context` tokens each."""
        phi, others = self.interference, max(speculative - 1, 0.0)
        round_s = step.tokens * self.target.seconds((speculative + direct) * context, speculative + direct)
        draft_s = target_s = round_s / 2
        verify_s = write_s = 0.0
        writes = (1 - step.acceptance) * step.tokens
        for _ in range(STEPS):
            drafts, targets = draft_s / round_s, (verify_s + write_s) / round_s
            waiting = 1.0 if direct >= 1 else _busy(others, targets)
            each = max(speculative * min(drafts, 1.0), 1.0) * step.candidates
            draft_s = step.drafted * self.draft.seconds(each * context, each) * (1 + phi * waiting)
            writing = speculative * write_s / round_s
            verifying = min(speculative, max(speculative * target_s / round_s, 1.0 if not direct else 0.0))
            read, tokens = direct + writing + verifying, direct + writing + verifying * step.verified
            beside = _busy(others if not direct else speculative, drafts)
            target_s = self.target.seconds(read * context, tokens) * (1 + phi * beside)
            verify_s, write_s = target_s * (1 + 0.5 * waiting), writes * target_s
            round_s = (round_s + draft_s + verify_s + write_s) / 2
        return Speeds(step.tokens / round_s, 1 / target_s, waiting)


def _busy(chains: float, share: float) -> float:
    """The share of the time in which at least one of `chains` is in a phase that takes `share` of its round."""
    return 1 - math.pow(1 - min(share, 1.0), max(chains, 0.0))
