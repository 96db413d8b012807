"""The state that earlier sessions of a run left behind: which chains are finished, and the answered calls of those that are not. Pure data.

A chain is resumed by running its plan from the start while its recorded calls answer in place of the engines: the same seeds
lead to the same requests, so that it comes to its last answered call as before, and from there on asks the engines.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import Struct

from pipeline.confidence import Confidence
from pipeline.engine import Candidate, Completion, FinishReason, Request, Tokenizer, Usage
from pipeline.errors import ChainError

NO_STAGE = "no stage"
"""The stage of a chain that failed before its first one."""


class ResumeMismatch(ChainError):
    """A resumed chain committed another step than the run folder holds."""

    def __init__(self, step_index: int) -> None:
        super().__init__(f"step {step_index} differs from the one in the run folder; some of its calls are missing")
        self.step_index = step_index


class ResumedCall(Struct, frozen=True, kw_only=True):
    """One call that an engine answered in an earlier session; its fields are columns of the calls table."""

    request_id: str
    prompt_digest: int | None
    """`Request.digest` of what it was asked."""
    usage: Usage
    wait_s: float
    """Seconds that it waited before it was sent, the column `client_wait_s`."""
    output_token_ids: Sequence[Sequence[int]]
    """Token ids of each candidate; the two fields below have one entry for each candidate as well."""
    finish_reason: Sequence[FinishReason]
    stop_reason: Sequence[str | None]
    option_logprobs: Sequence[float]
    scored_logprobs: Sequence[float]
    confidences: Sequence[Confidence | None] = ()

    def completion(self, tokenizer: Tokenizer) -> Completion:
        """The completion that the engine gave, with texts decoded from the recorded ids."""
        known = self.confidences or [None] * len(self.output_token_ids)
        each = zip(self.output_token_ids, self.finish_reason, self.stop_reason, known, strict=True)
        return Completion(
            candidates=tuple(
                Candidate(
                    ids=tuple(ids),
                    text=tokenizer.decode(ids),
                    cumulative_logprob=None,
                    finish_reason=finish,
                    stop_reason=stop,
                    confidence=confidence,
                )
                for ids, finish, stop, confidence in each
            ),
            option_logprobs=tuple(self.option_logprobs),
            scored_logprobs=tuple(self.scored_logprobs),
            usage=self.usage,
        )


class ResumedChain(Struct, kw_only=True):
    """The rows of one unfinished chain in the run folder; each call is taken out when the chain comes to it."""

    calls: dict[str, ResumedCall] = {}
    """Its answered calls, by their requests' ids."""
    attempts: int = 0
    """Its rows in the calls table, failed ones included."""
    steps: list[tuple[int, ...]] = []
    """Token ids of its steps in the steps table, in order."""
    lives: dict[int, tuple[int, int]] = {}
    """When its first call could have been sent and its last one came back, for each time that it was live."""

    def attempt(self, life: int, submit_unix_ns: int, wait_s: float, end_unix_ns: int) -> None:
        """Count a row of the calls table, which the chain had in its `life` of that number."""
        ready = submit_unix_ns - round(wait_s * 1e9)
        since, until = self.lives.get(life, (ready, end_unix_ns))
        self.lives[life] = min(since, ready), max(until, end_unix_ns)
        self.attempts += 1

    @property
    def started_unix_ns(self) -> int | None:
        """When its first call could have been sent."""
        return min((since for since, _ in self.lives.values()), default=None)

    @property
    def lived_s(self) -> float:
        """Seconds from its first call to its last one, without the time in which it was not live."""
        return sum(until - since for since, until in self.lives.values()) / 1e9

    def take(self, request: Request) -> ResumedCall | None:
        """Take out the answered call of this request; None where there is none, or one of the same id had another prompt."""
        call = self.calls.pop(request.request_id, None)
        return None if call is None or call.prompt_digest not in (None, request.digest()) else call

    def holds(self, index: int, ids: Sequence[int]) -> bool:
        """True if the steps table has the chain's step number `index` (from 0). Raises `ResumeMismatch` where it has other `ids`."""
        if index >= len(self.steps):
            return False
        if self.steps[index] != tuple(ids):
            raise ResumeMismatch(index)
        return True


class ResumeState(Struct, kw_only=True):
    """Everything that earlier sessions of a run left behind; empty for a new run."""

    over: "array[int]" = msgspec.field(default_factory=partial(array, "q"))
    """The places in the input of the chains that are over, in ascending order."""
    chains: dict[str, ResumedChain] = {}
    """The chains that were begun and are not over, by `chain_id`."""
    done: int = 0
    """Chains that finished."""
    failed: int = 0
    """Chains that failed."""
    graded: int = 0
    """Chains that count as right or wrong; see `events.counted`."""
    correct: int = 0
    """Chains whose answer is right."""
    errors: Counter[tuple[str, str]] = Counter()
    """The number of chains that failed, by the error and the stage in which they met it (`NO_STAGE` before the first)."""
    decisions: Counter[str] = Counter()
    """Rows of the steps table, by their decision."""
    output_tokens: dict[str, int] = {}
    """Output tokens of all calls, by role."""
    last_call_unix_ns: int | None = None
    """When the last call of any chain came back; None without calls."""

    def is_over(self, order: int) -> bool:
        """True if the chain at the place `order` of the input needs nothing more."""
        found = bisect_left(self.over, order)
        return found < len(self.over) and self.over[found] == order

    def chain(self, chain_id: str) -> ResumedChain:
        """Take out what the run folder holds of this chain; an empty `ResumedChain` where it holds nothing."""
        return self.chains.pop(chain_id, None) or ResumedChain()
