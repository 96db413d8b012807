"""`generate`: one engine writes by itself. Guidance, a fallback step, a whole thought, or a response with its answer."""

from collections.abc import Sequence

from pipeline.engine import Candidate, Completion, Request
from pipeline.graph.spec import GenerateSpec
from pipeline.reasoning.chain import Chain, Outcome, Span
from pipeline.reasoning.prompts import THINK_CLOSE
from pipeline.stages.base import EngineStage


class GenerateStage(EngineStage):
    """Continues the chain's context in its engine's own words (SpecCoT eq. 2 and 5); 0 tokens are not asked for."""

    spec: GenerateSpec

    def requests(self, chain: Chain) -> list[Request]:
        spec = self.spec
        if not spec.max_tokens:
            return []
        stop = self.step_stop if spec.unit == "step" else ()
        stop_ids = () if spec.unit == "response" else self.close_ids
        # The budget is the thought's; a response holds the answer too.
        max_tokens = spec.max_tokens if spec.unit == "response" else chain.room(spec.max_tokens)
        prompt = chain.contexts[self.role]
        return [self.request(chain, prompt, max_tokens, temperature=spec.temperature, top_p=spec.top_p, stop=stop, stop_ids=stop_ids)]

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        if not completions:
            return Outcome()
        [candidate] = completions[0].candidates
        if self.spec.unit == "response":
            thought, answer = self._split(candidate)
            return Outcome(step=thought, decision="written", answer=answer)
        return Outcome(step=self.span(candidate), decision=self._decision(chain))

    def _decision(self, chain: Chain) -> str:
        if self.spec.unit == "tokens" and not chain.steps:
            return "guidance"
        if chain.candidates:
            return "fallback"
        return "first_steps" if self.spec.first_steps else "written"

    def _split(self, candidate: Candidate) -> tuple[Span, Span | None]:
        """Thought and answer; a response that never closed its thought has no answer, one without thoughts is both."""
        ids, text = candidate.ids, candidate.text
        finished = candidate.finish_reason == "stop"
        if not self.close_ids or self.close_ids[0] not in ids:
            answers = finished and not self.close_ids
            return Span(self.role, ids, text, finished), Span(self.role, ids, text) if answers else None
        cut = ids.index(self.close_ids[0]) + 1
        thought, close, answer = text.partition(THINK_CLOSE)
        return Span(self.role, ids[:cut], thought + close, True), Span(self.role, ids[cut:], answer)
