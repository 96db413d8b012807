"""The stage contract: two pure functions around engine calls.

`requests` says what to ask about a chain as it stands, `apply` what the answers do to it. Neither waits, times,
retries or records; the runtime does that once for all stages.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from pipeline.engine import Candidate, Completion, Request
from pipeline.graph.spec import StageSpec
from pipeline.reasoning.chain import Chain, Outcome, Span
from pipeline.reasoning.prompts import DELIMITER, PromptBuilder


class Stage(Protocol):
    """A stage of a plan, ready to run."""

    name: str
    spec: Any
    role: str
    """The engine it calls."""

    def requests(self, chain: Chain) -> list[Request]:
        """What to ask, in order; nothing is asked when it is empty."""

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        """What the answers, in that order, make of the chain. Changes nothing itself."""

    def check(self, candidates: int) -> str | None:
        """Why the engine's tokenizer does not serve this stage where up to `candidates` are drafted, in one clause; None where it does."""


class StageKind(Struct, frozen=True, kw_only=True):
    """What an entry point of the group `pipeline.stages` names."""

    spec: type[StageSpec]
    build: Any
    """`build(name, spec, builders) -> Stage`, with the `PromptBuilder` of each role."""


class EngineStage:
    """What the built-in stages share: one engine, its dialect, requests and spans in its terms."""

    def __init__(self, name: str, spec: Any, builders: Mapping[str, PromptBuilder]) -> None:
        self.name, self.spec = name, spec
        self.role: str = spec.engine
        self.builder = builders[self.role]
        self.close_ids = () if self.builder.think_close_id is None else (self.builder.think_close_id,)
        self.step_stop = (DELIMITER,)

    def check(self, candidates: int) -> str | None:
        """See `Stage.check`; most stages can be asked of any engine."""
        return None

    def request(self, chain: Chain, prompt_ids: Sequence[int], max_tokens: int, part: str = "", **fields: Any) -> Request:
        """A request in the name of the chain, its step and this stage; `part` tells several of one step apart."""
        return Request(
            request_id=f"{chain.chain_id}/{len(chain.steps)}/{self.name}{part}",
            prompt_ids=tuple(prompt_ids),
            max_tokens=max_tokens,
            seed=chain.seed(self.name),
            affinity=chain.chain_id,
            **fields,
        )

    def span(self, candidate: Candidate) -> Span:
        """A candidate as part of a thought; it closes the thought when it ends in `</think>` or in the end of sequence."""
        closes = candidate.ended or bool(self.close_ids and candidate.ids and candidate.ids[-1] == self.close_ids[0])
        return Span(self.role, candidate.ids, candidate.text, closes)
