"""What earlier sessions of a run left behind: which chains are over, and the answered calls of those that are not. Pure data.

A chain is taken up again by walking its plan from the start while its recorded calls answer in place of the engines: the
same seeds ask the same requests, so that it stands where it stood, to the last answered call, and then goes on.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from pipeline.engine import Candidate, Completion, FinishReason, Request, Tokenizer, Usage
from pipeline.errors import ChainError

NO_STAGE = "no stage"


class ResumeMismatch(ChainError):
    """A chain that was taken up again committed another step than the trace has."""

    def __init__(self, step_index: int) -> None:
        super().__init__(f"step {step_index} came out differently from the one that the run folder holds; its calls are not all there")
        self.step_index = step_index


class RecordedCall(Struct, frozen=True, kw_only=True):
    """One call that an engine answered."""

    request_id: str
    prompt_digest: int | None
    """Null where an earlier version recorded it."""
    usage: Usage
    wait_s: float
    submit_unix_ns: int
    end_unix_ns: int
    output_token_ids: Sequence[Sequence[int]]
    """Of each candidate, as are the two below."""
    finish_reason: Sequence[FinishReason]
    stop_reason: Sequence[str | None]
    option_logprobs: Sequence[float]
    scored_logprobs: Sequence[float]

    def completion(self, tokenizer: Tokenizer) -> Completion:
        """The answer once more; texts are those of the recorded ids."""
        each = zip(self.output_token_ids, self.finish_reason, self.stop_reason, strict=True)
        return Completion(
            candidates=tuple(
                Candidate(ids=tuple(ids), text=tokenizer.decode(ids), cumulative_logprob=None, finish_reason=finish, stop_reason=stop)
                for ids, finish, stop in each
            ),
            option_logprobs=tuple(self.option_logprobs),
            scored_logprobs=tuple(self.scored_logprobs),
            usage=self.usage,
        )


class ResumedChain(Struct, kw_only=True):
    """One unfinished chain. It is used up as the chain walks along it."""

    calls: dict[str, RecordedCall] = {}
    """Answered, by their requests' ids."""
    attempts: int = 0
    """Rows of the calls table, failed ones included."""
    steps: list[tuple[int, ...]] = []
    """Token ids of the steps that are in the table, in order."""
    started_unix_ns: int | None = None
    """When its first call could have left."""
    ended_unix_ns: int | None = None
    """When its last call came back."""

    def take(self, request: Request) -> RecordedCall | None:
        """The recorded answer to this very request, once; none where it was asked about something else."""
        call = self.calls.pop(request.request_id, None)
        return None if call is None or call.prompt_digest not in (None, request.digest()) else call

    def holds(self, index: int, ids: Sequence[int]) -> bool:
        """Is the chain's `index`-th commit in the table already? Raises `ResumeMismatch` where another one is."""
        if index >= len(self.steps):
            return False
        if self.steps[index] != tuple(ids):
            raise ResumeMismatch(index)
        return True


class ResumeState(Struct, kw_only=True):
    """All that earlier sessions left; of a new run, nothing."""

    over: "np.ndarray[tuple[int], np.dtype[np.bool_]] | None" = None
    """By the chain's place in the run's order: true where it needs nothing more."""
    chains: dict[str, ResumedChain] = {}
    """Of chains that were begun, by `chain_id`."""
    done: int = 0
    failed: int = 0
    graded: int = 0
    correct: int = 0
    errors: Counter[tuple[str, str]] = Counter()
    """Failed chains by the error and the stage that they met it in, `NO_STAGE` where none had begun."""
    decisions: Counter[str] = Counter()
    """Steps in the table, by their decision."""
    output_tokens: dict[str, int] = {}
    """By role."""
    last_call_unix_ns: int | None = None
    """When the last call of any chain came back; null without calls."""

    def is_over(self, order: int) -> bool:
        """Does the chain at this place need nothing more?"""
        return self.over is not None and order < len(self.over) and bool(self.over[order])

    def chain(self, chain_id: str) -> ResumedChain:
        """What is known of this chain; it is handed out once."""
        return self.chains.pop(chain_id, None) or ResumedChain()
