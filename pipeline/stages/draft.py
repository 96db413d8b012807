"""`draft`: samples candidates for the next step, or for the whole thought, from one prompt."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta

from pipeline.engine import Completion, Request
from pipeline.graph.spec import SamplingSpec, Tokens
from pipeline.reasoning.chain import Chain, Outcome
from pipeline.stages.base import EngineStage, StageKind


class DraftSpec(SamplingSpec, frozen=True, kw_only=True, tag="draft"):
    """Propose candidates for the next step, or for the whole thought (SpecCoT eq. 3, SCoT eq. 1)."""

    unit: Literal["step", "thought"] = "step"
    """What a candidate is: a step, or a whole thought."""
    candidates: Annotated[int, Meta(ge=1, le=35)] = 5
    """Number of candidates."""
    max_tokens: Tokens
    """Maximum number of tokens of each candidate."""

    @property
    def needs(self) -> Mapping[str, object]:
        return {**super().needs, **({"continues": True} if self.unit == "step" else {})}

    @property
    def drafted(self) -> int:
        return self.candidates


class DraftStage(EngineStage):
    """Samples N continuations of the chain's context, each up to a blank line (steps only) or to `</think>` (SpecCoT eq. 3, SCoT eq. 1)."""

    spec: DraftSpec

    def requests(self, chain: Chain) -> list[Request]:
        spec, most = self.spec, self._most(chain)
        if most < 1:
            return []
        fields = {"n": spec.candidates, "logprobs": self.place.measured, **self.sampled(chain)}
        return [self.request(chain, chain.contexts[self.role], most, stop=self.stop, stop_ids=self.close_ids, **fields)]

    def _most(self, chain: Chain) -> int:
        """Most tokens of a candidate; 0 where the judges cannot be shown steps as long as the chain's are: its last ones are written
        without drafts, none of which is then paid for in vain."""
        if chain.is_spent:
            return 0
        most = chain.room(self.spec.max_tokens, self.role)
        if self.spec.unit == "thought":
            return most
        shown = [chain.written(judge.room_for(chain, self.spec.candidates), self.role, judge.role) for judge in self.place.judges]
        least = min([most, *shown])
        return least if least >= min(most, chain.mean_step) else 0

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        if not completions:
            return Outcome(withheld=True)
        return Outcome(candidates=tuple(self.spans(completions[0].candidates, chain)))


KIND = StageKind(spec=DraftSpec, build=DraftStage)
