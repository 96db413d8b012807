"""`draft`: candidates for the next step, or for the whole thought, sampled from one prompt."""

from collections.abc import Sequence

from pipeline.engine import Completion, Request
from pipeline.graph.spec import DraftSpec
from pipeline.reasoning.chain import Chain, Outcome
from pipeline.stages.base import EngineStage


class DraftStage(EngineStage):
    """N continuations of the chain's context, each to its delimiter or to `</think>` (SpecCoT eq. 3, SCoT eq. 1)."""

    spec: DraftSpec

    def requests(self, chain: Chain) -> list[Request]:
        spec = self.spec
        return [
            self.request(
                chain,
                chain.contexts[self.role],
                chain.room(spec.max_tokens),
                n=spec.candidates,
                temperature=spec.temperature,
                top_p=spec.top_p,
                stop=self.step_stop if spec.unit == "step" else (),
                stop_ids=self.close_ids,
            )
        ]

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        return Outcome(candidates=tuple(map(self.span, completions[0].candidates)))
