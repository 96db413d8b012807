"""`answer`: closes the thought, where that is still open, and lets the engine write the answer that follows it."""

from collections.abc import Sequence
from typing import ClassVar

from pipeline.engine import Completion, Request
from pipeline.graph.spec import Name, SamplingSpec, Tokens
from pipeline.reasoning.chain import Chain, Outcome, Span
from pipeline.stages.base import EngineStage, StageKind


class AnswerSpec(SamplingSpec, frozen=True, kw_only=True, tag="answer"):
    """Close the thought and write the answer; the chain is finished then."""

    engine: Name
    max_tokens: Tokens = 1024

    answers: ClassVar[bool] = True


class AnswerStage(EngineStage):
    """Asks for the final answer after the committed thought (SpecCoT 3.1; SCoT 3.4), or for the rest of one that was interrupted."""

    spec: AnswerSpec

    def requests(self, chain: Chain) -> list[Request]:
        """See `Stage.requests`."""
        prompt: Sequence[int] = chain.contexts[self.context]
        if not self.close_ids or prompt[-1] != self.close_ids[0]:
            prompt = [*prompt, *self.builder.close_thought_ids]
        max_tokens = self.spec.max_tokens
        if chain.answer is not None:
            begun = chain.translate(chain.answer, self.role)
            prompt, max_tokens = [*prompt, *begun], max(1, max_tokens - len(begun))
        return [self.request(chain, prompt, max_tokens, **self.spec.sampling)]

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        """See `Stage.apply`."""
        [candidate] = completions[0].candidates
        if chain.answer is None:
            return Outcome(answer=Span(self.role, candidate.ids, candidate.text))
        begun = tuple(chain.translate(chain.answer, self.role))
        return Outcome(answer=Span(self.role, begun + candidate.ids, chain.answer.text + candidate.text))


KIND = StageKind(spec=AnswerSpec, build=AnswerStage)
